"""The system call filter: what it decides (both machines, every number), and what real programs then meet."""

import errno
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.linux.bpf_machine import evaluate

from hutch.linux import kernel, seccomp
from hutch.linux.seccomp import Action
from hutch.linux.syscall_numbers import AUDIT_ARCH, NUMBERS

MACHINES = sorted(NUMBERS)
I386, ARM = 0x40000003, 0x40000028
PROGRAMS = {machine: seccomp.program(machine) for machine in MACHINES}
words = st.integers(0, 2**64 - 1)
flag_words = words | st.integers(0, 63).map(lambda bit: 1 << bit)
upper_halves = st.integers(0, 2**32 - 1).map(lambda half: half << 32)


def decide(machine: str, name: str, *arguments: int, allow: frozenset[str] = frozenset()) -> int:
    program = seccomp.program(machine, allow=allow) if allow else PROGRAMS[machine]
    return evaluate(program, AUDIT_ARCH[machine], NUMBERS[machine][name], arguments)


# ---- the tables


def test_numbers_agree_with_the_headers_of_this_machine() -> None:
    """A shifted table would allow the wrong calls: the kernel's own header is the judge."""
    headers = [
        Path("/usr/include") / kind / "asm/unistd_64.h" for kind in ("x86_64-linux-gnu", "", "aarch64-linux-gnu")
    ]
    header = next((path for path in headers if path.exists()), None)
    if header is None:
        pytest.skip("no kernel headers (linux-libc-dev) on this machine")
    found = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text())}
    known = NUMBERS[kernel.MACHINE]
    assert {name: number for name, number in found.items() if name in known} == {
        name: number for name, number in known.items() if name in found
    }
    assert len(found.keys() & known.keys()) > 300


def test_generic_numbers_agree_with_the_generic_header() -> None:
    """aarch64 uses the generic table, whose header is installed on every machine with kernel headers."""
    header = Path("/usr/include/asm-generic/unistd.h")
    if not header.exists():
        pytest.skip("no kernel headers (linux-libc-dev) on this machine")
    found = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", header.read_text())}
    # The header's 64-bit names of these are made by further macros.
    found["newfstatat"] = found.pop("fstatat")
    known = NUMBERS["aarch64"]
    shared = found.keys() & known.keys()
    assert len(shared) > 290
    assert {name: found[name] for name in shared} == {name: known[name] for name in shared}


def test_numbers_agree_with_the_bindings() -> None:
    assert kernel.NR.items() <= NUMBERS[kernel.MACHINE].items()


def test_each_call_has_one_rule() -> None:
    assert not seccomp.ALLOWED & seccomp.REFUSED
    assert not seccomp.CHECKED & (seccomp.ALLOWED | seccomp.REFUSED)
    known = frozenset[str]().union(*NUMBERS.values())
    assert known >= seccomp.ALLOWED | seccomp.REFUSED | seccomp.CHECKED


# ---- the decision, in a simulated machine


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_gets_the_answer_of_its_table(machine: str) -> None:
    """Numbers 0 to 1024, known or not. With zeros as arguments the checked calls are allowed, but socket(AF_UNSPEC)."""
    names = {number: name for name, number in NUMBERS[machine].items()}
    for number in range(1025):
        name = names.get(number, "")
        expected = Action.ENOSYS
        if name in seccomp.ALLOWED | seccomp.CHECKED:
            expected = Action.ALLOW
        if name in ("socket", "socketpair"):
            expected = Action.EAFNOSUPPORT
        if name in seccomp.REFUSED:
            expected = Action.EPERM
        assert evaluate(PROGRAMS[machine], AUDIT_ARCH[machine], number) == expected, f"{number} {name}"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_asks_nothing_where_no_guest_answers(machine: str) -> None:
    """A launcher that loads the filter for its own programs has no guest that would permit a netlink socket."""
    program = seccomp.program(machine, asks=False)
    number = NUMBERS[machine]["socket"]
    assert evaluate(program, AUDIT_ARCH[machine], number, (16, 3, 0)) == Action.ALLOW
    assert evaluate(program, AUDIT_ARCH[machine], number, (16, 3, 9)) == Action.EAFNOSUPPORT


