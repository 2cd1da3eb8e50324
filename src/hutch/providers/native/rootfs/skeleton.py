"""The topmost read-only layer of every box: mount points, and for the machine's own image a minimal /etc.

A skeleton is made once for each content, named by its digest, and never changed afterwards, so that any number of boxes
and keepers may use it at the same time.
"""

import os
import stat
from collections.abc import Callable

from hutch.linux import kernel
from hutch.linux.identity import USER
from hutch.model.ids import digest
from hutch.providers.native.rootfs.root import DEVICES, HOME

# No directory that a box writes to is among them. To rename an entry of a directory that exists in a lower layer too,
# overlay needs extended attributes, which a tmpfs does not have before Linux 6.6 (rename(2) is EXDEV then).
_DIRECTORIES = ("dev", "dev/pts", "dev/shm", "etc", "home", "proc", "sys", "var")
_DEVICE_LINKS = {
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "/proc/self/fd/0",
    "dev/stdout": "/proc/self/fd/1",
    "dev/stderr": "/proc/self/fd/2",
    "dev/ptmx": "pts/ptmx",
}

PASSWD = f"""root:x:0:0:root:/root:/bin/sh
user:x:{USER}:{USER}:user:/{HOME}:/bin/bash
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
"""
GROUP = f"""root:x:0:
tty:x:5:
user:x:{USER}:
nogroup:x:65534:
"""
NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"

