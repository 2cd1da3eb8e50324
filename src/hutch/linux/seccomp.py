"""The system call filter of every process in a box, as bytes of classic BPF.

It is an allow-list in the spirit of Docker's default profile, stricter where a box has no use for a call. A refused
call gets an errno, so that programs can fall back or report. Only a foreign ABI is killed (int 0x80 on x86_64, 32-bit
programs): there every number means another call, and no errno is safe to give. The same filter serves `user=root`
processes: their few capabilities need no call that the ordinary user is refused.

`program()` is pure and runs once in the spawner; `Filter.load()` is one system call in the fork that becomes a
guest. Children inherit the filter and cannot remove it. Standard library only.
"""

import ctypes
import enum
import errno
import struct
from typing import NamedTuple

from hutch.linux import kernel
from hutch.linux.kernel import Call
from hutch.linux.syscall_numbers import AUDIT_ARCH, NUMBERS


class Action(enum.IntEnum):
    """What the filter answers (SECCOMP_RET_*; the low half of an errno answer is the errno)."""

    ALLOW = 0x7FFF0000
    KILL = 0x80000000
    ASK = 0x7FC00000
    """The guest decides (`netlink_permits`). Where nobody listens, the kernel answers ENOSYS."""
    NOTHING = 0x00050000
    """The call is not made and reports success."""
    EPERM = 0x00050000 | errno.EPERM
    ENOSYS = 0x00050000 | errno.ENOSYS
    EAFNOSUPPORT = 0x00050000 | errno.EAFNOSUPPORT
    EPROTONOSUPPORT = 0x00050000 | errno.EPROTONOSUPPORT
    EOPNOTSUPP = 0x00050000 | errno.EOPNOTSUPP
    ENOPROTOOPT = 0x00050000 | errno.ENOPROTOOPT


# Allowed whatever the arguments. A call that is in none of the tables below answers ENOSYS.
_ALLOWED: dict[str, str] = {
    "reading and writing open files": """
        read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2
        dup3 fcntl flock fsync fdatasync sync syncfs sync_file_range ftruncate fallocate fadvise64 readahead
        sendfile splice tee vmsplice copy_file_range pipe pipe2 cachestat""",
    "naming, making and describing files; the box's mounts and owners decide what they reach": """
        open openat openat2 creat access faccessat faccessat2 stat lstat fstat newfstatat statx statfs fstatfs
        getdents getdents64 getcwd chdir fchdir mkdir mkdirat rmdir mknod mknodat link linkat symlink symlinkat
        readlink readlinkat rename renameat renameat2 unlink unlinkat truncate umask chmod fchmod fchmodat fchmodat2
        chown fchown lchown fchownat utime utimes futimesat utimensat""",
    "extended attributes; overlay's own are refused by the kernel": """
        setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr
        lremovexattr fremovexattr setxattrat getxattrat listxattrat removexattrat""",
    "waiting for many things at once": """
        poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
        eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime inotify_init
        inotify_init1 inotify_add_watch inotify_rm_watch""",
    "a process's own memory": """
        brk mmap munmap mremap mprotect pkey_mprotect pkey_alloc pkey_free madvise mincore msync mlock mlock2 munlock
        mlockall munlockall memfd_create remap_file_pages membarrier map_shadow_stack mseal""",
    "processes and threads; clone is checked below, fork and vfork take no flags": """
        fork vfork execve execveat exit exit_group wait4 waitid set_tid_address gettid getpid getppid getpgid
        getpgrp setpgid getsid setsid pidfd_open pidfd_send_signal prctl arch_prctl rseq getcpu uretprobe
        uprobe""",
    "locks between threads": """
        futex futex_waitv futex_wait futex_wake futex_requeue set_robust_list get_robust_list""",
    "signals; the pid namespace bounds whom they reach": """
        kill tkill tgkill rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait
        rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack pause restart_syscall""",
    "clocks and timers, read or waited for": """
        time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer times
        timer_create timer_settime timer_gettime timer_getoverrun timer_delete""",
    "identity; without capabilities these only give rights away": """
        getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid setresuid
        setresgid setgroups setfsuid setfsgid capget capset""",
    "scheduling and limits, of the box's own processes": """
        sched_yield sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_setattr
        sched_getattr sched_setaffinity sched_getaffinity sched_get_priority_max sched_get_priority_min
        sched_rr_get_interval getpriority setpriority ioprio_get ioprio_set getrlimit setrlimit getrusage""",
    "sockets once made; how they are made, set and used is checked below": """
        bind listen accept accept4 connect shutdown getsockname getpeername getsockopt""",
    "System V and POSIX message queues, separated by the IPC namespace": """
        shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
        mq_timedsend mq_timedreceive mq_notify mq_getsetattr""",
    "facts and randomness": "uname sysinfo getrandom",
    "sandboxes that programs make for themselves; they can only take rights away": """
        seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self""",
}  # fmt: skip