@pytest.mark.parametrize("machine", MACHINES)
def test_what_must_never_be_reachable(machine: str) -> None:
    """Written out by hand, so that an edit of the groups cannot quietly open one of these."""
    refused = """mount umount2 pivot_root chroot setns open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
        keyctl add_key request_key bpf perf_event_open userfaultfd ptrace process_vm_readv process_vm_writev kcmp
        pidfd_getfd open_by_handle_at name_to_handle_at kexec_load init_module finit_module reboot swapon settimeofday
        clock_settime adjtimex acct quotactl syslog sethostname setdomainname"""
    for name in refused.split():
        assert decide(machine, name) == Action.EPERM, name
    for name in ["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_secret"]:
        assert decide(machine, name) == Action.ENOSYS, name


@given(machine=st.sampled_from(MACHINES), number=st.integers(0x400, 2**32 - 1), arguments=st.tuples(*[words] * 6))
def test_unknown_numbers_do_not_exist(machine: str, number: int, arguments: tuple[int, ...]) -> None:
    """Includes -1. The x32 ABI shares x86_64's arch and sets bit 30; as any foreign ABI it is killed."""
    x32 = machine == "x86_64" and 0x40000000 <= number < 2**32 - 1
    expected = Action.KILL if x32 else Action.ENOSYS
    assert evaluate(PROGRAMS[machine], AUDIT_ARCH[machine], number, arguments) == expected


@pytest.mark.parametrize("number", [0x40000000, 0x40000000 | 39, 0x40000000 | 547, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF])
def test_x32_numbers_at_their_bounds(number: int) -> None:
    """With the defence left out they are let through, and nothing else is."""
    arch = AUDIT_ARCH["x86_64"]
    is_call = number != 0xFFFFFFFF
    assert evaluate(PROGRAMS["x86_64"], arch, number) == (Action.KILL if is_call else Action.ENOSYS)
    holed = seccomp.program("x86_64", allow=frozenset({"x32"}))
    assert evaluate(holed, arch, number) == (Action.ALLOW if is_call else Action.ENOSYS)
    assert evaluate(holed, arch, NUMBERS["x86_64"]["keyctl"]) == Action.EPERM
    assert evaluate(holed, arch, 0x3FFFFFFF) == Action.ENOSYS


@given(
    machine=st.sampled_from(MACHINES),
    arch=st.sampled_from([I386, ARM, *AUDIT_ARCH.values()]) | st.integers(0, 2**32 - 1),
    number=st.integers(0, 600),
)
def test_a_foreign_abi_is_killed(machine: str, arch: int, number: int) -> None:
    killed = evaluate(PROGRAMS[machine], arch, number) == Action.KILL
    assert killed == (arch != AUDIT_ARCH[machine])


@given(machine=st.sampled_from(MACHINES), flags=flag_words)
def test_no_new_namespaces(machine: str, flags: int) -> None:
    names = ("NEWNS", "NEWCGROUP", "NEWUTS", "NEWIPC", "NEWUSER", "NEWPID", "NEWNET")
    asks = any(flags & getattr(kernel, f"CLONE_{name}") for name in names)
    assert decide(machine, "clone", flags) == (Action.EPERM if asks else Action.ALLOW)
    asks = asks or bool(flags & kernel.CLONE_NEWTIME)
    assert decide(machine, "unshare", flags) == (Action.EPERM if asks else Action.ALLOW)


@given(
    machine=st.sampled_from(MACHINES),
    family=st.sampled_from([1, 2, 10, 16]) | st.integers(0, 64),
    kind=st.integers(0, 12).map(lambda kind: kind | 0o2004000) | words,
    protocol=st.sampled_from([0, 1, 6, 17, 33, 58, 115, 132, 136, 255, 256, 262]) | words,
    upper=upper_halves,
)
def test_socket_families(machine: str, family: int, kind: int, protocol: int, upper: int) -> None:
    """UNIX, and INET and INET6 with their usual types and protocols: no SCTP, MPTCP, DCCP, SMC. Rubbish in the upper
    half, which the kernel drops, changes nothing."""
    expected = Action.EAFNOSUPPORT
    if family == 1:
        expected = Action.ALLOW
    elif family in (2, 10):
        usual = kind & 0xF in (0, 1, 2, 3) and protocol & 0xFFFFFFFF in (0, 1, 6, 17, 58)
        expected = Action.ALLOW if usual else Action.EPROTONOSUPPORT
    elif family == 16 and protocol & 0xFFFFFFFF == 0:
        expected = Action.ASK
    for name in ("socket", "socketpair"):
        assert decide(machine, name, family | upper, kind, protocol) == expected


