"""Attacks on processes: the guest's memory and control, the host's processes, other boxes, secrets, IPC, setuid."""

import ctypes
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.security.attacks import Arena, Sentinel, compiled, outcome, python, start_on_host

# ---- the guest, which has the user's own id

GUEST_FILES = """
def read(name):
    with open(f"/proc/1/{name}", "rb") as file:
        file.read(1)
links = {name: tried(os.readlink, f"/proc/1/{name}") for name in ("root", "cwd", "exe", "ns/mnt")}
files = {name: tried(read, name) for name in ("environ", "maps", "auxv", "stack")}
files.pop("stack")  # always the host root's
tell(links | files | {"mem": tried(os.open, "/proc/1/mem", os.O_RDWR), "fd": tried(os.listdir, "/proc/1/fd")})
"""


def test_the_guests_files_in_proc(arena: Arena) -> None:
    """Threat: /proc/1/mem rewrites the guest, /proc/1/root and /proc/1/fd lead to what it holds."""
    with arena.box() as box:
        assert set(outcome(box, GUEST_FILES).values()) <= {"EACCES", "EPERM"}
    with arena.box("dumpable") as box:
        assert set(outcome(box, GUEST_FILES).values()) == {"ok"}


GUEST_MEMORY = """
# PTRACE_SEIZE does not stop it, and our end lets it go.
buffer = ctypes.create_string_buffer(8)
line = next((line for line in open("/proc/self/maps") if "r" in line.split()[1]), "")
local = struct.pack("QQ", ctypes.addressof(buffer), 8)
# A page that every Python has at the same place in a fork, or not at all: EFAULT also means that the kernel looked.
remote = struct.pack("QQ", 4096, 8)
guest = os.pidfd_open(1)
answers = [
    called("ptrace", 0x4206, 1, 0, 0),
    called("process_vm_readv", 1, local, 1, remote, 1, 0),
    called("pidfd_getfd", guest, 0, 0),
    called("kcmp", 1, os.getpid(), 2, 0, 0),
]
tell(["ok" if answer == "EFAULT" else answer for answer in answers])
"""
INTO_THE_GUEST = ("seccomp:ptrace", "seccomp:process_vm_readv", "seccomp:pidfd_getfd", "seccomp:kcmp")


def test_the_guests_memory_and_descriptors(arena: Arena) -> None:
    """Threat: a user's process takes the guest over by ptrace, or copies its descriptors. Two layers, each enough."""
    with arena.box() as box:
        assert outcome(box, GUEST_MEMORY) == ["EPERM"] * 4
    with arena.box("dumpable") as box:
        assert outcome(box, GUEST_MEMORY) == ["EPERM"] * 4, "the filter alone"
    with arena.box(*INTO_THE_GUEST) as box:
        assert outcome(box, GUEST_MEMORY) == ["EPERM"] * 4, "not being dumpable alone"
    with arena.box("dumpable", *INTO_THE_GUEST) as box:
        assert outcome(box, GUEST_MEMORY) == ["ok"] * 4
        assert box.exec("echo alive").stdout == "alive\n"


def test_signals_to_the_guest(arena: Arena) -> None:
    """Threat: kill -9 1, or stopping PID 1, ends the box's service. Control: a signal ends an ordinary process."""
    code = """
        numbers = [number for number in range(1, 65) if number not in (32, 33)]
        for number in numbers:
            tried(os.kill, 1, number)
            tried(lambda: signal.pidfd_send_signal(os.pidfd_open(1), number))
        child = os.fork()
        if child == 0:
            signal.pause()
        os.kill(child, 9)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    with arena.box() as box:
        assert outcome(box, code) == -9
        state = outcome(box, "tell(open('/proc/1/stat').read().rpartition(')')[2].split()[0])")
        assert state in ("S", "R")
        box.exec("kill -9 -1")
        assert box.exec("echo alive").stdout == "alive\n"


# ---- processes of others


def test_host_processes_cannot_be_signalled(arena: Arena) -> None:
    """Threat: a box kills processes of the host; rootless they even have the same owner."""
    target = start_on_host()
    code = "tell([tried(os.kill, pid, 9), tried(os.pidfd_open, pid), os.path.exists(f'/proc/{pid}')])"
    try:
        with arena.box(pids=64) as box:
            assert outcome(box, code, pid=target.pid) == ["ESRCH", "ESRCH", False]
        assert target.poll() is None
        subprocess.run(["kill", "-9", str(target.pid)], check=True)  # control: outside, the same signal ends it
        assert target.wait(20) == -9
    finally:
        target.kill()
        target.wait()


SEEN = """
words = []
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            words.append(open(f"/proc/{name}/cmdline").read() + os.readlink(f"/proc/{name}/cwd"))
        except OSError:
            pass
