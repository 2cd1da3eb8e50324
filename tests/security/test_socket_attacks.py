"""Attacks through sockets: protocols and options that no program needs, and memory of the kernel that nobody counts.

Kernel surface is closed by the filter. Memory: what lies unread or unsent in a socket's buffers is the kernel's, and a
box must not get around its limit by it.
"""

import os

import pytest
from tests.security.attacks import Arena, Attack, outcome, outcome_outside, python

from hutch.providers.native import probe

NO_PROTOCOL = frozenset({"EPROTONOSUPPORT"})
NO_OPTION = frozenset({"ENOPROTOOPT"})

SURFACE = (
    Attack(
        "mptcp", "a second TCP on top of the first, with bugs of its own",
        "tell(tried(socket.socket, 2, socket.SOCK_STREAM, 262))", NO_PROTOCOL, ("seccomp:socket",),
    ),
    Attack(
        "sctp", "as MPTCP; the kernel loads it as a module for whoever asks",
        "tell(tried(socket.socket, 2, socket.SOCK_STREAM, 132))", NO_PROTOCOL, ("seccomp:socket",),
    ),
    Attack(
        "sctp by its type", "the default protocol of this type is SCTP",
        "tell(tried(socket.socket, 10, socket.SOCK_SEQPACKET, 0))", NO_PROTOCOL, ("seccomp:socket",),
        achieved=frozenset({"ok", "ESOCKTNOSUPPORT"}),
    ),
    Attack(
        "udp-lite", "as MPTCP",
        "tell(tried(socket.socket, 2, socket.SOCK_DGRAM, 136))", NO_PROTOCOL, ("seccomp:socket",),
    ),
    Attack(
        "smc", "shared memory between machines",
        "tell(tried(socket.socket, 43, socket.SOCK_STREAM, 0))", frozenset({"EAFNOSUPPORT"}), ("seccomp:socket",),
    ),
    Attack(
        "smc as a protocol of ip", "as SMC",
        "tell(tried(socket.socket, 2, socket.SOCK_STREAM, 256))", NO_PROTOCOL, ("seccomp:socket",),
    ),
    Attack(
        "xdp sockets", "rings that the kernel shares with a process: attack surface",
        "tell(tried(socket.socket, 44, socket.SOCK_RAW, 0))", frozenset({"EAFNOSUPPORT"}), ("seccomp:socket",),
        achieved=frozenset({"EPERM"}),
    ),
    Attack(
        "urgent data", "urgent bytes of a Unix socket: use after free (CVE-2025-38236)",
        """
        one, other = socket.socketpair()
        answers = {tried(one.send, b"x", socket.MSG_OOB), tried(one.sendmsg, [b"x"], [], socket.MSG_OOB)}
        tell(answers.pop() if len(answers) == 1 else sorted(answers))
        """,
        frozenset({"ENOTSUP", "EOPNOTSUPP"}), ("seccomp:sendto", "seccomp:sendmsg"),
    ),
    Attack(
        "upper protocols", "TLS in the kernel: use after free (CVE-2023-0461)",
        """
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
            tell(tried(client.setsockopt, 6, 31, b"tls"))
        """,
        NO_OPTION, ("seccomp:setsockopt",), achieved=frozenset({"ok", "ENOENT"}),
    ),
    Attack(
        "flow labels", "a table for the whole machine, and memory of an earlier box in a namespace that is used again",
        """
        request = bytes(15) + b"\\x01" + struct.pack("=IBBHHHI", socket.htonl(0x12345), 0, 1, 1, 6, 0, 0)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            tell(tried(sock.setsockopt, 41, 32, request))
        """,
        NO_OPTION, ("seccomp:setsockopt",),
    ),
    Attack(
        "corked datagrams", "kernel memory that nobody is charged for",
        "tell(tried(socket.socket(2, socket.SOCK_DGRAM).setsockopt, 17, 1, 1))", NO_OPTION, ("seccomp:setsockopt",),
    ),
    Attack(
        "line disciplines", "drivers of serial protocols in the kernel, for any pseudoterminal",
        "tell(tried(fcntl.ioctl, os.openpty()[1], 0x5423, struct.pack('i', 0)))", frozenset({"EPERM"}),
        ("seccomp:ioctl",),
    ),
    Attack(
        "asynchronous i/o", "one count for the whole machine (fs.aio-max-nr), which one box could use up",
        "tell(called('io_setup', 1, ctypes.byref(ctypes.c_ulong())))", frozenset({"ENOSYS"}), ("seccomp:io_setup",),
    ),
)  # fmt: skip


def test_what_no_program_needs_is_refused(arena: Arena) -> None:
    """Finding: MSG_OOB, SCTP, MPTCP, SMC, TIOCSETD pass the filter. Threat: kernel code that is rarely used."""
    with arena.box() as box:
        for attack in SURFACE:
            assert outcome(box, attack.code) in attack.refused, f"{attack.name}: {attack.threat}"


def test_control_without_the_filter_they_succeed(arena: Arena) -> None:
    absent = []
    with arena.box(*{defence for attack in SURFACE for defence in attack.defences}) as box:
        for attack in SURFACE:
            answer = outcome(box, attack.code)
            if answer not in attack.achieved:
                assert answer == outcome_outside(attack.code), f"{attack.name}: {answer}"
                absent.append(attack.name)
    assert len(absent) < len(SURFACE) / 2, f"this kernel has none of {', '.join(absent)}"
    if absent:
        pytest.skip(f"this kernel itself refuses to every ordinary user: {', '.join(absent)}; the others succeeded")