# Refused with EPERM: the call exists and the caller should know that it is not permitted here.
_REFUSED: dict[str, str] = {
    "mounts, and ways into other namespaces and roots": """
        mount umount2 pivot_root chroot setns open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
        mount_setattr quotactl quotactl_fd""",
    "kernel keyrings, which no namespace separates": "keyctl add_key request_key",
    "programs and counters inside the kernel: much attack surface, and perf sees other processes": """
        bpf perf_event_open userfaultfd fanotify_init fanotify_mark""",
    # ptrace of one's own children (gdb, strace) would be useful, and the guest is safe while it is not dumpable.
    # But then that one flag would be all that stands between a user and the guest, so ptrace stays closed.
    "other processes' memory and descriptors, the guest's above all": """
        ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd move_pages migrate_pages""",
    "files by handle: open_by_handle_at steps over every directory's permissions": """
        name_to_handle_at open_by_handle_at lookup_dcookie""",
    "the machine itself": """
        kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct syslog iopl ioperm
        vhangup nfsservctl sethostname setdomainname""",
    "the machine's clock": "settimeofday clock_settime clock_adjtime adjtimex",
}  # fmt: skip

# Known calls that are in no table on purpose, so that they answer ENOSYS and libraries take their older way: clone3
# keeps its flags in memory where no filter sees them (glibc then uses clone); io_uring does other calls' work unseen
# by any filter; io_setup and its kin take from one count for the whole machine (fs.aio-max-nr), and databases do
# without; memory policies, memfd_secret, process_madvise, modify_ldt, statmount and their like are not worth their
# attack surface.


class Check(NamedTuple):
    """A condition on one argument: it is one of `values`, or (`bits`) shares a bit with one of them.

    Only the low 32 bits are compared: every argument checked here is an int, or a mask whose upper half the
    kernel drops, so a comparison of 64 bits could be evaded with rubbish in the upper half.
    """

    argument: int
    values: tuple[int, ...]
    yes: "Action | Check"
    no: "Action | Check"
    bits: bool = False


_NEW_NAMESPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
)  # fmt: skip
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_UNLIKELY_TYPES = 0xC
"""The SOCK_* bits of RDM, SEQPACKET, DCCP and PACKET, which STREAM, DGRAM and RAW do not have."""
_USUAL_PROTOCOLS = (0, 1, 6, 17, 58)
"""The default, ICMP (ping), TCP, UDP, ICMP of IPv6."""
_IPPROTO_TCP, _IPPROTO_UDP, _IPPROTO_IPV6 = 6, 17, 41
_TCP_ULP, _UDP_CORK, _UDP_ENCAP, _IPV6_FLOWLABEL_MGR = 31, 1, 100, 32
_SOL_SOCKET, _SO_RCVBUF = 1, 8
_MSG_OOB = 1
_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD, _TIOCVHANGUP, _TIOCSLCKTRMIOS = (
    0x5412, 0x541C, 0x541D, 0x5423, 0x5437, 0x5457
)  # fmt: skip
_PER_LINUX, _PER_LINUX32, _UNAME26, _QUERY = 0x0, 0x8, 0x20000, 0xFFFFFFFF

