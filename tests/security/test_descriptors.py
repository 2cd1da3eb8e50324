"""Attacks through descriptors: what a command inherits, what the guest holds, and a host directory that leaked."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.security.attacks import Arena, Sentinel, outcome, outcome_outside, python

from hutch.errors import NotRunnable
from hutch.linux import landlock
from hutch.providers.native.spawn.child_steps import SPILL

# One more descriptor reads the listing.
HELD = "tell(sorted(int(name) for name in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{name}')))"


def test_commands_hold_three_descriptors(arena: Arena, sentinel: Sentinel) -> None:
    """Threat: a descriptor of the keeper, spawner or guest in a command: a host directory, the guest's socket."""
    leak = os.open(sentinel.directory, os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        control = [sys.executable, "-c", f"import os; print(os.path.exists('/proc/self/fd/{leak}'))"]
        shown = subprocess.run(control, capture_output=True, text=True, check=True, close_fds=False, timeout=60)
        assert shown.stdout == "True\n", "control: an ordinary child inherits it"
        # An engine that is started now, with the leak open.
        with arena.opened(state="leaky") as hutch, hutch.box() as box:
            assert outcome(box, HELD) == [0, 1, 2]
            job = box.start(python(HELD), pty=True)
            assert job.wait(30).stdout.strip() == "[0, 1, 2]"
            given = box.exec(python("sys.stdin.read(); " + HELD), stdin="x")
            assert given.stdout.strip() == "[0, 1, 2]"
    finally:
        os.close(leak)


HOST = [os.stat("/").st_dev, os.stat("/").st_ino]
CLIMB = """
def reaches(directory):
    "Whether the sentinel is found from this directory, by its path on the host, wherever `..` leads to."
    for _ in range(64):
        try:
            os.close(os.open(secret, os.O_PATH, dir_fd=directory))
            return True
        except OSError:
            directory = os.open("..", os.O_PATH | os.O_DIRECTORY, dir_fd=directory)
    facts = os.fstat(directory)
    return [facts.st_dev, facts.st_ino] == host
"""
CAPTURED = (
    CLIMB
    + """
answers = {}
for pid in [name for name in os.listdir("/proc") if name.isdigit() and int(name) != PARENT]:
    if tried(os.readlink, f"/proc/{pid}/root") != "ok":
        continue  # another user's guest
    for link in ["root", "cwd"] + [f"fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]:
        target = os.readlink(f"/proc/{pid}/{link}")
        try:
            directory = os.open(f"/proc/{pid}/{link}", os.O_PATH | os.O_DIRECTORY)
        except OSError:
            if not target.startswith(("socket:", "pipe:", "anon_inode:", "/dev/null", "/proc/")):
                answers[f"{pid} {link}"] = target
            continue
        answers[f"{pid} {link}"] = reaches(directory)
tell(answers)
"""
)


@pytest.mark.parametrize("user", ["user", "root"])
def test_no_descriptor_of_a_captured_guest_leads_to_the_host(arena: Arena, sentinel: Sentinel, user: str) -> None:
    """Threat: code that has captured a guest walks from a directory that it holds, by `..`, to the host's root.

    A guest holds one directory, that of spilled output, and it is the root of a mount that is attached nowhere. The
    box lacks Landlock, the wall behind, and the guest's own guard, so that its user may look at what it holds.
    """
    if user == "root" and os.geteuid() != 0:
        pytest.skip("needs root: an ordinary user's boxes have no second guest")
    with arena.box("dumpable", "landlock") as box:
        answers = outcome(box, CAPTURED, user=user, secret=str(sentinel.file)[1:], host=HOST)
        directories = {link: answer for link, answer in answers.items() if not link.endswith((" root", " cwd"))}
        assert len(directories) == 1, answers
        assert not any(answers.values()), answers
        # The descriptor does lead to the directory of spilled output, and there to nothing else.
        (host,) = arena.place.glob(f"*/r/{box.id}/spill")
        (host / "known").touch()
        (link,) = directories
        path = "/proc/" + link.replace(" ", "/")
        names = "tell([os.listdir(path), os.listdir(path + '/..')])"
        assert outcome(box, names, user=user, path=path) == [["known"], ["known"]]
        (host / "known").unlink()


def test_control_a_directory_of_the_host_leads_to_its_root(sentinel: Sentinel) -> None:
    """The same climb from a directory of the host itself, as a guest once held one; outside of any box."""
    code = CLIMB + "tell(reaches(os.open('/usr/lib', os.O_RDONLY)))"
    assert outcome_outside(code, secret=str(sentinel.file)[1:], host=HOST) is True


def test_working_directory_through_a_magic_link(arena: Arena) -> None:
    """Threat: the guest changes to a command's cwd itself, and /proc/self/fd leads to a host directory it holds
    (the way of CVE-2024-21626). Landlock is left out, the wall behind. An ordinary link to a directory works."""
    with arena.box("landlock") as box:
        box.exec("ln -s /proc/self/fd way; ln -s /tmp plain")
        assert box.exec("pwd -P", cwd="plain").stdout == "/tmp\n"
        for number in range(3, 24):
            for path in (f"/proc/self/fd/{number}", f"/proc/1/fd/{number}", f"way/{number}"):
                with pytest.raises(NotRunnable):
                    box.exec("true", cwd=path)
        for path in ("/proc/self/root", "/proc/self/cwd", "/proc/1/task/1/root"):
            with pytest.raises(NotRunnable):
                box.exec("true", cwd=path)
    with arena.box("landlock", "magic links") as box:
        box.exec("ln -s /proc/self/fd way")
        (host,) = arena.place.glob(f"*/r/{box.id}/spill")
        for path in (f"/proc/self/fd/{SPILL}", f"/proc/1/fd/{SPILL}", f"way/{SPILL}"):
            assert box.exec("echo attacked > here", cwd=path).ok
            assert (host / "here").read_text() == "attacked\n"
            (host / "here").unlink()
        assert box.exec("true", cwd="/proc/self/root").ok


LEAK = """
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect("/mnt/door")
    _, (directory, *_), _, _ = socket.recv_fds(sock, 1, 1)
def read():
    os.read(os.open(name, os.O_RDONLY, dir_fd=directory), 100)
def climb():
    os.fchdir(directory)
    os.listdir("..")
def write():
    os.close(os.open(name + "-new", os.O_WRONLY | os.O_CREAT, 0o666, dir_fd=directory))
tell([tried(read), tried(climb), tried(write), tried(os.unlink, name + "-victim", dir_fd=directory)])
"""


def test_a_leaked_host_directory(arena: Arena, scratch: Path, sentinel: Sentinel) -> None:
    """Threat: a descriptor of a host directory reaches the box, by a bug or by a socket that was mounted into it.

    Landlock is the second wall: nothing can be opened, made or removed through it.
    """
    if not landlock.Domain(landlock.abi()).enforced:
        pytest.skip("needs Landlock (kernel 5.19 or later, switched on)")
    door, loot = scratch / "door", scratch / "loot"
    loot.mkdir()
    loot.chmod(0o777)
    for name in (sentinel.NAME, f"{sentinel.NAME}-victim"):
        (loot / name).write_text(sentinel.secret)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
        door.chmod(0o777)
        listener.listen(8)
        listener.settimeout(60)

        def attack(*without: str) -> list[str]:
            with arena.box(*without, mounts=[f"{scratch}:/mnt:ro"]) as box:
                job = box.start(python(LEAK, name=sentinel.NAME))
                connection, _ = listener.accept()
                directory = os.open(loot, os.O_RDONLY | os.O_DIRECTORY)
                with connection:
                    socket.send_fds(connection, [b"x"], [directory])
                    os.close(directory)
                    result = job.wait(60)
            assert result.exit_code == 0, result.stderr
            return list(json.loads(result.stdout))

        assert attack() == ["EACCES"] * 4
        assert sorted(path.name for path in loot.iterdir()) == [sentinel.NAME, f"{sentinel.NAME}-victim"]
        answers = attack("landlock")
        assert answers[:3] == ["ok"] * 3
        assert answers[3] in ("ok", "EPERM")
        assert (loot / f"{sentinel.NAME}-new").exists()
