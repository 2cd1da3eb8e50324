"""Attacks on the kernel's surface: privileged calls, namespaces, mounts, foreign ABIs, sockets, /proc/sys, devices."""

import json
import os
import platform
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from tests.security.attacks import Arena, Attack, Sentinel, compiled, outcome, outcome_outside, python

from hutch.linux.syscall_numbers import NUMBERS

EPERM = frozenset({"EPERM"})
ENOSYS = frozenset({"ENOSYS"})
NO_FAMILY = frozenset({"EAFNOSUPPORT"})

# Each of these needs no capability, so that the filter is the only thing in its way.
UNPRIVILEGED = (
    Attack(
        "keyctl", "keyrings are not separated by any namespace: keys of the host's users could be read or planted",
        "tell(called('keyctl', 0, -3, 1))", EPERM, ("seccomp:keyctl",),
    ),
    Attack(
        "add_key", "as keyctl",
        "tell(called('add_key', b'user', b'hutch-attack', b'x', 1, -2))", EPERM, ("seccomp:add_key",),
    ),
    Attack(
        "bpf", "programs in the kernel: a verifier bug is a kernel exploit",
        "tell(called('bpf', 7, ctypes.create_string_buffer(128), 128))", EPERM, ("seccomp:bpf",),
        achieved=frozenset({"EFAULT", "ENOENT", "EINVAL"}),
    ),
    Attack(
        "io_uring", "does other calls' work where no filter sees it",
        "tell(called('io_uring_setup', 1, ctypes.create_string_buffer(120)))", ENOSYS, ("seccomp:io_uring_setup",),
    ),
    Attack(
        "perf_event_open", "counters that see other processes, and a history of kernel bugs",
        """
        attributes = bytearray(112)
        struct.pack_into("IIQ", attributes, 0, 1, 112, 1)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK
        struct.pack_into("Q", attributes, 40, 1 << 5 | 1 << 6)  # exclude_kernel, exclude_hv
        tell(called("perf_event_open", ctypes.create_string_buffer(bytes(attributes)), 0, -1, -1, 0))
        """,
        EPERM, ("seccomp:perf_event_open",),
    ),
    Attack(
        "userfaultfd", "lets a process hold the kernel still in the middle of a copy: it makes races exploitable",
        "tell(called('userfaultfd', 1))", EPERM, ("seccomp:userfaultfd",),
    ),
    Attack(
        "ptrace", "control over other processes, the guest above all",
        "tell(called('ptrace', 0, 0, 0, 0))", EPERM, ("seccomp:ptrace",),
    ),
    Attack(
        "kcmp", "tells how kernel objects lie to each other",
        "tell(called('kcmp', os.getpid(), os.getpid(), 2, 0, 0))", EPERM, ("seccomp:kcmp",),
    ),
    Attack(
        "name_to_handle_at", "files by handle step over every directory's permissions",
        """
        handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
        tell(called("name_to_handle_at", -100, b"/tmp", handle, ctypes.byref(ctypes.c_int()), 0))
        """,
        EPERM, ("seccomp:name_to_handle_at",), achieved=frozenset({"ok", "ENOTSUP", "EOPNOTSUPP"}),
    ),
    Attack(
        "personality", "ADDR_NO_RANDOMIZE weakens the next program that is run",
        "tell(called('personality', 0x40000))", EPERM, ("seccomp:personality",),
    ),
    Attack(
        "tiocsti", "typing into the terminal that somebody else reads from",
        """
        master, slave = os.openpty()
        child = os.fork()
        if child == 0:
            os.setsid()
            fcntl.ioctl(slave, 0x540E, 0)  # TIOCSCTTY
            tell(tried(fcntl.ioctl, slave, 0x5412, b"x"))
            os._exit(0)
        os.waitpid(child, 0)
        """,
        EPERM, ("seccomp:ioctl",),
    ),
    Attack(
        "vsock", "reaches the hypervisor from any network namespace",
        "tell(tried(socket.socket, 40, socket.SOCK_STREAM))", NO_FAMILY, ("seccomp:socket",),
    ),
    Attack(
        "alg sockets", "the kernel's cryptography: attack surface only",
        "tell(tried(socket.socket, 38, socket.SOCK_SEQPACKET))", NO_FAMILY, ("seccomp:socket",),
    ),
    Attack(
        "packet sockets", "raw frames: attack surface (the kernel would also ask for a capability, EPERM)",
        "tell(tried(socket.socket, 17, socket.SOCK_RAW))", NO_FAMILY, ("seccomp:socket",),
        achieved=frozenset({"EPERM"}),
    ),
    Attack(
        "netlink sock_diag", "lists every socket of the namespace",
        "tell(tried(socket.socket, 16, socket.SOCK_RAW, 4))", NO_FAMILY, ("seccomp:socket",),
    ),
    Attack(
        "limits of the guest", "the guest has the user's id: lowering its limits would end the box's service",
        "tell(called('prlimit64', 1, 7, None, ctypes.create_string_buffer(16)))", EPERM, ("seccomp:prlimit64",),
    ),
    Attack(
        "kernel log", "addresses and facts of the host",
        "tell(called('syslog', 10, None, 0))", EPERM, ("seccomp:syslog",),
    ),
    Attack(
        "kernel command line", "how the host was started: devices, services, sometimes keys",
        "tell('ok' if open('/proc/cmdline').read() else 'empty')", frozenset({"empty"}), ("masks",),
    ),
    Attack(
        "masked /proc", "facts of the host's hardware and timers",
        "tell('ok' if open('/proc/interrupts').read() else 'empty')", frozenset({"empty"}), ("masks",),
    ),
)  # fmt: skip