# vsock reaches the hypervisor from any network namespace; ALG, PACKET, SMC, XDP, TIPC and the rest are attack surface
# only, and so are the protocols of IP but the usual ones (SCTP, MPTCP, DCCP, SMC). Go asks for MPTCP first, and takes
# this errno for "not here".
#
# Of netlink only ROUTE is offered, which lists interfaces, and only a few sockets at a time. PAM takes EAFNOSUPPORT for
# "no audit here" and goes on, while EPERM would stop it.
_SOCKET = Check(
    0, (_AF_UNIX,),
    yes=Action.ALLOW,
    no=Check(
        0, (_AF_INET, _AF_INET6),
        yes=Check(
            1, (_UNLIKELY_TYPES,), bits=True,
            yes=Action.EPROTONOSUPPORT,
            no=Check(2, _USUAL_PROTOCOLS, yes=Action.ALLOW, no=Action.EPROTONOSUPPORT),
        ),
        no=Check(
            0, (_AF_NETLINK,),
            yes=Check(2, (_NETLINK_ROUTE,), yes=Action.ASK, no=Action.EAFNOSUPPORT),
            no=Action.EAFNOSUPPORT,
        ),
    ),
)  # fmt: skip

# No program needs these, and kernel bugs were found in them: other protocols on top of a connection (TCP_ULP: TLS,
# SMC), ESP in UDP, and IPv6 flow labels, which are counted for the whole machine. A corked datagram is memory that
# nobody is charged for. A receive buffer keeps its size, because nobody is charged for a netlink socket's buffer.
_SETSOCKOPT = Check(
    1, (_IPPROTO_TCP,),
    yes=Check(2, (_TCP_ULP,), yes=Action.ENOPROTOOPT, no=Action.ALLOW),
    no=Check(
        1, (_IPPROTO_UDP,),
        yes=Check(2, (_UDP_CORK, _UDP_ENCAP), yes=Action.ENOPROTOOPT, no=Action.ALLOW),
        no=Check(
            1, (_IPPROTO_IPV6,),
            yes=Check(2, (_IPV6_FLOWLABEL_MGR,), yes=Action.ENOPROTOOPT, no=Action.ALLOW),
            no=Check(
                1, (_SOL_SOCKET,),
                yes=Check(2, (_SO_RCVBUF,), yes=Action.NOTHING, no=Action.ALLOW),
                no=Action.ALLOW,
            ),
        ),
    ),
)  # fmt: skip

# Urgent data of Unix sockets is rarely used and has a history of kernel bugs. The call does not show the socket's kind.
_URGENT_IN_THIRD = Check(2, (_MSG_OOB,), bits=True, yes=Action.EOPNOTSUPP, no=Action.ALLOW)
_URGENT_IN_FOURTH = Check(3, (_MSG_OOB,), bits=True, yes=Action.EOPNOTSUPP, no=Action.ALLOW)