@given(
    machine=st.sampled_from(MACHINES),
    level=st.sampled_from([0, 1, 6, 17, 41]) | words,
    option=st.integers(0, 120) | words,
    upper=upper_halves,
)
def test_socket_options(machine: str, level: int, option: int, upper: int) -> None:
    """TCP_ULP, UDP_CORK, UDP_ENCAP, IPV6_FLOWLABEL_MGR; and SO_RCVBUF, which does nothing."""
    asked = (level & 0xFFFFFFFF, option & 0xFFFFFFFF)
    refused = asked in {(6, 31), (17, 1), (17, 100), (41, 32)}
    expected = Action.ENOPROTOOPT if refused else Action.NOTHING if asked == (1, 8) else Action.ALLOW
    assert decide(machine, "setsockopt", 3, level | upper, option) == expected


@given(machine=st.sampled_from(MACHINES), flags=flag_words, others=st.tuples(*[words] * 3))
def test_urgent_data(machine: str, flags: int, others: tuple[int, int, int]) -> None:
    """MSG_OOB, wherever a call has its flags."""
    expected = Action.EOPNOTSUPP if flags & 1 else Action.ALLOW
    for name in ("sendto", "recvfrom", "sendmmsg", "recvmmsg"):
        assert decide(machine, name, *others, flags) == expected, name
    for name in ("sendmsg", "recvmsg"):
        assert decide(machine, name, *others[:2], flags, others[2]) == expected, name


@given(
    machine=st.sampled_from(MACHINES),
    request=st.sampled_from([0x5412, 0x541C, 0x541D, 0x5423, 0x5437, 0x5457, 0x5401, 0x5413])
    | st.integers(0, 2**32 - 1),
    upper=upper_halves,
)
def test_no_process_takes_over_a_terminal(machine: str, request: int, upper: int) -> None:
    """TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, TIOCVHANGUP, TIOCSLCKTRMIOS."""
    refused = request in (0x5412, 0x541C, 0x541D, 0x5423, 0x5437, 0x5457)
    expected = Action.EPERM if refused else Action.ALLOW
    assert decide(machine, "ioctl", 0, request | upper) == expected


@given(machine=st.sampled_from(MACHINES), pid=st.integers(0, 3) | st.integers(0, 2**32 - 1), upper=upper_halves)
def test_limits_only_of_oneself(machine: str, pid: int, upper: int) -> None:
    assert decide(machine, "prlimit64", pid | upper) == (Action.EPERM if pid else Action.ALLOW)


@given(
    machine=st.sampled_from(MACHINES),
    value=st.sampled_from([0, 8, 0x20000, 0x20008, 0xFFFFFFFF, 0x0040000, 0x0400000]) | st.integers(0, 2**32 - 1),
    upper=upper_halves,
)
def test_personalities(machine: str, value: int, upper: int) -> None:
    allowed = value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)
    assert decide(machine, "personality", value | upper) == (Action.ALLOW if allowed else Action.EPERM)


@given(data=st.data(), machine=st.sampled_from(MACHINES), arguments=st.tuples(*[words] * 6))
def test_a_defence_that_is_switched_off_changes_nothing_else(
    data: st.DataObject, machine: str, arguments: tuple[int, ...]
) -> None:
    """The attack suite's controls: what is named is allowed whatever its arguments, all else stays as it was."""
    table = NUMBERS[machine]
    allow = data.draw(st.frozensets(st.sampled_from(sorted(table)), max_size=40))
    program = seccomp.program(machine, allow=allow)
    for name, number in table.items():
        usual = evaluate(PROGRAMS[machine], AUDIT_ARCH[machine], number, arguments)
        expected = Action.ALLOW if name in allow else usual
        assert evaluate(program, AUDIT_ARCH[machine], number, arguments) == expected, name