# These need a capability in the box's own user namespace, and so meet a second wall; mounts meet Landlock as a third.
PRIVILEGED = (
    Attack(
        "mount", "a file system of one's choice: kernel attack surface, and a way to cover masked files",
        "tell(called('mount', b'none', b'/tmp', b'tmpfs', 0, None))",
        EPERM, ("seccomp:mount", "capabilities", "landlock"),
    ),
    Attack(
        "mount cgroups", "release_agent and the limits of the box lie in the cgroup file system",
        "tell(called('mount', b'none', b'/tmp', b'cgroup2', 0, None))",
        EPERM, ("seccomp:mount", "capabilities", "landlock"),
    ),
    Attack(
        "umount", "uncovers what lies below: masked files, the directory under a mount",
        "tell(called('umount2', b'/proc/keys', 2))",
        EPERM, ("seccomp:umount2", "capabilities", "landlock"),
    ),
    Attack(
        "pivot_root", "leaves the root behind",
        "tell(called('pivot_root', b'/', b'/'))", EPERM, ("seccomp:pivot_root", "capabilities", "landlock"),
        achieved=frozenset({"EINVAL", "EBUSY", "ok"}),
    ),
    Attack(
        "mount_setattr", "takes a read-only or nosuid mark off a mount",
        "tell(called('mount_setattr', -100, b'/', 0, struct.pack('QQQQ', 0, 1, 0, 0), 32))",
        EPERM, ("seccomp:mount_setattr", "capabilities"),
    ),
    Attack(
        "open_tree", "a detached copy of a mount, without what covers it",
        "tell(called('open_tree', -100, b'/proc', 1))", EPERM, ("seccomp:open_tree", "capabilities", "accounts"),
    ),
    Attack(
        "fsopen", "the new way to mount",
        "tell(called('fsopen', b'tmpfs', 0))", EPERM, ("seccomp:fsopen", "capabilities"),
    ),
    Attack(
        "chroot", "the first half of the classic way out of a chroot, and the box's root is one",
        "tell(called('chroot', b'/tmp'))", EPERM, ("seccomp:chroot", "capabilities"),
    ),
    Attack(
        "unshare", "new namespaces: root in them reaches kernel code that ordinary users do not",
        "tell(called('unshare', 0x04000000))", EPERM, ("seccomp:unshare", "capabilities"),
    ),
    Attack(
        "clone", "as unshare, with clone's flags",
        """
        answer = call("clone", 0x04000000 | 17, None, None, None, None)
        if os.getpid() != PARENT:
            os._exit(0)
        tell(answer if isinstance(answer, str) else "ok")
        """,
        EPERM, ("seccomp:clone", "capabilities"),
    ),
    Attack(
        "setns", "into a namespace of somebody else",
        "tell(called('setns', os.open('/proc/self/ns/uts', os.O_RDONLY), 0))", EPERM, ("seccomp:setns", "capabilities"),
    ),
    Attack(
        "sethostname", "the box's name tells people in which box they are",
        "tell(called('sethostname', b'attacked', 8))", EPERM, ("seccomp:sethostname", "capabilities"),
    ),
    Attack(
        # The magic numbers are wrong, so that nothing would happen even where it is permitted.
        "reboot", "the machine's power",
        "tell(called('reboot', 0, 0, 0, None))", EPERM, ("seccomp:reboot", "capabilities"),
        achieved=frozenset({"EINVAL"}),
    ),
)  # fmt: skip

