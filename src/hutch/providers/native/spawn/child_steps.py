"""From a clone to a guest: what the child does, in this order, until it has no privilege left and serves.

Three programs, written by the spawner: to *enter* what is its own, to *begin* all that needs no order, and to *finish*
what an order asks for. A child that was begun ahead (a stem) waits for the third. The child's side is `birth`.
Standard library only.
"""

from collections.abc import Sequence
from functools import lru_cache
from os import O_PATH, O_RDWR
from resource import RLIMIT_NOFILE, RLIMIT_NPROC
from typing import Any, NamedTuple

from hutch.guest.main import Guest
from hutch.linux.identity import USER, becoming, becoming_root, dropping_bounding_set
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
from hutch.providers.native.network.namespaces import OPEN_SOCKET, loopback_up_call
from hutch.providers.native.rootfs.build import Building
from hutch.providers.native.rootfs.root import (
    QUIET_ATTRIBUTES,
    Extra,
    Mask,
    Shape,
    attach_extra,
    open_extra,
    open_source,
    shape_sources,
)
from hutch.providers.native.spawn.accounts import Bound, limiting, limiting_processes
from hutch.providers.native.spawn.prefault import touch
from hutch.providers.native.spawn.program import Writer, prepare_guest

STREAMS = (0, 1, 2)
OWN = 3
"""The zygote's own socket; a child has other uses for the number."""
SOCK, LISTENER, SPILL = 4, 5, 6
"""A child's connection with the spawner, its guest's listening socket, and the directory for output that memory cannot
hold (`root.detach_spill`)."""
OOM = OWN
"""The guest's own oom_score_adj."""
_HELD = (*STREAMS, OOM, SOCK, LISTENER, SPILL)
"""What a child has open for good, beside its guest's own."""
_SPARED_FILES = 2048
"""What a box of our own user may have open less than we: its limit bounds the descriptors that it has in flight, a
message more for each of its processes, and ours those of the user in all, or we can send none (ETOOMANYREFS)."""


class Setting(NamedTuple):
    """What is the same for every box of one spawner."""

    run: str
    """Where each box's directory is."""
    ranged: bool
    last_capability: int
    filter: Filter
    domain: Domain
    command_line: CommandLine
    masks: tuple[Mask, ...]
    without: frozenset[str]
    """What is left out, by name: defences by the attack suite, which then sees its attack succeed, and optimisations by
    the ablation bench, which measures what each of them saves."""
    bounds: tuple[Bound, ...]
    """Of each box's namespaces; none: the attack suite has left out all that `accounts` holds a box to."""
    own_accounts: bool
    """Whether the kernel charges what a box does to an id of the box's own, and not to the spawner's user."""


class Claim(NamedTuple):
    """What one order adds to a shape."""

    size: int
    inodes: int
    open_files: int
    processes: int
    """RLIMIT_NPROC, where no control group counts processes; 0: not set."""
    extras: tuple[Extra, ...]

    @staticmethod
    def parse(values: list[Any]) -> "Claim":
        """From JSON; the order is that of the fields."""
        size, inodes, open_files, processes, extras = values
        return Claim(size, inodes, open_files, processes, tuple(Extra(*extra) for extra in extras))


class Given(NamedTuple):
    """What comes with an order as descriptors: what the guest is told, and the keeper, connected already."""

    options: int
    keeper: int