tell(any(mark in line for line in words if mark + "'" not in line))
"""


def test_one_box_does_not_see_another(arena: Arena) -> None:
    """Threat: command lines and directories of another box's processes."""
    mark = f"mark-{os.urandom(6).hex()}"
    with arena.box() as box, arena.box() as other:
        other.start(["sh", "-c", "sleep 60; true", mark])
        assert outcome(other, SEEN, mark=mark), "control: in its own box it is seen"
        assert not outcome(box, SEEN, mark=mark)


# ---- secrets of the keeper and the spawner

KEEPER = """
import json, os, sys
from pathlib import Path
from tests.security.attacks import Arena, outcome
SCAN = sys.stdin.read()
arena = Arena(Path(sys.argv[1]))
secrets = [os.environ["SECRET"], sys.argv[2], "known-" + sys.argv[3]]
held = "".join(["heap-", sys.argv[3]])
with arena.box("dumpable", env={"KNOWN": "known-" + sys.argv[3]}) as box:
    print(json.dumps(outcome(box, SCAN, marks=[mark[::-1] for mark in [*secrets, held]])))
"""
SCAN = """
# The marks come reversed, so that the attack's own command line is no hit.
marks = [mark[::-1].encode() for mark in marks]
found = set()
def look(data):
    found.update(mark.decode() for mark in marks if mark in data)
for name in ("environ", "cmdline", "comm", "status", "mountinfo", "cgroup"):
    with open(f"/proc/1/{name}", "rb") as file:
        look(file.read())
memory = os.open("/proc/1/mem", os.O_RDONLY)
size = 0
for line in open("/proc/1/maps"):
    first, last = (int(number, 16) for number in line.split()[0].split("-"))
    if line.split()[1][0] != "r" or line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
        continue
    for start in range(first, last, 1 << 20):
        try:
            data = os.pread(memory, min((1 << 20) + 64, last - start), start)
        except OSError:
            break
        size += len(data)
        look(data)
tell([size, sorted(found)])
"""