@pytest.mark.parametrize("machine", MACHINES)
def test_allowing_the_last_known_call_opens_nothing_above_it(machine: str) -> None:
    name, number = max(NUMBERS[machine].items(), key=lambda entry: entry[1])
    program = seccomp.program(machine, allow=frozenset({name}))
    answers = [evaluate(program, AUDIT_ARCH[machine], called) for called in (number, number + 1, 2**32 - 1)]
    assert answers == [Action.ALLOW, Action.ENOSYS, Action.ENOSYS]


def test_foreign_abis_can_be_let_through_for_a_control() -> None:
    assert evaluate(seccomp.program("x86_64", allow=frozenset({"arch"})), I386, 20) == Action.ALLOW


def test_a_misspelt_control_is_an_error() -> None:
    with pytest.raises(ValueError, match="keyctrl"):
        seccomp.program("x86_64", allow=frozenset({"keyctrl"}))


def test_another_machine_is_named() -> None:
    with pytest.raises(LookupError, match="riscv64"):
        seccomp.program("riscv64")


# ---- real processes under the real filter

CHILD = """
import ctypes, errno, os, signal, socket, subprocess, sys, threading
from hutch.linux import kernel, seccomp
from hutch.linux.syscall_numbers import NUMBERS
kernel.NR.update(NUMBERS[kernel.MACHINE])

def answer(name, *arguments):
    try:
        kernel.syscall(name, *arguments)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]

kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
if {filtered}:
    listener = seccomp.Filter(seccomp.program(allow=frozenset({allow}))).load()
"""


