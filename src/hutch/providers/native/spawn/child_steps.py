"""The steps of a child from its clone to a guest without privileges, as programs that the spawner writes.

There are three programs: *enter* joins the child's own control groups, *begin* does all that needs no order, and
*finish* does what an order asks for. A prestarted child waits for the third. The child performs them (`child`).
Standard library only.
"""

from collections.abc import Sequence
from functools import lru_cache
from os import O_PATH, O_RDWR, O_WRONLY
from resource import RLIMIT_NOFILE, RLIMIT_NPROC
from typing import Any, NamedTuple

from hutch.guest.main import Guest
from hutch.linux.identity import USER, become_root_calls, become_user_calls, drop_bounding_set_calls
from hutch.linux.kernel import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_RECURSIVE,
    CLONE_NEWCGROUP,
    MOUNT_ATTR_RDONLY,
    MS_NODEV,
    MS_NOSUID,
    MS_REMOUNT,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    CommandLine,
)
from hutch.linux.landlock import Domain
from hutch.linux.seccomp import Filter
from hutch.providers.native.layers.adoption import adopt
from hutch.providers.native.network.namespaces import OPEN_SOCKET, loopback_up_call
from hutch.providers.native.rootfs.build import RootBuilder
from hutch.providers.native.rootfs.machine_view import machine_view
from hutch.providers.native.rootfs.root import (
    QUIET_ATTRIBUTES,
    BoxTemplate,
    HostMount,
    Mask,
    attach_host_mount,
    open_host_mount,
    open_source,
    template_sources,
)
from hutch.providers.native.spawn.kernel_limits import Sysctl, process_rlimit_calls, rlimit_call
from hutch.providers.native.spawn.prefault import prefault_pages
from hutch.providers.native.spawn.program import ProgramWriter, prepare_guest

STREAMS = (0, 1, 2)
OWN = 3
"""The descriptor of the zygote's own socket. A child uses the number for something else."""
SOCK, LISTENER, SPILL = 4, 5, 6
"""A child's connection with the spawner, its guest's listening socket, and the directory for output that does not fit
in memory (`root.detach_spill`)."""
OOM = OWN
"""The descriptor of the guest's own oom_score_adj."""
_HELD = (*STREAMS, OOM, SOCK, LISTENER, SPILL)
"""The descriptors that a child keeps, beside those of its guest."""
_SPARED_FILES = 2048
"""The open files of an ordinary user's box are limited to this many less than ours. The kernel lets a process send
descriptors only while all of the user's descriptors in flight stay below its own limit (ETOOMANYREFS), so a box with
our limit could keep us from sending any."""


class SpawnerSettings(NamedTuple):
    """Everything that is the same for every box of one spawner."""

    run: str
    """The directory that holds each box's directory."""
    has_id_ranges: bool
    last_capability: int
    filter: Filter
    domain: Domain
    command_line: CommandLine
    masks: tuple[Mask, ...]
    without: frozenset[str]
    """Names of what is left out: defences by the attack suite, which then sees its attack succeed, and optimisations
    by the ablation bench, which measures what each of them saves."""
    sysctls: tuple[Sysctl, ...]
    """The sysctls of each box's namespaces; empty if the attack suite has left out all of `kernel_limits`."""
    own_accounts: bool
    """Whether the kernel charges what a box uses to an id of the box, and not to the spawner's user."""


class BoxParameters(NamedTuple):
    """The parameters of a box that are not part of its template."""

    size: int
    inodes: int
    open_files: int
    processes: int
    """RLIMIT_NPROC where no control group counts processes; 0 leaves it unset."""
    host_mounts: tuple[HostMount, ...]
    cpus: float
    memory_mb: int

    @staticmethod
    def parse(values: list[Any]) -> "BoxParameters":
        """Parse values from JSON, in the order of the fields."""
        size, inodes, open_files, processes, host_mounts, cpus, memory_mb = values
        mounts = tuple(HostMount(*host_mount) for host_mount in host_mounts)
        return BoxParameters(size, inodes, open_files, processes, mounts, cpus, memory_mb)


class OrderDescriptors(NamedTuple):
    """The descriptors of an order: the guest's options, and its connection to the keeper."""

    options: int
    keeper: int