UNREAD = """
    links = struct.pack("=IHHIIB19x", 36, 18, 0x301, 1, 0, 0)  # RTM_GETLINK of all interfaces
    held, waiting = [], 0
    while len(held) < most:
        try:
            held.append(socket.socket(16, socket.SOCK_RAW, 0))
        except OSError as error:
            refused = errno.errorcode[error.errno]
            break
        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        held[-1].setblocking(False)
        for _ in range(1000):
            tried(held[-1].send, links)
        waiting = sum(int(line.split()[4]) for line in open("/proc/net/netlink").readlines()[1:])
    else:
        refused = ""
    tell([len(held), refused, waiting >> 20])
"""


def test_netlink_answers_that_nobody_reads_are_bounded(arena: Arena) -> None:
    """Finding: 376 MB of the host under a ceiling of 80 MB, because no control group counts them. A box has eight such
    sockets at a time, whose buffers nobody can enlarge. Control: the same code, bounded by its own count."""
    with arena.box() as box:
        opened, refused, waiting = outcome(box, UNREAD, most=20)
        assert (opened, refused) == (8, "ENOBUFS")
        assert waiting <= 4
    with arena.box("seccomp:socket", "seccomp:setsockopt") as control:
        opened, refused, waiting = outcome(control, UNREAD, most=20)
        assert (opened, refused) == (20, "")
        assert waiting >= 10


INTERFACES = """
    def names():
        return [name for _, name in socket.if_nameindex()]
    import threading
    found = []
    threads = [threading.Thread(target=lambda: found.extend(names() for _ in range(20))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [socket.socket(16, socket.SOCK_RAW, 0) for _ in range(8)]
    while held:
        held.pop().close()
    tell([len(found), sorted({name for each in found for name in each}), names()])
"""


def test_programs_still_see_their_interfaces(arena: Arena) -> None:
    """Node's os.networkInterfaces, `ip` and getifaddrs ask routing netlink; many at once wait for their turn."""
    with arena.box() as box:
        found = outcome(box, INTERFACES)
        assert (found[0], found[2]) == (200, ["lo"])
        if os.geteuid() == 0:
            assert outcome(box, INTERFACES, user="root")[0] == 200


HELD = """
    def held(*names):
        rows = [line.split() for name in names for line in open("/proc/net/" + name).readlines()[1:]]
        return sum(int(part, 16) for row in rows for part in row[4].split(":"))
"""
DATAGRAMS = (
    HELD
    + """
    kept = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while len(kept) < 700:
            kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            kept[-1].bind(("127.0.0.1", 0))
            for _ in range(6):
                tried(sender.sendto, bytes(60000), kept[-1].getsockname())
    print(held("udp") >> 20, flush=True)
    time.sleep(hold)
"""
)
STREAMS = (
    HELD
    + """
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        while len(kept) < 600 and held("tcp") < 128 << 20:
            kept += [socket.create_connection(server.getsockname()), server.accept()[0]]
            kept[-2].setblocking(False)
            while tried(kept[-2].send, bytes(1 << 20)) == "ok":
                pass
    print(held("tcp") >> 20, flush=True)
    time.sleep(hold)
"""
)
UNACCEPTED = (
    HELD
    + """
    kept = []
    while held("tcp") < 128 << 20:
        kept.append(socket.create_server(("127.0.0.1", 0), backlog=4096))
        for _ in range(100):
            with socket.socket() as client:
                client.setblocking(False)
                tried(client.connect, kept[-1].getsockname())
                tried(client.send, bytes(1 << 18))
    print(held("tcp") >> 20, flush=True)
    time.sleep(hold)
"""
)
SMALL = {"memory_mb": 64, "disk_mb": 16, "open_files": 1024}
LARGE = {"memory_mb": 1400, "disk_mb": 16, "open_files": 1024}
"""A group of version 1 counts an eighth of it for sockets, beside all other memory."""


@pytest.mark.parametrize("bomb", [DATAGRAMS, STREAMS], ids=["udp", "tcp"])
def test_the_buffers_of_sockets_count_as_memory(arena: Arena, bomb: str) -> None:
    """Finding: under a ceiling of 80 MB UDP took 415 MB of the host and TCP 135 MB (control groups of version 1). Now
    the kernel refuses more, or the box's processes pay. Each bomb ends by itself at 130 MB, which is the control."""
    watched = not probe.look().cgroups.memory
    with arena.box(**SMALL) as box:
        result = box.exec(python(bomb, hold=30 if watched else 0), timeout=60)
        assert result.verdict.cause == "oom" or int(result.stdout) < 80, result
        assert box.exec("echo alive").stdout == "alive\n"
    with arena.box(**LARGE) as control:
        assert int(control.exec(python(bomb, hold=0), timeout=60).stdout) > 100


def test_connections_that_nobody_accepts(arena: Arena) -> None:
    """What was sent to them no control group counts (Linux 6.18), so that a watchdog does. The bomb ends by itself at
    128 MB, which is the control."""
    with arena.box(**SMALL) as box:
        assert box.exec(python(UNACCEPTED, hold=30), timeout=60).verdict.cause == "oom"
        assert box.exec("echo alive").stdout == "alive\n"
    with arena.box(**LARGE) as control:
        assert int(control.exec(python(UNACCEPTED, hold=0), timeout=60).stdout) > 100