ALL = (*UNPRIVILEGED, *PRIVILEGED)


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_it_fails(arena: Arena, attack: Attack) -> None:
    """Each row names its threat: what the box's user tries, with every defence in place."""
    with arena.box() as box:
        assert outcome(box, attack.code) in attack.refused, attack.threat


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_control_it_succeeds_without_its_defences(arena: Arena, attack: Attack) -> None:
    with arena.box(*attack.defences) as box:
        answer = outcome(box, attack.code)
    if attack in UNPRIVILEGED and answer in attack.refused and outcome_outside(attack.code) == answer:
        pytest.skip(f"this kernel itself refuses {attack.name} to every ordinary user")
    assert answer in attack.achieved


@pytest.mark.parametrize("attack", PRIVILEGED, ids=lambda attack: attack.name)
def test_each_layer_alone_stops_it(arena: Arena, attack: Attack) -> None:
    """Defence in depth: with one layer left, whichever, the attack still fails."""
    for kept in attack.defences:
        with arena.box(*(set(attack.defences) - {kept})) as box:
            assert outcome(box, attack.code) not in attack.achieved, f"{kept} alone does not stop it"


NESTED = """
import subprocess
def in_child(work):
    child = os.fork()
    if child == 0:
        os._exit(0 if work() in (0, "ok") else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
arguments = struct.pack("QQQQQQQQ", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
def by_clone3():
    answer = call("clone3", arguments, len(arguments))
    if answer == 0:
        os._exit(0)
    return answer if isinstance(answer, str) else "ok"
tell([in_child(lambda: call("unshare", 0x10000000)), in_child(by_clone3)])
"""


def test_nested_user_namespaces(arena: Arena) -> None:
    """Threat: a user namespace inside the box gives all capabilities in it, the start of most kernel exploits.

    Behind the filter stands a kernel rule that cannot be left out: a chrooted process gets none. So the control runs
    outside of any box.
    """
    with arena.box() as box:
        assert outcome(box, NESTED) == [False, False]
    with arena.box("seccomp:unshare", "seccomp:clone3") as box:
        assert outcome(box, NESTED) == [False, False]
    if outcome_outside(NESTED) == [False, False]:
        pytest.skip("this machine gives no user namespaces to ordinary users")
    assert outcome_outside(NESTED) == [True, True]


X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86_64 has the foreign ABIs")


@X86
def test_foreign_abi(arena: Arena, scratch: Path) -> None:
    """Threat: through int 0x80 every number means another call, and the filter would check the wrong table."""
    program = compiled(
        r"""
        #include <stdio.h>
        int main(void) {
            long number = 20; /* getpid in the 32-bit table */
            __asm__ volatile("int $0x80" : "+a"(number));
            printf("%ld\n", number);
            return 0;
        }
        """,
        scratch,
    )
    with arena.box() as box:
        box.files.write("attack", program, mode=0o755)
        died = box.exec(["./attack"])
        assert (died.stdout, died.signal) == ("", 31)
    with arena.box("seccomp:arch") as box:
        box.files.write("attack", program, mode=0o755)
        assert int(box.exec(["./attack"]).stdout) > 1


@X86
def test_x32_numbers(arena: Arena) -> None:
    """Threat: bit 30 selects the x32 table on the same ABI; a filter that compares numbers would not know them.

    Control: without the defence the kernel answers, by the call itself or, built without x32, by ENOSYS. So on such a
    kernel it is shown who refuses, and in tests/linux/test_seccomp.py that the filter refuses every such number.
    """
    code = "tell([called(0x40000000 | 39), called(0x40000000 | NUMBERS['keyctl'], 0, -3, 1)])"
    with arena.box() as box:
        assert outcome(box, "tell(called(39))") == "ok", "the same number without the bit works"
        for number in (39, NUMBERS[platform.machine()]["keyctl"]):
            died = box.exec(python("tell(called(number, 0, -3, 1))", number=0x40000000 | number))
            assert (died.stdout, died.signal) == ("", signal.SIGSYS)
            assert died.verdict.cause == "syscall_denied"
    with arena.box("seccomp:x32") as box:
        assert outcome(box, code) in (["ENOSYS"] * 2, ["ok"] * 2)


SYSCTLS = """
def writable(path):
    return tried(lambda: os.close(os.open(path, os.O_WRONLY)))  # opened, never written to
tell([writable(f"/proc/sys/{name}") for name in ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory",
    "net/ipv4/ip_forward")])
"""