def test_secrets_of_the_keeper_are_not_in_the_box(arena: Arena) -> None:
    """Threat: the keeper's environment, command line or heap (API keys) reach the box through the spawner's fork.

    The guest's whole memory is searched, which only the missing `dumpable` makes possible. Control: what the box may
    know, its own environment, is found.
    """
    token = os.urandom(12).hex()
    done = subprocess.run(
        [sys.executable, "-c", KEEPER, str(arena.place), f"argument-{token}", token],
        input=SCAN, text=True, capture_output=True, timeout=100, check=False,
        env={**os.environ, "SECRET": f"environment-{token}", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    size, found = json.loads(done.stdout)
    assert size > 1 << 20
    assert found == [f"known-{token}"]


def test_proc_of_the_guest_reveals_nothing_of_the_host(arena: Arena) -> None:
    """Threat: /proc/1/cmdline and the environment show the host's paths, arguments, the keeper's variables."""
    with arena.box() as box:
        assert outcome(box, "tell(open('/proc/1/cmdline').read().rstrip('\\0'))") == "hutch-guest"
        environment = set(box.exec("env").stdout.split())
    leaked = [f"{name}={value}" for name, value in os.environ.items() if f"{name}={value}" in environment]
    assert [line for line in leaked if line.partition("=")[0] not in ("LANG", "PATH", "TMPDIR", "SHLVL", "PWD")] == []


# ---- memory and sockets that no path leads to

IPC_RMID, IPC_CREAT = 0, 0o1000


def test_system_v_memory(arena: Arena) -> None:
    """Threat: shared memory of the host by its number."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(0, 4096, IPC_CREAT | 0o666)
    assert number >= 0
    code = "tell(called('shmat', number, None, 0o10000))"  # SHM_RDONLY
    try:
        with arena.box() as box:
            assert outcome(box, code, number=number) in ("EINVAL", "EIDRM")
        with arena.box("ipc namespace") as box:
            assert outcome(box, code, number=number) == "ok"
    finally:
        libc.shmctl(number, IPC_RMID, None)


CONNECT = """
with socket.socket(socket.AF_UNIX) as sock:
    tell(tried(sock.connect, "\\0" + name))
"""


def test_abstract_sockets_of_the_host(arena: Arena) -> None:
    """Threat: services of the host (X11, buses) on abstract sockets. The network namespace alone and, from ABI 6 on,
    Landlock alone keep a box out."""
    name = f"hutch-attack-{os.urandom(6).hex()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(8)
        with arena.box() as box:
            assert outcome(box, CONNECT, name=name) in ("ECONNREFUSED", "EPERM")
        with arena.box("landlock") as box:
            assert outcome(box, CONNECT, name=name) == "ECONNREFUSED"
        with arena.box("landlock", "network namespace") as box:
            assert outcome(box, CONNECT, name=name) == "ok"


def test_abstract_sockets_of_another_box(arena: Arena) -> None:
    """Threat: one box talks to a service of another. Control: in its own box the service answers."""
    name = f"hutch-attack-{os.urandom(6).hex()}"
    serve = """
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\\0" + name)
        listener.listen(8)
        tell("ready")
        time.sleep(60)
    """
    with arena.box() as box, arena.box() as other:
        job = other.start(python(serve, name=name))
        assert job.read(wait=20.0).data
        assert outcome(other, CONNECT, name=name) == "ok"
        assert outcome(box, CONNECT, name=name) == "ECONNREFUSED"


# ---- privilege by execution


def test_setuid_programs(arena: Arena, scratch: Path, rootless: bool) -> None:
    """Threat: a setuid file of an image makes its caller root of the box. nosuid and no_new_privs each prevent it."""
    if rootless:
        pytest.skip("needs root: an ordinary user's box has only one id, so there is nobody else to become")
    program = compiled(
        '#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf("%d\\n", geteuid()); return 0; }', scratch
    )
    image = scratch / "image"
    (image / "bin").mkdir(parents=True)
    for path in (image, image / "bin"):
        path.chmod(0o755)
    (image / "bin/attack").write_bytes(program)
    (image / "bin/attack").chmod(0o4755)
    reference = f"dir:{image}"
    # The filter and Landlock need no_new_privs, so they go with it.
    new_privileges = ("no_new_privs", "seccomp", "landlock")
    for without, expected in (
        ((), "1000\n"),
        (("mount flags",), "1000\n"),
        (new_privileges, "1000\n"),
        (("mount flags", *new_privileges), "0\n"),
    ):
        with arena.box(*without, image=reference) as box:
            assert box.exec(["/bin/attack"]).stdout == expected, without
    assert (image / "bin/attack").stat().st_mode & 0o7777 == 0o4755


def test_commands_have_no_capability(arena: Arena) -> None:
    """Threat: a capability left in any set, which some program could raise."""
    code = "tell({line.split(':')[0]: line.split()[1] for line in open('/proc/self/status') if line[0] in 'CNS'})"
    with arena.box() as box:
        facts = outcome(box, code)
        assert {value for name, value in facts.items() if name.startswith("Cap")} == {"0" * 16}
        assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    with arena.box("capabilities", "seccomp") as box:
        facts = outcome(box, code)
        assert int(facts["CapEff"], 16) & 1 << 21, "control: what the child has before it drops everything"
        assert facts["Seccomp"] == "0"


# ---- the box's own root

ROOT_OF_BOX = """
tell({
    "capabilities": next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")),
    "bounding": next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapBnd")),
    "mount": called("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "chroot": called("chroot", b"/tmp"),
    "unshare": called("unshare", 0x10000000),
    "mknod": tried(os.mknod, "/tmp/node", 0o666 | stat.S_IFCHR, os.makedev(1, 5)),
    "guest": tried(os.open, "/proc/1/mem", os.O_RDWR),
    "core_pattern": tried(os.open, "/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "secret": tried(open, secret),
    "chown": tried(lambda: (open("/tmp/own", "w").close(), os.chown("/tmp/own", 1000, 1000))),
    "fds": sorted(os.listdir("/proc/self/fd"))[:3],
    "count": len(os.listdir("/proc/self/fd")),
})
"""
PRIVILEGED_PROCESSES = """
others = [name for name in os.listdir("/proc") if name.isdigit() and os.stat(f"/proc/{name}").st_uid == 0]
def attacked(name):
    opened, followed = tried(os.open, f"/proc/{name}/mem", os.O_RDWR), tried(os.readlink, f"/proc/{name}/root")
    return [tried(os.kill, int(name), 9), opened, followed]
tell([attacked(name) for name in others])
"""


def test_root_of_the_box(arena: Arena, sentinel: Sentinel, rootless: bool) -> None:
    """Threat: `user=root` is more than root of the box. It has seven capabilities, in the box's namespaces only."""
    if rootless:
        pytest.skip("needs root: an ordinary user's box has only one id")
    with arena.box() as box:
        facts = outcome(box, ROOT_OF_BOX, user="root", secret=str(sentinel.file))
        assert int(facts.pop("capabilities"), 16) == int(facts.pop("bounding"), 16) == 0b11111011
        assert facts.pop("chown") == "ok", "control: what its capabilities are for"
        assert facts.pop("secret") == "ENOENT"
        assert (facts.pop("fds"), facts.pop("count")) == (["0", "1", "2"], 4), "the fourth reads the listing"
        assert set(facts.values()) <= {"EPERM", "EACCES", "EROFS"}, facts
        assert outcome(box, PRIVILEGED_PROCESSES) == [["EPERM", "EACCES", "EACCES"]], (
            "the root guest gives the user no access"
        )
