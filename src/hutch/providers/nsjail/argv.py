"""The command line of a jail. Pure functions, so that it can be read and tested without nsjail.

Every namespace is its own (nsjail's default, and nothing here switches one off), the network always: a box has its
loopback and nothing else. No capability, no_new_privs, a read-only root, a filter of system calls, limits by control
groups where we may make them.
"""

from typing import NamedTuple

from hutch.model.limits import Limits
from hutch.model.spec import Order
from hutch.providers.command.jail_spec import BoxParameters, JailEntry, Kind, held_mb, jail_entries

PIDS_HEADROOM = 4
"""The guest's own threads."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_REFUSED = (
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init", "finit_module",
    "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup",
    "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mount", "move_mount",
    "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open", "personality",
    "pivot_root", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "reboot", "request_key",
    "setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon", "syslog", "umount", "unshare",
    "userfaultfd", "vhangup", "vmsplice",
)  # fmt: skip
"""System calls that no program in a box needs and that many escapes used."""
_OF_X86 = ("ioperm", "iopl", "sysfs")


class Groups(NamedTuple):
    """Control groups that we may make on this machine."""

    version: int
    """1 or 2; 0: none."""
    parent: str = ""
    """Below the root of each hierarchy (v1), or the directory itself (v2)."""
    swap: bool = False
    """Whether memory and swap together can be limited (v1)."""


def policy(machine: str) -> str:
    """The filter in Kafel's words: what is named is answered with EPERM (1). A name that Kafel does not know on this
    machine would make the whole policy fail."""
    refused = (*_REFUSED, *_OF_X86) if machine == "x86_64" else _REFUSED
    return f"ERRNO(1) {{ {', '.join(refused)} }} DEFAULT ALLOW"


def command(program: str, order: Order, parameters: BoxParameters, groups: Groups, filter_policy: str) -> list[str]:
    """The whole command line of one box."""
    argv = [
        program, "--mode", "o", "--quiet", "--time_limit", "0", "--hostname", order.box_id[:12], "--cwd", "/",
        "--user", f"1000:{parameters.uid}:1", "--group", f"1000:{parameters.uid}:1", "--disable_rlimits",
        "--nice_level", "0", "--proc_rw", "--mount", "none:/dev:tmpfs:size=65536,mode=755",
    ]  # fmt: skip
    for name in _DEVICES:
        argv += ["--bindmount", f"/dev/{name}"]
    argv += ["--mount", "none:/dev/pts:devpts:newinstance,ptmxmode=0666,mode=0620", "--symlink", "pts/ptmx:/dev/ptmx"]
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        argv += ["--symlink", f"/proc/self/fd{target}:/dev/{name}"]
    for each in jail_entries(order, parameters):
        argv += _entry(each)
    argv += ["--seccomp_string", filter_policy]
    argv += _limits(order.spec.limits, groups)
    return [*argv, "--", *parameters.guest]


def _entry(each: JailEntry) -> list[str]:
    match each.kind:
        case Kind.LINK:
            return ["--symlink", f"{each.source}:{each.target}"]
        case Kind.READ:
            return ["--bindmount_ro", f"{each.source}:{each.target}"]
        case Kind.WRITE:
            return ["--bindmount", f"{each.source}:{each.target}"]
    access = "ro," if each.read_only else ""
    return ["--mount", f"none:{each.target}:tmpfs:{access}size={each.kilobytes * 1024},mode={each.mode:o}"]


def _limits(limits: Limits, groups: Groups) -> list[str]:
    """Pages of a box's files in memory count as its memory, so the group has room for both."""
    if not groups.version:
        return []
    memory = str(held_mb(limits) << 20)
    argv = ["--cgroup_mem_max", memory, "--cgroup_pids_max", str(limits.pids + PIDS_HEADROOM),
            "--cgroup_cpu_ms_per_sec", str(max(1, round(limits.cpus * 1000)))]  # fmt: skip
    if groups.version == 2:
        return ["--use_cgroupv2", "--cgroupv2_mount", groups.parent, "--cgroup_mem_swap_max", "0", *argv]
    for controller in ("mem", "pids", "cpu"):
        argv += [f"--cgroup_{controller}_parent", groups.parent]
    return [*argv, "--cgroup_mem_memsw_max", memory] if groups.swap else argv