# Files of /etc that programs of the machine's /usr expect. None of them is secret or names the machine.
_COPIED = (
    "ImageMagick-6", "ImageMagick-7", "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf",
    "debian_version", "fonts", "inputrc", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "localtime", "lsb-release", "magic", "magic.mime", "mime.types", "os-release", "perl",
    "pki/ca-trust/extracted", "pki/tls/certs", "profile", "protocols", "python3", "python3.11", "python3.12",
    "python3.13", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip


class Content:
    """The content of a skeleton: directories, files, links, and the host files to copy."""

    __slots__ = ("ages", "copied_links", "copies", "directories", "files", "links")

    def __init__(self) -> None:
        self.directories = list(_DIRECTORIES)
        self.files: dict[str, bytes] = {}
        self.links = dict(_DEVICE_LINKS)
        self.copies: dict[str, str] = {}
        """From a name to the host file to copy."""
        self.copied_links: dict[str, str] = {}
        """From a name to the host link to copy. The hundreds of links are read only to make it."""
        self.ages: dict[str, int] = {}
        """Modification times of the directories that contain `copied_links`."""

    def digest(self) -> str:
        """The digest that names the skeleton.

        Host files count by path, size and modification time, because they change with the machine's packages. Links
        count by their directories, because replacing a link changes its directory.
        """
        made = (sorted(self.directories), sorted(self.files.items()), sorted(self.links.items()))
        copied = []
        for target, source in sorted(self.copies.items()):
            facts = os.stat(source)
            copied.append(f"{target}\0{source}\0{facts.st_size}\0{facts.st_mtime_ns}")
        names = "\n".join((*copied, "", *sorted(self.copied_links)))
        return digest(repr((made, sorted(self.ages.items()))).encode(), os.fsencode(names))[:32]


def plain() -> Content:
    """The content over any image: mount points, and the files of /etc that Hutch writes for each box."""
    content = Content()
    content.files.update({f"dev/{name}": b"" for name in DEVICES})
    content.files.update({"etc/hosts": b"", "etc/resolv.conf": b""})
    return content


def over(image: str) -> Content:
    """The content over an unpacked image, whose /etc/passwd may lack the box's user."""
    return _knowing_user(lambda name: _read_inside(image, name))


def over_layers(layers: tuple[str, ...]) -> Content:
    """The content over an image of several layers, topmost first."""
    from hutch.images.layers import merged_view  # with decompressors, which few need

    return _knowing_user(lambda name: merged_view.read(layers, name))


def _knowing_user(read: Callable[[str], str]) -> Content:
    content = plain()
    for name, line in (("passwd", PASSWD), ("group", GROUP)):
        known = read(f"etc/{name}")
        ids = {fields[2] for fields in (row.split(":") for row in known.splitlines()) if len(fields) > 2}
        missing = [
            row for row in line.splitlines() if row.split(":")[2] in ("0", str(USER)) and row.split(":")[2] not in ids
        ]
        if missing:
            lines = [*known.splitlines(), *missing]
            content.files[f"etc/{name}"] = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
    return content


def _read_inside(image: str, name: str) -> str:
    """Read a small file of the image. Its links are resolved inside the image, never to the machine's own files."""
    top = os.open(image, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        resolve = kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_MAGICLINKS
        fd = kernel.openat2(top, name, os.O_RDONLY | os.O_NONBLOCK, resolve)
    except OSError:
        return ""
    finally:
        os.close(top)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(1 << 20).decode("utf-8", "surrogateescape")


def of_machine(root: str = "/") -> Content:
    """The content over the machine's own /usr."""
    content = plain()
    content.directories += ["root", "usr", "opt", "mnt", "srv"]
    content.files |= {
        "etc/passwd": PASSWD.encode(),
        "etc/group": GROUP.encode(),
        "etc/nsswitch.conf": NSSWITCH.encode(),
        "etc/hostname": b"box\n",
        "etc/shells": b"/bin/sh\n/bin/bash\n",
        "etc/host.conf": b"multi on\n",
    }
    content.links["etc/mtab"] = "../proc/self/mounts"
    for name in _COPIED:
        _add(content, os.path.join(root, "etc", name), f"etc/{name}")
    return content


def _add(content: Content, source: str, name: str) -> None:
    """Add what is at `source` under `name`. Every keeper does this before its first box, for hundreds of entries."""
    if not os.path.lexists(source):
        return
    parent = os.path.dirname(name)
    while parent and parent not in content.directories:
        content.directories.append(parent)
        parent = os.path.dirname(parent)
    if os.path.islink(source):
        content.links[name] = os.readlink(source)
    elif os.path.isdir(source):
        _add_tree(content, source, name)
    elif os.path.isfile(source) and _for_everybody(os.stat(source)):
        content.copies[name] = source


def _add_tree(content: Content, source: str, name: str) -> None:
    if name not in content.directories:
        content.directories.append(name)
    content.ages[name] = os.stat(source).st_mtime_ns
    with os.scandir(source) as entries:
        for entry in entries:
            below = f"{name}/{entry.name}"
            if entry.is_symlink():
                content.copied_links[below] = entry.path
            elif entry.is_dir():
                _add_tree(content, entry.path, below)
            elif entry.is_file() and _for_everybody(entry.stat()):
                content.copies[below] = entry.path


def _for_everybody(facts: os.stat_result) -> bool:
    """Whether everybody may read the file. Others are not shown to boxes."""
    return bool(facts.st_mode & 0o004)


def make(content: Content, parent: str) -> str:
    """The directory with this content below `parent`, which is made if it does not exist."""
    final = os.path.join(parent, content.digest())
    if os.path.isdir(final):
        return final
    from hutch.providers.native.rootfs.prepared import (
        prepared,  # `hutch run` finds the directory there, and need not load it
    )

    os.makedirs(parent, 0o755, exist_ok=True)
    with prepared(final) as draft:
        _fill(content, draft)
    return final


def _fill(content: Content, draft: str) -> None:
    from shutil import copyfile

    for name in sorted(set(content.directories)):
        path = os.path.join(draft, name)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o755)
    for name, data in content.files.items():
        path = os.path.join(draft, name)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, 0o644)
    for name, source in content.copies.items():
        path = os.path.join(draft, name)
        copyfile(source, path)
        os.chmod(path, 0o644)
    links = {name: os.readlink(source) for name, source in content.copied_links.items()}
    for name, target in (content.links | links).items():
        os.symlink(target, os.path.join(draft, name))