_CHECKED: dict[str, Check] = {
    # In clone, the bit of CLONE_NEWTIME belongs to the exit signal; only unshare and clone3 know that flag.
    "clone": Check(0, (_NEW_NAMESPACES,), bits=True, yes=Action.EPERM, no=Action.ALLOW),
    "unshare": Check(
        0, (_NEW_NAMESPACES | kernel.CLONE_NEWTIME,), bits=True, yes=Action.EPERM, no=Action.ALLOW
    ),
    "socket": _SOCKET,
    "socketpair": _SOCKET,
    "setsockopt": _SETSOCKOPT,
    "sendmsg": _URGENT_IN_THIRD,
    "recvmsg": _URGENT_IN_THIRD,
    "sendto": _URGENT_IN_FOURTH,
    "recvfrom": _URGENT_IN_FOURTH,
    "sendmmsg": _URGENT_IN_FOURTH,
    "recvmmsg": _URGENT_IN_FOURTH,
    # Threats: typing into a terminal that someone else reads from, taking the console's output, hanging up, and
    # TIOCSETD, which loads drivers of serial protocols into the kernel.
    "ioctl": Check(
        1, (_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD, _TIOCVHANGUP, _TIOCSLCKTRMIOS),
        yes=Action.EPERM, no=Action.ALLOW,
    ),
    # The guest has the user's id, so the user could take its descriptors away by lowering its limits.
    "prlimit64": Check(0, (0,), yes=Action.ALLOW, no=Action.EPERM),
    # READ_IMPLIES_EXEC, ADDR_NO_RANDOMIZE and the like weaken the next program that is run.
    "personality": Check(
        0, (_PER_LINUX, _PER_LINUX32, _UNAME26, _UNAME26 | _PER_LINUX32, _QUERY),
        yes=Action.ALLOW, no=Action.EPERM,
    ),
}  # fmt: skip


def _names(groups: dict[str, str]) -> frozenset[str]:
    return frozenset(name for names in groups.values() for name in names.split())


ALLOWED = _names(_ALLOWED)
REFUSED = _names(_REFUSED)
CHECKED = frozenset(_CHECKED)
_KEYS = frozenset({"arch", "x32"}).union(*NUMBERS.values())
_X32, _NO_CALL = 0x40000000, 0xFFFFFFFF
"""Bit 30 selects the x32 table on x86_64's own arch; -1 has it too, and is no call at all."""

# Classic BPF (linux/filter.h), and where struct seccomp_data keeps its fields; both machines are little-endian.
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARGUMENTS = 0, 4, 16

Verdict = Action | Check


def program(machine: str = kernel.MACHINE, *, allow: frozenset[str] = frozenset(), asks: bool = True) -> bytes:
    """The filter for `machine`, as an array of struct sock_filter.

    With `asks=False` the filter allows what it would otherwise ask a guest for: no guest of ours would answer.
    `allow` switches single defences off, so that a test of an attack can show what happens without them: each
    system call named in it is allowed without its argument checks ("clone", "socket", "ioctl", ...), and "arch" and
    "x32" let foreign ABIs through unfiltered. Only tests pass it.
    """
    if machine not in AUDIT_ARCH:
        known = " and ".join(AUDIT_ARCH)
        raise LookupError(f"no system call filter for {machine}: the native provider runs on {known}")
    if unknown := allow - _KEYS:
        raise ValueError(f"not the name of a system call: {', '.join(sorted(unknown))}")
    code = _Assembly()
    code.emit(_LOAD, _ARCH)
    code.emit(_JUMP_EQUAL, AUDIT_ARCH[machine], "number", Action.ALLOW if "arch" in allow else Action.KILL)
    code.label("number")
    code.emit(_LOAD, _NR)
    ranges = _ranges(NUMBERS[machine], allow)
    if machine == "x86_64":
        # x32 is killed like any foreign ABI, also on a kernel without it, so that the filter is seen to refuse it.
        ranges += [(_X32, Action.ALLOW if "x32" in allow else Action.KILL), (_NO_CALL, Action.ENOSYS)]
    code.tree(ranges)
    return code.finish({} if asks else {Action.ASK: Action.ALLOW})


def _ranges(numbers: dict[str, int], allow: frozenset[str]) -> list[tuple[int, Verdict]]:
    """The start of each run of numbers with one verdict. Numbers between and above the known ones are ENOSYS."""
    verdicts = {number: _verdict(name, allow) for name, number in numbers.items()}
    ranges: list[tuple[int, Verdict]] = []
    for number in range(max(verdicts) + 2):
        verdict = verdicts.get(number, Action.ENOSYS)
        if not ranges or ranges[-1][1] != verdict:
            ranges.append((number, verdict))
    return ranges


