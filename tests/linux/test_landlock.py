"""The Landlock domain around a box: nothing outside by path, everything a box does inside, mounts that come later."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hutch.linux import landlock
from hutch.linux.landlock import Domain

VERSION = landlock.abi()
needs_landlock = pytest.mark.skipif(not Domain(VERSION).enforced, reason=f"this kernel's Landlock ABI is {VERSION}")
needs_scopes = pytest.mark.skipif(not Domain(VERSION).scopes, reason=f"scopes need Landlock ABI 6, this is {VERSION}")

CHILD = """
import errno, os, signal, socket, sys
from hutch.linux import kernel, landlock

def answer(call, *arguments):
    try:
        call(*arguments)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]

def write(path, directory=None):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=directory)
    os.write(descriptor, b"x")
    os.close(descriptor)

def read(path, directory=None):
    os.close(os.open(path, os.O_RDONLY, dir_fd=directory))

def confine(*directories, version=landlock.abi(), **options):
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    descriptors = [os.open(directory, os.O_PATH | os.O_DIRECTORY) for directory in directories]
    landlock.Domain(version, **options).enter(tuple(descriptors))
    for descriptor in descriptors:
        os.close(descriptor)

def own_mounts():
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            sys.stdout.flush()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return pid

def finished(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

os.chdir(sys.argv[1])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory `box` and, beside it, one for the host's own (`host`) and one for spilled output (`spill`)."""
    for name in ("box/one", "box/two", "host", "spill"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "host/secret").write_text("secret")
    return tmp_path


def output(place: Path, code: str) -> list[str]:
    """The lines that Python `code` prints in a process of its own, started in `place`."""
    command = [sys.executable, "-c", CHILD + textwrap.dedent(code), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


# ---- versions


def test_a_kernel_without_usable_landlock_is_reported(place: Path) -> None:
    """ABI 1 counts as unusable: it refuses every rename between directories. `enforced` says that entering is void."""
    assert not Domain(0).enforced
    assert not Domain(1).enforced
    assert Domain(2).enforced
    assert Domain(VERSION).enforced == (VERSION >= 2)
    assert output(place, 'confine("box", version=0); print(answer(read, "host/secret"))') == ["ok"]


def test_governed_rights_fit_the_version() -> None:
    expected = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF, 6: 0xFFFF, 7: 0xFFFF}
    assert {version: landlock.rights(version) for version in expected} == expected
    assert Domain(5).scopes == 0
    assert Domain(6).scopes == landlock.SCOPE_ABSTRACT_UNIX_SOCKET | landlock.SCOPE_SIGNAL


@needs_landlock
@pytest.mark.parametrize("version", range(2, VERSION + 1))
def test_every_version_up_to_this_kernels_confines(place: Path, version: int) -> None:
    printed = output(
        place,
        f"""
        confine("box", version={version})
        write("box/one/file")
        print(answer(os.rename, "box/one/file", "box/two/file"), answer(read, "host/secret"))
        """,
    )
    assert printed == ["ok EACCES"]


# ---- the wall


@needs_landlock
def test_a_leaked_directory_is_worth_nothing(place: Path) -> None:
    """The threat: a descriptor of a host directory in a box. No open, create, rename, link or remove through it."""
    if VERSION < 3:
        pytest.skip("truncate(2) by path is governed from Landlock ABI 3 (Linux 6.2) on")
    printed = output(
        place,
        """
        leaked = os.open("host", os.O_RDONLY | os.O_DIRECTORY)
        opened = os.open("host/secret", os.O_RDONLY)
        print(answer(read, "secret", leaked), answer(write, "new", leaked), answer(os.listdir, leaked))
        os.unlink("host/new")
        confine("box")
        print(answer(read, "secret", leaked), answer(write, "new", leaked), answer(os.listdir, "host"))
        print(answer(lambda: os.unlink("secret", dir_fd=leaked)), answer(lambda: os.mkdir("new", dir_fd=leaked)))
        print(answer(lambda: os.rename("secret", "box/secret", src_dir_fd=leaked)))
        print(answer(lambda: os.link("secret", "box/secret", src_dir_fd=leaked)))
        print(answer(lambda: os.symlink("x", "new", dir_fd=leaked)), answer(os.truncate, "host/secret", 0))
        # What was open before stays open, but it cannot be opened anew with other rights.
        print(os.read(opened, 6), answer(read, f"/proc/self/fd/{opened}"))
        """,
    )
    assert printed == ["ok ok ok", "EACCES EACCES EACCES", "EACCES EACCES", "EACCES", "EXDEV", "EACCES EACCES",
                       "b'secret' EACCES"]  # fmt: skip
    assert (place / "host/secret").read_text() == "secret"
    assert not (place / "box/secret").exists()


@needs_landlock
def test_a_program_outside_cannot_be_run(place: Path) -> None:
    (place / "host/program").write_text("#!/bin/sh\n")
    (place / "host/program").chmod(0o755)
    assert output(place, 'confine("box"); print(answer(os.execv, "host/program", ["program"]))') == ["EACCES"]


@needs_landlock
def test_everything_a_box_does_works_beneath_its_root(place: Path) -> None:
    printed = output(
        place,
        """
        confine("box")
        os.chdir("box")
        write("one/file")
        print(answer(os.rename, "one/file", "two/file"), answer(os.link, "two/file", "one/link"))
        print(answer(os.mkdir, "one/deep"), answer(os.rename, "one/deep", "two/deep"), answer(os.rmdir, "two/deep"))
        print(answer(os.mkfifo, "fifo"), answer(os.symlink, "one", "symlink"), answer(os.listdir, "symlink"))
        print(answer(os.truncate, "two/file", 0), answer(os.unlink, "one/link"))
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("socket")
        listening.listen()
        print(answer(socket.socket(socket.AF_UNIX).connect, "socket"))
        os.close(os.open(".", os.O_TMPFILE | os.O_RDWR))
        """,
    )
    assert printed == ["ok ok", "ok ok ok", "ok ok ok", "ok ok", "ok"]


@needs_landlock
def test_pipes_and_memory_files_are_reopened_and_so_is_spilled_output(place: Path) -> None:
    """`echo > /dev/stdout` opens the job's output again: a pipe is no path, a file of the spill directory is one."""
    printed = output(
        place,
        """
        _, pipe = os.pipe()
        memory = os.memfd_create("memory")
        spilled = os.open("spill/output", os.O_WRONLY | os.O_CREAT)
        if not os.fork():
            confine("box")
            print(answer(write, f"/proc/self/fd/{spilled}"), flush=True)
            os._exit(0)
        os.wait()
        confine("box", "spill")
        print(*[answer(write, f"/proc/self/fd/{descriptor}") for descriptor in (pipe, memory, spilled)])
        """,
    )
    assert printed == ["EACCES", "ok ok ok"]


# ---- mounts


@needs_landlock
def test_terminals_and_devices_in_mounts_beneath_the_root(place: Path) -> None:
    """IOCTL_DEV (ABI 5) governs ioctl on devices: on the box's own terminals it must work."""
    printed = output(
        place,
        """
        import fcntl, termios
        own_mounts()
        os.mkdir("box/pts")
        kernel.mount("devpts", "box/pts", "devpts", 0, "newinstance,ptmxmode=0666")
        open("box/null", "w").close()
        kernel.mount("/dev/null", "box/null", None, kernel.MS_BIND)
        confine("box")
        keeper = os.open("box/pts/ptmx", os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(keeper, 0x40045431, bytes(4))  # TIOCSPTLCK
        number = int.from_bytes(fcntl.ioctl(keeper, 0x80045430, bytes(4)), "little")  # TIOCGPTN
        terminal = os.open(f"box/pts/{number}", os.O_RDWR | os.O_NOCTTY)
        print(answer(fcntl.ioctl, terminal, termios.TIOCSWINSZ, bytes(8)), answer(termios.tcgetattr, terminal))
        print(answer(write, "box/null"))
        # A member of a domain cannot change mounts, even as root of the namespace.
        print(answer(kernel.mount, "t", "box/one", "tmpfs"), answer(kernel.syscall, "umount2", b"box/null", 0))
        """,
    )
    assert printed == ["ok ok", "ok", "EPERM EPERM"]


# A box as the spawner builds it: base, layers by name, the overlay `m`; new files, copies up, a later mount, a switch.
SWITCH = """
own_mounts()
kernel.mount("base", "box", "tmpfs")
os.chdir("box")
for name in ("image", "image/mnt", "image/late", "0", "work0", "1", "work1", "m"):
    os.mkdir(name)
for name in ("image/one", "image/two"):
    write(name)
kernel.mount("overlay", "m", "overlay", 0, "lowerdir=image,upperdir=0,workdir=work0,userxattr")
here, there = socket.socketpair()

def guest():
    ruled = os.open({ruled!r}, os.O_PATH)
    os.chroot("m")
    os.chdir("/")
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    landlock.Domain(landlock.abi()).enter((ruled,))
    os.close(ruled)
    while path := there.recv(100):
        there.send(answer(write, path).encode())

def asked(path):
    here.send(path)
    return here.recv(100).decode()

def enter_and_switch():
    os.chroot("m")
    os.chdir("/mnt")
    kernel.syscall("pivot_root", b".", b".")
    kernel.syscall("umount2", b".", kernel.MNT_DETACH)

pid = child(guest)
there.close()
before = [asked(b"/new"), asked(b"/one")]
kernel.mount("late", "m/late", "tmpfs")
late = asked(b"/late/new")
kernel.syscall("umount2", b"m/late", 0)
kernel.mount("overlay", "m/mnt", "overlay", 0, "lowerdir=0:image,upperdir=1,workdir=work1,userxattr")
finished(child(enter_and_switch))
print(*before, late, asked(b"/newer"), asked(b"/two"), *sorted(os.listdir("1")))
here.shutdown(socket.SHUT_WR)
finished(pid)
"""


@needs_landlock
def test_mounts_that_come_later_are_covered_and_a_layer_switch_too(place: Path) -> None:
    """A process mounts and pivots from outside; the guest in its domain keeps writing without taking part."""
    assert output(place, SWITCH.format(ruled=".")) == ["ok ok ok ok ok newer two"]


@needs_landlock
def test_a_rule_on_the_merged_view_itself_would_be_lost_by_a_switch(place: Path) -> None:
    """The control, and the reason why `enter` takes the base: the rule is lost with the mount that was replaced."""
    assert output(place, SWITCH.format(ruled="m")) == ["ok ok ok EACCES EACCES"]


# ---- scopes


@needs_scopes
def test_signals_and_abstract_sockets_stay_in_the_domain(place: Path) -> None:
    printed = output(
        place,
        r"""
        name = b"\0hutch-" + os.urandom(8).hex().encode()
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(name)
        listening.listen()

        def member():
            outside = os.getppid()
            print(answer(os.kill, outside, 0), answer(socket.socket(socket.AF_UNIX).connect, name))
            confine("box")
            print(answer(os.kill, outside, 0), answer(socket.socket(socket.AF_UNIX).connect, name))
            own = child(signal.pause)
            print(answer(os.kill, own, signal.SIGKILL))
            os.waitpid(own, 0)

        finished(child(member))
        """,
    )
    assert printed == ["ok ok", "EPERM EPERM", "ok"]


@needs_scopes
def test_a_process_brought_in_later_has_its_own_domain(place: Path) -> None:
    """Unscoped it may signal the guest's processes (user=root needs that); a scoped guest cannot signal it."""
    printed = output(
        place,
        """
        ready, waiting = os.pipe()

        def guest():
            confine("box")
            os.write(waiting, b"x")
            signal.pause()

        def brought(scopes):
            confine("box", scopes=scopes)
            print(answer(os.kill, resident, 0))

        resident = child(guest)
        os.read(ready, 1)
        finished(child(lambda: brought(0)))
        finished(child(lambda: brought(landlock.SCOPE_SIGNAL)))
        os.kill(resident, signal.SIGKILL)
        os.waitpid(resident, 0)
        """,
    )
    assert printed == ["ok", "EPERM"]


@needs_landlock
def test_domain_and_filter_go_together(place: Path) -> None:
    """The order in a box's start: the domain, then the system call filter; a user may still confine further."""
    printed = output(
        place,
        """
        from hutch.linux import seccomp
        confine("box")
        seccomp.Filter(seccomp.program()).load()
        print(answer(read, "host/secret"), answer(write, "box/file"))
        confine("box/one")
        print(answer(write, "box/two/file"), answer(write, "box/one/file"))
        """,
    )
    assert printed == ["EACCES ok", "EACCES ok"]
