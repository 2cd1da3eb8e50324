"""How a root is built, as steps of a program (`programs`). See `root` for what is where below the base.

Standard library only.
"""

from os import O_WRONLY

from hutch.linux.identity import USER
from hutch.linux.kernel import (
    AT_FDCWD,
    MNT_DETACH,
    MOUNT_ATTR_RDONLY,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
)
from hutch.providers.native.rootfs.root import (
    DEVICES,
    HOME,
    READ_ONLY,
    WORKSPACE,
    Mask,
    Shape,
    check_no_link,
    ensure_directory,
    ensure_place,
)
from hutch.providers.native.spawn.accounts import TERMINALS, Bound
from hutch.providers.native.spawn.program import Writer

STANDING_PLACE = "/sys"
"""Where a box's base is mounted until it becomes the root: a directory that every mapped user can reach, which is not
true of our own directories (a state directory may lie below a home of mode 0700)."""

UMASK = 0o022
"""Of every child, from its zygote."""
_QUIET = MS_NOSUID | MS_NODEV


class Building:
    """Everything of a root that needs no order, and leaves the host's mounts behind.

    `trees` are the descriptors of what `root.shape_sources` names, in its order. At the end the base is the working
    directory and the root.
    """

    def __init__(
        self,
        writer: Writer,
        shape: Shape,
        trees: list[int],
        *,
        ranged: bool,
        masks: tuple[Mask, ...],
        bounds: tuple[Bound, ...],
    ) -> None:
        self._writer = writer
        self._shape = shape
        self._trees = iter(trees)
        self._ranged = ranged
        self._masks = masks
        self._bounds = bounds

    def write(self) -> None:
        writer, shape = self._writer, self._shape
        if shape.store:
            self._attach(STANDING_PLACE)
        else:
            # The real size comes with the order.
            writer.mount("tmpfs", STANDING_PLACE, "tmpfs", _QUIET, "mode=0755,size=16m,nr_inodes=4096")
        writer.chdir(STANDING_PLACE)
        self._make_store()
        names = [f"l{number}" for number, _ in enumerate(shape.lowers)]
        for name in names:
            self._directory(name)
            self._attach(name)
        # userxattr: the other kind of marks needs privilege over the host (kernel 5.11).
        layers = f"lowerdir={':'.join(names)},upperdir=0,workdir=w,userxattr"
        self._writer.mount("overlay", "m", "overlay", _QUIET, layers)
        if shape.store:
            for name in self._mount_points():
                writer.ask(check_no_link, name)
        for number, (_, name) in enumerate(shape.overlays, 1):
            for part in "ouw":
                self._directory(f"{part}{number}")
            self._attach(f"o{number}")
            layers = f"lowerdir=o{number},upperdir=u{number},workdir=w{number},userxattr"
            self._writer.mount("overlay", f"m/{name}", "overlay", _QUIET, layers)
        for _, name in shape.binds:
            self._attach(f"m/{name}")
        self._add_devices()
        self._add_proc()
        self._add_hosts()
        if shape.read_only:
            for name, _, _ in self._places():
                self._writer.bind(f"m/{name}", f"m/{name}")
            self._close("m")
        # Only now: a place that is bound onto itself leaves behind what was mounted in it before.
        for _, name in shape.shown:
            self._show(name)
        writer.call("pivot_root", b".", b".")
        writer.call("umount2", b".", MNT_DETACH)
        writer.chdir("/")
        writer.mount(None, "/", None, MS_REC | MS_PRIVATE, None)

    def _make_store(self) -> None:
        writer, shape = self._writer, self._shape
        writer.call("umask", 0, answer=UMASK)
        for name in ("0", "w", "m"):
            self._directory(name)
        places = self._places()
        if not shape.own_workspace:
            places.append((WORKSPACE, 0o755, False))  # to mount the host's directory on
        for name, mode, owned in places:
            owner = USER if owned and self._ranged else -1
            parent = name.rpartition("/")[0]
            if shape.store:
                writer.ask(ensure_place, parent, name, mode, owner)
                continue
            if parent:
                writer.mkdir(f"0/{parent}", 0o755)
            writer.mkdir(f"0/{name}", mode)
            if owner >= 0:
                writer.chown(f"0/{name}", owner)
        writer.call("umask", UMASK)

    def _places(self) -> list[tuple[str, int, bool]]:
        """The directories that are writable whatever the root is: name, mode, whether the user owns them."""
        places = [("tmp", 0o1777, False), ("run", 0o755, True), ("var/tmp", 0o1777, False), (HOME, 0o755, True)]
        return [*places, (WORKSPACE, 0o755, True)] if self._shape.own_workspace else places

    def _mount_points(self) -> list[str]:
        devices = [f"dev/{device}" for device in DEVICES]
        binds = [name for _, name in (*self._shape.overlays, *self._shape.binds)]
        places = [name for name, _, _ in self._places()]
        return ["proc", "dev", "dev/pts", "dev/shm", *devices, "etc/hosts", "etc/resolv.conf", *binds, *places]

    def _show(self, name: str) -> None:
        """The image may lack the directory, or bring a link in its place."""
        parts = name.split("/")
        for depth, _ in enumerate(parts, 1):
            above = "/".join(parts[:depth])
            self._writer.ask(ensure_directory, f"m/{above}", 0o755)
            self._writer.ask(check_no_link, above)
        self._attach(f"m/{name}")

    def _add_devices(self) -> None:
        for name in DEVICES:
            self._writer.bind(f"/dev/{name}", f"m/dev/{name}")
        options = "newinstance,ptmxmode=0666,mode=0620" + (f",max={TERMINALS}" if self._bounds else "")
        self._writer.mount("devpts", "m/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
        if self._shape.store:
            self._writer.mount("tmpfs", "m/dev/shm", "tmpfs", _QUIET, "mode=1777,size=64m")
            return
        # A part of the base, so that one size bounds everything the box keeps in memory as files.
        self._writer.mkdir("shm", 0o1777)
        self._writer.call("fchmodat", AT_FDCWD, b"shm", 0o1777)
        self._writer.bind("shm", "m/dev/shm")

    def _add_proc(self) -> None:
        self._writer.mount("proc", "m/proc", "proc", _QUIET | MS_NOEXEC, None)
        for name, value in self._bounds:
            self._writer.write(f"m/proc/sys/{name}", O_WRONLY, value)
        if not self._masks:
            return
        self._directory("e")
        self._writer.bind("e", "e")
        self._close("e")
        for name, is_directory in self._masks:
            self._writer.bind("e" if is_directory else "/dev/null", f"m/proc/{name}")
        for name in READ_ONLY:
            self._writer.bind(f"m/proc/{name}", f"m/proc/{name}")
            self._close(f"m/proc/{name}")

    def _add_hosts(self) -> None:
        """Differs from box to box: the host's name comes with the order."""
        self._writer.write_anew("hosts", "")
        self._writer.bind("hosts", "m/etc/hosts")

    def _directory(self, name: str) -> None:
        if self._shape.store:
            self._writer.ask(ensure_directory, name, 0o755)
        else:
            self._writer.mkdir(name, 0o755)

    def _attach(self, path: str) -> None:
        self._writer.attach(next(self._trees), path)

    def _close(self, path: str) -> None:
        self._writer.set_mount(AT_FDCWD, path, 0, add=MOUNT_ATTR_RDONLY)