def run(code: str, *, filtered: bool = True, allow: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python `code` in a process of its own that has loaded the filter."""
    script = CHILD.format(filtered=filtered, allow=allow) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def output(code: str, *, filtered: bool = True, allow: tuple[str, ...] = ()) -> str:
    done = run(code, filtered=filtered, allow=allow)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_refused_calls_answer_with_an_errno() -> None:
    printed = output("""
        print(answer("unshare", kernel.CLONE_NEWUSER), answer("unshare", kernel.CLONE_NEWNS), answer("unshare", 0))
        print(answer("clone", kernel.CLONE_NEWUSER | kernel.SIGCHLD, 0, 0, 0, 0))
        print(answer("keyctl", 0, -3, 0), answer("bpf", 0, 0, 0), answer("ptrace", 0, 0, 0, 0))
        print(answer("mount", b"x", b"/nowhere", b"tmpfs", 0, 0), answer("chroot", b"/"), answer("setns", 0, 0))
        print(answer("clone3", 0, 0), answer("io_uring_setup", 1, 0), answer("memfd_secret", 0))
        print(answer("prlimit64", os.getppid(), 7, 0, 0), answer("prlimit64", 0, 7, 0, 0))
        print(answer("personality", 0x0040000), answer("personality", 0xFFFFFFFF))
    """)
    assert printed.split("\n") == [
        "EPERM EPERM ok",
        "EPERM",
        "EPERM EPERM EPERM",
        "EPERM EPERM EPERM",
        "ENOSYS ENOSYS ENOSYS",
        "EPERM ok",
        "EPERM ok",
        "",
    ]


def test_without_the_filter_the_same_calls_are_answered_by_the_kernel() -> None:
    """The control: the answers above come from the filter, not from a kernel that refuses them anyway."""
    code = 'print(answer("keyctl", 0, -3, 0), answer("clone3", 0, 0), answer("prlimit64", os.getppid(), 7, 0, 0))'
    assert output(code, filtered=False) == "ok EINVAL ok\n"
    assert output(code, allow=("keyctl", "clone3", "prlimit64")) == "ok EINVAL ok\n"


def test_socket_families_for_real() -> None:
    printed = output("""
        def made(family, protocol=0, kind=socket.SOCK_DGRAM):
            try:
                socket.socket(family, kind, protocol).close()
                return "ok"
            except OSError as error:
                return errno.errorcode[error.errno]
        print(made(40, kind=socket.SOCK_STREAM), made(38, kind=socket.SOCK_SEQPACKET), made(17, kind=socket.SOCK_RAW))
        print(made(1), made(2), made(16, 9), made(2, 262, socket.SOCK_STREAM), made(2, 0, socket.SOCK_SEQPACKET))
        os.close(listener)  # nobody answers any more
        print(made(16))
        a, b = socket.socketpair()
        print(*socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)[0][-1][:2])
    """)
    assert printed.splitlines()[:3] == [
        "EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT",
        "ok ok EAFNOSUPPORT EPROTONOSUPPORT EPROTONOSUPPORT",
        "ENOSYS",
    ]
    assert printed.splitlines()[3] in ("::1 80", "127.0.0.1 80"), "names are found without routing netlink"


def test_nothing_can_be_typed_into_the_terminal() -> None:
    printed = output("""
        import fcntl, pty, termios
        keeper, terminal = pty.openpty()
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))
        try:
            fcntl.ioctl(terminal, termios.TIOCSTI, b"x")
        except OSError as error:
            print(errno.errorcode[error.errno])
    """)
    assert printed == "EPERM\n"


def test_programs_work() -> None:
    """Threads, subprocesses (vfork and fork), a shell, asyncio, multiprocessing: what every agent uses."""
    printed = output("""
        import asyncio, multiprocessing
        seen = []
        threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(sorted(seen))
        print(subprocess.run(["bash", "-c", "for i in 1 2; do echo $i | cat; done; sleep 0 & wait"],
                             capture_output=True, text=True, check=True).stdout.split())
        print(subprocess.run(["true"], preexec_fn=os.setsid).returncode)
        async def both():
            process = await asyncio.create_subprocess_exec("echo", "hi", stdout=-1)
            return (await process.communicate())[0]
        print(asyncio.run(both()))
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
    """)
    assert printed == "[0, 1, 2, 3]\n['1', '2']\n0\nb'hi\\n'\n[1, 2]\n"


def test_the_filter_is_inherited() -> None:
    printed = output("""
        print(subprocess.run(["unshare", "--user", "true"], capture_output=True, text=True).stderr)
    """)
    assert "Operation not permitted" in printed


# `mov eax, 20; int 0x80; ret`: getpid of the 32-bit ABI from a 64-bit program.
FOREIGN_CALL = """
    import mmap
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(bytes.fromhex("b814000000cd80c3"))
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    print(call() == os.getpid(), flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(kernel.MACHINE != "x86_64", reason="int 0x80 is x86_64's way into the 32-bit ABI")
def test_a_foreign_abi_call_kills_the_process() -> None:
    """Foreign ABIs are killed. Its numbers mean other calls, so a filter by number would be void there."""
    done = run(FOREIGN_CALL)
    assert (done.returncode, done.stdout) in ((-signal.SIGSYS, ""), (-signal.SIGSEGV, ""))
    # The control: where the kernel has the 32-bit ABI at all, the same call is answered, so the filter killed it.
    control = run(FOREIGN_CALL, filtered=False)
    if control.returncode == -signal.SIGSEGV:
        pytest.skip("this kernel is built without the 32-bit ABI (CONFIG_IA32_EMULATION)")
    assert control.stdout == "True\n"
    assert done.returncode == -signal.SIGSYS
    assert output(FOREIGN_CALL, allow=("arch",)) == "True\n"


@pytest.mark.skipif(kernel.MACHINE != "x86_64", reason="x32 belongs to x86_64")
def test_an_x32_call_kills_the_process() -> None:
    """Also where the kernel itself has no x32; the control is answered by the kernel: ENOSYS, or the call is done."""
    code = 'kernel.NR["x32"] = 0x40000000 | 39; print(answer("x32"))'
    done = run(code)
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "")
    assert output(code, allow=("x32",)) in ("ENOSYS\n", "ok\n")
    assert output('kernel.NR["none"] = -1; print(answer("none"))') == "ENOSYS\n"


def test_loading_needs_no_new_privs() -> None:
    """An ordinary user without no_new_privs gets an error from the kernel; the wrapper names the call."""
    code = """
        from hutch.linux import kernel, seccomp
        kernel.run_calls([kernel.capset_call(0)])
        try:
            seccomp.Filter(seccomp.program()).load()
        except OSError as error:
            print(error.errno, error.filename)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{errno.EACCES} seccomp\n"


def test_the_filter_is_small() -> None:
    """Jumps reach 255 instructions, and the load cost in every box's start grows with the length."""
    for program in PROGRAMS.values():
        assert len(program) // 8 < 200