class ChildPrograms:
    """Writes the programs of one spawner's children."""

    writer = ProgramWriter

    def __init__(self, settings: SpawnerSettings) -> None:
        self._settings = settings
        self.enter = lru_cache(16)(self._write_enter)
        self.begin = lru_cache(16)(self._write_begin)
        self._apply = lru_cache(16)(self._write_apply)

    def _write_enter(self, entrances: int) -> bytes:
        """Join the control groups, through open files that come with the program.

        The child's user means nothing to the host's files, but the kernel checks who opened them.
        """
        writer = self.writer((*STREAMS, OWN, SOCK, LISTENER, SPILL))
        groups = writer.reserve_fds(entrances)
        writer.part("start")
        writer.close(OWN)
        writer.open("/dev/null", O_RDWR)  # keeps the number OWN from the first of the image's mounts
        if not self._settings.has_id_ranges:
            # The working directory, on the host, becomes a mount of its own (`root.detach_spill`).
            writer.close(SPILL)
            writer.invoke_fd(open_source, ".", True, None, False)  # is SPILL
        writer.calls(self._settings.command_line.show_calls("hutch-guest"))
        writer.call("setsid", answer=1)
        writer.part("join the control group")
        for group in groups:
            writer.call("write", group, b"0", 1, answer=1)
            writer.close(group)
        return writer.to_bytes()

    def _write_begin(self, template: BoxTemplate, host_mounts: tuple[HostMount, ...] = ()) -> bytes:
        """Do all that needs no order, in a child whose ids are mapped.

        The mounts of the image, seen through those ids, come with the program. An ordinary user's child opens them
        itself, and `host_mounts` too, before it leaves the host's mounts.
        """
        settings = self._settings
        writer = self.writer((*STREAMS, OWN, SOCK, LISTENER, SPILL))
        sources = template_sources(template)
        trees = writer.reserve_fds(len(sources) if settings.has_id_ranges else 0)
        writer.part("take the box's identity")
        if settings.has_id_ranges:
            writer.calls(become_root_calls())
        else:
            for host_mount in host_mounts:
                writer.invoke_fd(open_host_mount, *host_mount)
            trees = [writer.invoke_fd(open_source, *source) for source in sources]
        if "cgroup namespace" not in settings.without:
            # Not at the clone, because the namespace's root is the group that its first process is in.
            writer.call("unshare", CLONE_NEWCGROUP)
        writer.part("build the root")
        RootBuilder(
            writer,
            template,
            trees,
            has_id_ranges=settings.has_id_ranges,
            masks=settings.masks,
            sysctls=settings.sysctls,
        ).write()
        # The working directory stays the base, outside the new root, until `finish`.
        writer.call("chroot", b"m")
        writer.close(OWN)
        writer.open("/proc/self/oom_score_adj", O_RDWR)  # is OOM
        null = writer.open("/dev/null", O_RDWR)
        for number in STREAMS:
            writer.call("dup3", null, number, 0, answer=number)
        writer.close(null)
        if "network namespace" not in settings.without:
            writer.part("bring the loopback up")
            any_socket = writer.call_fd(*OPEN_SOCKET)
            writer.calls([loopback_up_call(any_socket)])
            writer.close(any_socket)
        if "capabilities" not in settings.without:
            writer.part("drop the bounding set")
            writer.calls(drop_bounding_set_calls(settings.last_capability))
        writer.part("prepare the guest")
        writer.invoke(prepare_guest, LISTENER, SPILL, OOM, True)
        writer.reserve_fds(Guest.DESCRIPTORS)
        return writer.to_bytes()

    def wait(self) -> bytes:
        """Have a prestarted child prefault its pages while it waits for an order, after `begin`."""
        writer = self._begun_writer(())
        writer.part("prefault pages")
        writer.invoke(prefault_pages)
        return writer.to_bytes()

    def name_servers(self, resolv_conf: str, host_mounts: tuple[HostMount, ...] = ()) -> bytes:
        """Write resolv.conf of a box with a network, after `begin`."""
        writer = self._begun_writer(host_mounts)
        writer.part("write resolv.conf")
        writer.write_new("resolv.conf", resolv_conf)
        writer.bind("resolv.conf", "m/etc/resolv.conf")
        return writer.to_bytes()

    def adopt(self, state: tuple[str, ...], host_mounts: tuple[HostMount, ...], sources: int) -> bytes:
        """Show the box a state of the box that it is forked from, after `begin`.

        The mounts that hold its layers come with the program.
        """
        writer = self._begun_writer(host_mounts)
        trees = writer.reserve_fds(sources)
        plain = writer.reserve_fds(sources if self._settings.has_id_ranges else 0)
        writer.part("adopt the layers")
        writer.invoke(adopt, state, tuple(trees), tuple(plain))
        for tree in (*trees, *plain):
            writer.close(tree)
        return writer.to_bytes()

    def finish(self, template: BoxTemplate, parameters: BoxParameters, hostname: str) -> bytes:
        """Apply the order, drop every privilege, and serve.

        The order's descriptors come with the program, and the host mounts that are not open yet.
        """
        writer, _ = self._ordered_writer(parameters)
        writer.part("name the box")
        name = hostname.encode()
        writer.call("sethostname", name, len(name))
        writer.write_new("hosts", f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost\n")
        # The rest is usually the same for all orders, and cached.
        return writer.to_bytes(self._apply(template, parameters))

    def _ordered_writer(self, parameters: BoxParameters) -> tuple[ProgramWriter, list[int]]:
        """A writer for a child that has got an order, and the descriptors that came with it."""
        writer = self._begun_writer(parameters.host_mounts)
        return writer, writer.reserve_fds(
            len(OrderDescriptors._fields)
            + len(parameters.host_mounts)
            - len(self._early_mount_fds(parameters.host_mounts))
        )

    def _write_apply(self, template: BoxTemplate, parameters: BoxParameters) -> bytes:
        settings = self._settings
        writer, (options, keeper, *late) = self._ordered_writer(parameters)
        writer.part("finish the root")
        self._finish_root(writer, template, parameters, [*self._early_mount_fds(parameters.host_mounts), *late])
        if "mount flags" in settings.without:
            writer.set_mount(AT_FDCWD, "m", AT_RECURSIVE, remove=QUIET_ATTRIBUTES)
        base = writer.open(".", O_PATH)
        writer.chdir("/")
        writer.part("set limits")
        spared = 0 if settings.has_id_ranges else _SPARED_FILES
        writer.calls([rlimit_call(RLIMIT_NOFILE, parameters.open_files, spared)])
        if settings.sysctls:
            writer.calls(process_rlimit_calls())
        if parameters.processes:
            writer.calls([rlimit_call(RLIMIT_NPROC, parameters.processes)])
        return writer.to_bytes((options, keeper, self._confine(writer, base)))

    def _finish_root(
        self, writer: ProgramWriter, template: BoxTemplate, parameters: BoxParameters, trees: Sequence[int]
    ) -> None:
        if template.store is None:
            options = f"size={parameters.size},nr_inodes={parameters.inodes}"
            writer.mount(None, ".", None, MS_REMOUNT | MS_NOSUID | MS_NODEV, options)
        for name, text in machine_view(parameters.cpus, parameters.memory_mb):
            writer.write(name, O_WRONLY, text.encode())
        if not parameters.host_mounts:
            return
        merged = writer.open("m", O_PATH)
        if template.read_only:
            # The targets of the mounts may have to be made. Nothing else runs in the box yet.
            writer.set_mount(merged, "", AT_EMPTY_PATH, remove=MOUNT_ATTR_RDONLY)
        for host_mount, tree in zip(parameters.host_mounts, trees, strict=True):
            writer.invoke(attach_host_mount, merged, host_mount.target, tree)
            writer.close(tree)
        if template.read_only:
            writer.set_mount(merged, "", AT_EMPTY_PATH, add=MOUNT_ATTR_RDONLY)
        writer.close(merged)

    def _confine(self, writer: ProgramWriter, base: int) -> int:
        """Drop every privilege. Returns the descriptor on which the filter asks, or -1 without a filter."""
        settings = self._settings
        writer.part("give up privileges")
        if "capabilities" not in settings.without:
            writer.calls(become_user_calls(USER, has_id_ranges=settings.has_id_ranges))
        if "no_new_privs" not in settings.without:
            writer.call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if "landlock" not in settings.without and settings.domain.enforced:
            writer.part("enter the Landlock domain")
            ruleset = writer.call_fd(*settings.domain.create_call())
            writer.calls(settings.domain.enter_calls(ruleset, (base, SPILL)))
            writer.close(ruleset)
        writer.close(base)
        writer.part("load the system call filter")
        asking = writer.call_fd(*settings.filter.load_call()) if "seccomp" not in settings.without else -1
        writer.call("prctl", PR_SET_DUMPABLE, 1 if "dumpable" in settings.without else 0)
        return asking

    def _begun_writer(self, host_mounts: tuple[HostMount, ...]) -> ProgramWriter:
        """A writer for a child that has performed `begin`."""
        writer = self.writer((*_HELD, *self._early_mount_fds(host_mounts)))
        writer.reserve_fds(Guest.DESCRIPTORS)
        return writer

    def _early_mount_fds(self, host_mounts: tuple[HostMount, ...]) -> range:
        """The descriptors of the mounts that an ordinary user's child opened itself as its first step."""
        first = max(_HELD) + 1
        return range(first, first + (0 if self._settings.has_id_ranges else len(host_mounts)))