def test_sysctls(arena: Arena) -> None:
    """Threat: core_pattern names a program that the host's root runs; other sysctls change the whole machine.

    Two layers: the host's own files belong to the host's root, and /proc/sys is read-only. What belongs to the box's
    namespaces shows the second layer alone, to a root of the box with all capabilities.
    """
    with arena.box() as box:
        assert set(outcome(box, SYSCTLS)) <= {"EACCES", "EROFS"}
    with arena.box("capabilities") as box:
        answers = outcome(box, SYSCTLS)
        assert answers[3] == "EROFS"
        assert set(answers) <= {"EACCES", "EROFS"}
    with arena.box("masks", "capabilities") as box:
        answers = outcome(box, SYSCTLS)
        assert answers[3] == "ok", "the box's own network namespace"
        assert answers[0] == answers[2] == "EACCES", "what is the host's stays the host's, even for root of the box"


def test_no_sys_and_no_cgroups_are_visible(arena: Arena) -> None:
    """Threat: devices in /sys, release_agent and limits in /sys/fs/cgroup. Mounting is an attack of its own, above;
    sysfs cannot be mounted even by root of the box, because none is visible there (a kernel rule)."""
    code = """
        kinds = {line.split(" - ")[1].split()[0] for line in open("/proc/self/mountinfo")}
        tell([os.listdir("/sys"), sorted(kinds & {"cgroup", "cgroup2", "sysfs", "debugfs", "tracefs", "securityfs"})])
    """
    with arena.box() as box:
        assert outcome(box, code) == [[], []]
    assert outcome_outside(code)[1], "control: outside, the same look finds them"


DEVICES = """
found = []
for top, _, names in os.walk("/", onerror=lambda error: None):
    if top.startswith("/proc"):
        continue
    for name in names:
        mode = os.lstat(os.path.join(top, name)).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            found.append(os.path.join(top, name))
tell(sorted(found))
"""


def test_only_harmless_devices_exist(arena: Arena) -> None:
    """Threat: /dev/mem, disks, kmsg. The walk finds the harmless ones, so it would find the others."""
    harmless = ["/dev/full", "/dev/null", "/dev/pts/ptmx", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"]
    with arena.box() as box:
        assert outcome(box, DEVICES) == harmless


MKNOD = """
tell([tried(os.mknod, f"{place}/{kind}", 0o600 | kind, os.makedev(1, 5)) for kind in (stat.S_IFCHR, stat.S_IFBLK)])
"""


def test_mknod(arena: Arena, sentinel: Sentinel) -> None:
    """Threat: a box makes a node of the host's disk. A kernel rule, with or without capabilities in the box."""
    for without in ((), ("capabilities",), ("capabilities", "seccomp", "landlock")):
        with arena.box(*without) as box:
            assert outcome(box, MKNOD, place="/tmp") == ["EPERM", "EPERM"]
    assert sentinel.unchanged()


def test_control_mknod_as_the_hosts_root(scratch: Path, rootless: bool) -> None:
    """The capability of the host's root is what a box lacks. The nodes are made in a tmpfs that nobody else sees."""
    if rootless:
        pytest.skip("needs root: an ordinary user can make no node anywhere, in no namespace (mknod(2))")
    private = f'mount -t tmpfs -o mode=0700,size=64k,nodev attack {scratch} && exec "$@"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", private, "sh"]
    done = subprocess.run(
        [*command, *python(MKNOD, place=str(scratch))], capture_output=True, text=True, timeout=60, check=False
    )
    assert json.loads(done.stdout) == ["ok", "ok"], done.stderr
    assert list(scratch.iterdir()) == []


def test_device_nodes_in_mounted_directories(arena: Arena, scratch: Path, rootless: bool) -> None:
    """Threat: a node that somebody left in a directory which is mounted into a box."""
    if rootless:
        pytest.skip("needs root: makes a device node for the control")
    os.mknod(scratch / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    (scratch / "zero").chmod(0o666)
    code = "tell(tried(open, '/mnt/zero', 'rb'))"
    mounts = [f"{scratch}:/mnt:ro"]
    with arena.box(mounts=mounts) as box:
        assert outcome(box, code) == "EACCES"
    with arena.box("mount flags", mounts=mounts) as box:
        assert outcome(box, code) == "ok"


def test_host_name(arena: Arena) -> None:
    """Threat: the host's name leaks into the box; or changing the box's name changes the host's (see sethostname)."""
    ours = socket.gethostname()
    with arena.box() as box:
        assert outcome(box, "tell(socket.gethostname())") == box.id[:12] != ours
    with arena.box("seccomp:sethostname", "capabilities") as box:
        assert outcome(box, "tell([called('sethostname', b'attacked', 8), socket.gethostname()])") == ["ok", "attacked"]
    assert socket.gethostname() == ours