class Stages:
    """The programs of one spawner's children."""

    writer = Writer

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.enter = lru_cache(16)(self._enter)
        self.begin = lru_cache(16)(self._begin)
        self._apply = lru_cache(16)(self._applying)

    def _enter(self, entrances: int) -> bytes:
        """With it come the open files through which a process joins the box's control groups. The host's files no
        longer know the child's user, and the kernel asks who has opened them."""
        writer = self.writer((*STREAMS, OWN, SOCK, LISTENER, SPILL))
        groups = writer.foresee(entrances)
        writer.part("start")
        writer.close(OWN)
        writer.open("/dev/null", O_RDWR)  # or the first of the image's mounts would have this number
        if not self._setting.ranged:
            # The host's directory, in which this process stands, becomes a mount of its own (`root.detach_spill`).
            writer.close(SPILL)
            writer.asking(open_source, ".", True, None, False)  # is SPILL
        writer.make(self._setting.command_line.showing("hutch-guest"))
        writer.call("setsid", answer=1)
        writer.part("join the control group")
        for group in groups:
            writer.call("write", group, b"0", 1, answer=1)
            writer.close(group)
        return writer.written()

    def _begin(self, shape: Shape, extras: tuple[Extra, ...] = ()) -> bytes:
        """All that needs no order, for a child whose ids are mapped. With it comes the shape's image as seen through
        them; an ordinary user's child opens it itself, and `extras` too, before it leaves the host's mounts."""
        setting = self._setting
        writer = self.writer((*STREAMS, OWN, SOCK, LISTENER, SPILL))
        sources = shape_sources(shape)
        trees = writer.foresee(len(sources) if setting.ranged else 0)
        writer.part("take the box's identity")
        if setting.ranged:
            writer.make(becoming_root())
        else:
            for extra in extras:
                writer.asking(open_extra, *extra)
            trees = [writer.asking(open_source, *source) for source in sources]
        if "cgroup namespace" not in setting.without:
            # Not at the clone: the namespace's root is the group that its first process is in.
            writer.call("unshare", CLONE_NEWCGROUP)
        writer.part("build the root")
        Building(writer, shape, trees, ranged=setting.ranged, masks=setting.masks, bounds=setting.bounds).write()
        # The working directory stays the base, outside the new root, until the order is finished.
        writer.call("chroot", b"m")
        writer.close(OWN)
        writer.open("/proc/self/oom_score_adj", O_RDWR)  # is OOM
        null = writer.open("/dev/null", O_RDWR)
        for number in STREAMS:
            writer.call("dup3", null, number, 0, answer=number)
        writer.close(null)
        if "network namespace" not in setting.without:
            writer.part("bring the loopback up")
            any_socket = writer.opening(*OPEN_SOCKET)
            writer.make([loopback_up_call(any_socket)])
            writer.close(any_socket)
        if "capabilities" not in setting.without:
            writer.part("drop the bounding set")
            writer.make(dropping_bounding_set(setting.last_capability))
        writer.part("prepare the guest")
        writer.ask(prepare_guest, LISTENER, SPILL, OOM, True)
        writer.foresee(Guest.DESCRIPTORS)
        return writer.written()

    def wait(self) -> bytes:
        """For a stem, after `begin`."""
        writer = self._begun(())
        writer.part("copy what a box writes to")
        writer.ask(touch)
        return writer.written()

    def name_servers(self, resolv_conf: str, extras: tuple[Extra, ...] = ()) -> bytes:
        """For a box with a network, after `begin`."""
        writer = self._begun(extras)
        writer.part("name the servers")
        writer.write_anew("resolv.conf", resolv_conf)
        writer.bind("resolv.conf", "m/etc/resolv.conf")
        return writer.written()

    def finish(self, shape: Shape, claim: Claim, hostname: str) -> bytes:
        """Apply the order, give up every privilege, and serve. With it comes what is given, and the trees of the extra
        mounts that are not open yet."""
        writer, _ = self._ordered(claim)
        writer.part("name the box")
        name = hostname.encode()
        writer.call("sethostname", name, len(name))
        writer.write_anew("hosts", f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost\n")
        # Orders differ in nothing else, usually.
        return writer.written(self._apply(shape, claim))

    def _ordered(self, claim: Claim) -> tuple[Writer, list[int]]:
        """For a child that has got an order; and the descriptors that came with it."""
        writer = self._begun(claim.extras)
        return writer, writer.foresee(len(Given._fields) + len(claim.extras) - len(self._early(claim.extras)))

    def _applying(self, shape: Shape, claim: Claim) -> bytes:
        setting = self._setting
        writer, (options, keeper, *late) = self._ordered(claim)
        writer.part("finish the root")
        self._finish_root(writer, shape, claim, [*self._early(claim.extras), *late])
        if "mount flags" in setting.without:
            writer.set_mount(AT_FDCWD, "m", AT_RECURSIVE, remove=QUIET_ATTRIBUTES)
        base = writer.open(".", O_PATH)
        writer.chdir("/")
        writer.part("set limits")
        spared = 0 if setting.ranged else _SPARED_FILES
        writer.make([limiting(RLIMIT_NOFILE, claim.open_files, spared)])
        if setting.bounds:
            writer.make(limiting_processes())
        if claim.processes:
            writer.make([limiting(RLIMIT_NPROC, claim.processes)])
        return writer.written((options, keeper, self._confine(writer, base)))

    def _finish_root(self, writer: Writer, shape: Shape, claim: Claim, trees: Sequence[int]) -> None:
        if shape.store is None:
            options = f"size={claim.size},nr_inodes={claim.inodes}"
            writer.mount(None, ".", None, MS_REMOUNT | MS_NOSUID | MS_NODEV, options)
        if not claim.extras:
            return
        merged = writer.open("m", O_PATH)
        if shape.read_only:
            # Nobody else runs in the box yet; the targets of the mounts may have to be made.
            writer.set_mount(merged, "", AT_EMPTY_PATH, remove=MOUNT_ATTR_RDONLY)
        for extra, tree in zip(claim.extras, trees, strict=True):
            writer.ask(attach_extra, merged, extra.target, tree)
            writer.close(tree)
        if shape.read_only:
            writer.set_mount(merged, "", AT_EMPTY_PATH, add=MOUNT_ATTR_RDONLY)
        writer.close(merged)

    def _confine(self, writer: Writer, base: int) -> int:
        """The descriptor on which the filter asks; -1 without a filter."""
        setting = self._setting
        writer.part("give up privileges")
        if "capabilities" not in setting.without:
            writer.make(becoming(USER, ranged=setting.ranged))
        if "no_new_privs" not in setting.without:
            writer.call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if "landlock" not in setting.without and setting.domain.enforced:
            writer.part("enter the Landlock domain")
            ruleset = writer.opening(*setting.domain.creating())
            writer.make(setting.domain.entering(ruleset, (base, SPILL)))
            writer.close(ruleset)
        writer.close(base)
        writer.part("load the system call filter")
        asking = writer.opening(*setting.filter.loading()) if "seccomp" not in setting.without else -1
        writer.call("prctl", PR_SET_DUMPABLE, 1 if "dumpable" in setting.without else 0)
        return asking

    def _begun(self, extras: tuple[Extra, ...]) -> Writer:
        """For a child that has begun."""
        writer = self.writer((*_HELD, *self._early(extras)))
        writer.foresee(Guest.DESCRIPTORS)
        return writer

    def _early(self, extras: tuple[Extra, ...]) -> range:
        """The descriptors of those mounts that a child has opened itself, which was the first thing it did."""
        first = max(_HELD) + 1
        return range(first, first + (0 if self._setting.ranged else len(extras)))
