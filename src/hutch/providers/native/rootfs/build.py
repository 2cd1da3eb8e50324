"""Writes the steps that build a box's root, as part of a program (`spawn.program`). `root` describes the layout.

Standard library only.
"""

from os import O_WRONLY
from os.path import isdir

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
from hutch.providers.native.rootfs.machine_view import VIEWED
from hutch.providers.native.rootfs.root import (
    DEVICES,
    HOME,
    READ_ONLY,
    WORKSPACE,
    BoxTemplate,
    Mask,
    check_no_link,
    ensure_directory,
    ensure_place,
    upper_directory,
    work_directory,
)
from hutch.providers.native.spawn.kernel_limits import MAX_TERMINALS, Sysctl
from hutch.providers.native.spawn.program import ProgramWriter

BASE_MOUNT_POINT = "/sys"
"""The mount point of a box's base until it becomes the root. Every mapped user can reach it, which is not true of our
own directories: a state directory may lie below a home of mode 0700."""

UMASK = 0o022
"""The umask of every child, which it inherits from its zygote."""
_QUIET = MS_NOSUID | MS_NODEV


class RootBuilder:
    """Writes the steps that build everything of a root that needs no order, and leave the host's mounts.

    `trees` are the descriptors of the mounts that `root.template_sources` names, in its order. At the end the base is
    the working directory and the root.
    """

    def __init__(
        self,
        writer: ProgramWriter,
        template: BoxTemplate,
        trees: list[int],
        *,
        has_id_ranges: bool,
        masks: tuple[Mask, ...],
        sysctls: tuple[Sysctl, ...],
    ) -> None:
        self._writer = writer
        self._template = template
        self._trees = iter(trees)
        self._has_id_ranges = has_id_ranges
        self._masks = masks
        self._sysctls = sysctls

    def write(self) -> None:
        writer, template = self._writer, self._template
        if template.store:
            self._attach(BASE_MOUNT_POINT)
        else:
            # The real size comes with the order.
            writer.mount("tmpfs", BASE_MOUNT_POINT, "tmpfs", _QUIET, "mode=0755,size=16m,nr_inodes=4096")
        writer.chdir(BASE_MOUNT_POINT)
        self._make_store()
        names = [f"l{number}" for number, _ in enumerate(template.lowers)]
        for name in names:
            self._directory(name)
            self._attach(name)
        # userxattr, because trusted attributes need privilege over the host (kernel 5.11).
        self._mount_overlay("m", 0, names)
        if template.store:
            for name in self._mount_points():
                writer.invoke(check_no_link, name)
        for number, (_, name) in enumerate(template.overlays, 1):
            self._directory(f"o{number}")
            for directory in (upper_directory, work_directory):
                self._directory(directory(template.layers[0], number))
            self._attach(f"o{number}")
            self._mount_overlay(f"m/{name}", number, [f"o{number}"])
        for _, name in template.binds:
            self._attach(f"m/{name}")
        self._add_devices()
        self._add_proc()
        self._add_hosts()
        if template.read_only:
            for name, _, _ in self._writable_directories():
                self._writer.bind(f"m/{name}", f"m/{name}")
            self._make_read_only("m")
        # These come last: a directory that is bound onto itself loses what was mounted in it before.
        for _, name in template.workspace_binds:
            self._attach_in_workspace(name)
        writer.call("pivot_root", b".", b".")
        writer.call("umount2", b".", MNT_DETACH)
        writer.chdir("/")
        writer.mount(None, "/", None, MS_REC | MS_PRIVATE, None)

    def _mount_overlay(self, place: str, part: int, lowest: list[str]) -> None:
        top, *below = self._template.layers
        directories = [upper_directory(layer, part) for layer in below]
        if part:
            directories = [name for name in directories if isdir(f"{self._template.store}/{name}")]
        layers = f"lowerdir={':'.join([*directories, *lowest])},upperdir={upper_directory(top, part)}"
        name = "overlay" if top == "0" else f"layer{top}.{part}" if part else f"layer{top}"
        self._writer.mount(name, place, "overlay", _QUIET, f"{layers},workdir={work_directory(top, part)},userxattr")

    def _make_store(self) -> None:
        writer, template = self._writer, self._template
        writer.call("umask", 0, answer=UMASK)
        top = template.layers[0]
        for name in (upper_directory(top), work_directory(top), "m"):
            self._directory(name)
        if len(template.layers) > 1:
            writer.call("umask", UMASK)
            return  # the lowest layer has the box's writable directories
        places = self._writable_directories()
        if not template.own_workspace:
            places.append((WORKSPACE, 0o755, False))  # the mount point of the host's directory
        for name, mode, owned in places:
            owner = USER if owned and self._has_id_ranges else -1
            parent = name.rpartition("/")[0]
            if template.store:
                writer.invoke(ensure_place, parent, name, mode, owner)
                continue
            if parent:
                writer.mkdir(f"0/{parent}", 0o755)
            writer.mkdir(f"0/{name}", mode)
            if owner >= 0:
                writer.chown(f"0/{name}", owner)
        writer.call("umask", UMASK)

    def _writable_directories(self) -> list[tuple[str, int, bool]]:
        """The directories that are writable even in a read-only root: name, mode, whether the user owns them."""
        places = [("tmp", 0o1777, False), ("run", 0o755, True), ("var/tmp", 0o1777, False), (HOME, 0o755, True)]
        return [*places, (WORKSPACE, 0o755, True)] if self._template.own_workspace else places

    def _mount_points(self) -> list[str]:
        devices = [f"dev/{device}" for device in DEVICES]
        binds = [name for _, name in (*self._template.overlays, *self._template.binds)]
        places = [name for name, _, _ in self._writable_directories()]
        return ["proc", "dev", "dev/pts", "dev/shm", *devices, "etc/hosts", "etc/resolv.conf", *binds, *places]

    def _attach_in_workspace(self, name: str) -> None:
        """Mount in the workspace, where the image may lack the directory, or have a link instead."""
        parts = name.split("/")
        for depth, _ in enumerate(parts, 1):
            above = "/".join(parts[:depth])
            self._writer.invoke(ensure_directory, f"m/{above}", 0o755)
            self._writer.invoke(check_no_link, above)
        self._attach(f"m/{name}")

    def _add_devices(self) -> None:
        for name in DEVICES:
            self._writer.bind(f"/dev/{name}", f"m/dev/{name}")
        options = "newinstance,ptmxmode=0666,mode=0620" + (f",max={MAX_TERMINALS}" if self._sysctls else "")
        self._writer.mount("devpts", "m/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
        if self._template.store:
            self._writer.mount("tmpfs", "m/dev/shm", "tmpfs", _QUIET, "mode=1777,size=64m")
            return
        # /dev/shm is part of the base, so that one size limits all files that the box keeps in memory.
        self._writer.mkdir("shm", 0o1777)
        self._writer.call("fchmodat", AT_FDCWD, b"shm", 0o1777)
        self._writer.bind("shm", "m/dev/shm")

    def _add_proc(self) -> None:
        self._writer.mount("proc", "m/proc", "proc", _QUIET | MS_NOEXEC, None)
        for name, value in self._sysctls:
            self._writer.write(f"m/proc/sys/{name}", O_WRONLY, value)
        for name in VIEWED:
            # They are empty until `finish` writes them, because the limits come with the order.
            self._writer.write_new(name, "")
            if self._has_id_ranges:
                self._writer.chown(name, USER)
            self._writer.bind(name, f"m/proc/{name}")
        if not self._masks:
            return
        self._directory("e")
        self._writer.bind("e", "e")
        self._make_read_only("e")
        for name, is_directory in self._masks:
            self._writer.bind("e" if is_directory else "/dev/null", f"m/proc/{name}")
        for name in READ_ONLY:
            self._writer.bind(f"m/proc/{name}", f"m/proc/{name}")
            self._make_read_only(f"m/proc/{name}")

    def _add_hosts(self) -> None:
        """Mount an empty /etc/hosts. `finish` writes it, because the host name comes with the order."""
        self._writer.write_new("hosts", "")
        self._writer.bind("hosts", "m/etc/hosts")

    def _directory(self, name: str) -> None:
        if self._template.store:
            self._writer.invoke(ensure_directory, name, 0o755)
        else:
            self._writer.mkdir(name, 0o755)

    def _attach(self, path: str) -> None:
        self._writer.attach(next(self._trees), path)

    def _make_read_only(self, path: str) -> None:
        self._writer.set_mount(AT_FDCWD, path, 0, add=MOUNT_ATTR_RDONLY)