def _verdict(name: str, allow: frozenset[str]) -> Verdict:
    if name in ALLOWED or name in allow:
        return Action.ALLOW
    if name in REFUSED:
        return Action.EPERM
    return _CHECKED.get(name, Action.ENOSYS)


Target = str | Verdict


class _Assembly:
    """Instructions whose jumps name their targets; verdicts that are jumped to are laid out once, at the end.

    Jumps reach 255 instructions forward. The whole filter is shorter than that, so no jump needs a detour.
    """

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, Target | None, Target | None]] = []
        self._positions: dict[Target, int] = {}
        self._checks: list[Check] = []
        self._answers: dict[Action, None] = {}

    def emit(self, code: int, value: int, yes: Target | None = None, no: Target | None = None) -> None:
        self._instructions.append((code, value, yes, no))
        for target in (yes, no):
            if isinstance(target, Action):
                self._answers[target] = None
            if isinstance(target, Check) and target not in self._checks:
                self._checks.append(target)

    def label(self, target: Target) -> None:
        self._positions[target] = len(self._instructions)

    def tree(self, ranges: list[tuple[int, Verdict]]) -> None:
        """A balanced search: about seven comparisons for any number, where a linear list needs up to 300."""
        middle = len(ranges) // 2
        low, high = ranges[:middle], ranges[middle:]
        self.emit(_JUMP_AT_LEAST, high[0][0], yes=self._branch(high), no=self._branch(low))
        for part in (low, high):
            if len(part) > 1:
                self.label(self._branch(part))
                self.tree(part)

    @staticmethod
    def _branch(ranges: list[tuple[int, Verdict]]) -> Target:
        return ranges[0][1] if len(ranges) == 1 else f"{len(ranges)} ranges from {ranges[0][0]}"

    def finish(self, instead: dict[Action, Action]) -> bytes:
        """Assemble the program. `instead` maps answers to those that replace them."""
        for check in self._checks:  # the list grows during the loop: a check may lead to further checks
            self._lay_out(check)
        for answer in self._answers:
            self.label(answer)
            self.emit(_RETURN, instead.get(answer, answer))
        return b"".join(self._encoded(at, *parts) for at, parts in enumerate(self._instructions))

    def _lay_out(self, check: Check) -> None:
        self.label(check)
        self.emit(_LOAD, _ARGUMENTS + 8 * check.argument)
        jump = _JUMP_ANY_BIT if check.bits else _JUMP_EQUAL
        for index, value in enumerate(check.values):
            following = f"{check} past {value}"
            last = index == len(check.values) - 1
            self.emit(jump, value, yes=check.yes, no=check.no if last else following)
            self.label(following)

    def _encoded(self, at: int, code: int, value: int, yes: Target | None, no: Target | None) -> bytes:
        return struct.pack("=HBBI", code, self._distance(at, yes), self._distance(at, no), value)

    def _distance(self, at: int, target: Target | None) -> int:
        return 0 if target is None else self._positions[target] - at - 1


class _Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


_SECCOMP_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3


class Filter:
    """A program prepared for the kernel, so that the fork that becomes a guest pays one system call."""

    def __init__(self, program: bytes) -> None:
        self._program = _Program(len(program) // 8, program)

    def load_call(self) -> Call:
        """The call that puts this thread and all it starts under the filter. The caller has set no_new_privs.

        It returns the descriptor on which the filter asks. The program's address is valid in every process that is
        forked from this one.
        """
        return "seccomp", _SECCOMP_SET_MODE_FILTER, _NEW_LISTENER, ctypes.addressof(self._program)

    def load(self) -> int:
        """Load the filter now, and return the descriptor on which it asks."""
        return kernel.syscall(*self.load_call())
