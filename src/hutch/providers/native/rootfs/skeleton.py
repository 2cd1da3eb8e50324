"""The topmost read-only layer of every box: mount points, and for the machine's own image a minimal /etc.

A skeleton is made once for each content, named by its digest, and never changed afterwards, so that any number of boxes
and keepers may use it at the same time.
"""

import contextlib
import os
import stat
from collections.abc import Callable

from hutch.linux import kernel
from hutch.linux.identity import USER
from hutch.model.ids import digest
from hutch.providers.native.rootfs.root import DEVICES, HOME, TOOLS

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

PIP_CONF = b"[global]\nbreak-system-packages = true\n"
"""A box is its own environment: pip may install into its user's home, or as root into a writable system (PEP 668)."""

# Files of /etc that programs of the machine's /usr expect. None of them is secret or names the machine.
_COPIED = (
    "ImageMagick-6", "ImageMagick-7", "adduser.conf", "alternatives", "apt/keyrings", "apt/preferences.d",
    "apt/sources.list", "apt/sources.list.d", "apt/trusted.gpg", "apt/trusted.gpg.d", "bash.bashrc",
    "ca-certificates", "ca-certificates.conf", "debconf.conf", "debian_version", "deluser.conf", "dpkg", "fonts",
    "inputrc", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "login.defs", "lsb-release", "magic", "magic.mime", "mime.types", "os-release", "pam.d", "perl",
    "pki/ca-trust/extracted", "pki/tls/certs", "profile", "protocols", "python3", "python3.11", "python3.12",
    "python3.13", "security", "services", "skel", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip


PACKAGES = "var/lib/dpkg"
"""The machine's list of installed packages, which belongs to its /usr: with a writable system, apt goes on from it."""
_APT_DIRECTORIES = (
    "etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d", PACKAGES, "var/cache/apt/archives/partial",
    "var/cache/debconf", "var/lib/apt/lists/partial", "var/log/apt",
)  # fmt: skip
_MAX_SOURCE_BYTES = 1 << 16
_FIRST_PERSON = 1000
"""Ids below this belong to packages, those from it on to people."""


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
    content.links["etc/hostname"] = "/proc/sys/kernel/hostname"
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
    if not read("etc/pip.conf"):
        content.files["etc/pip.conf"] = PIP_CONF
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
    content.directories += ["root", "usr", "opt", "opt/hutch", TOOLS, "mnt", "srv", "etc/profile.d"]
    content.files |= {
        "etc/passwd": _with_system_accounts(PASSWD, os.path.join(root, "etc/passwd")),
        "etc/group": _with_system_accounts(GROUP, os.path.join(root, "etc/group")),
        "etc/shadow": b"root:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\n",
        "etc/gshadow": b"",
        "etc/nsswitch.conf": NSSWITCH.encode(),
        "etc/shells": b"/bin/sh\n/bin/bash\n",
        "etc/host.conf": b"multi on\n",
        "etc/pip.conf": PIP_CONF,
        "etc/profile.d/hutch.sh": f'PATH="$HOME/.local/bin:$PATH:/{TOOLS}"\n'.encode(),
    }
    content.links["etc/mtab"] = "../proc/self/mounts"
    if not any(os.path.lexists(os.path.join(root, place, "python")) for place in ("usr/bin", "usr/local/bin")):
        content.links[f"{TOOLS}/python"] = "/usr/bin/python3"
    for name in _COPIED:
        _add(content, os.path.join(root, "etc", name), f"etc/{name}")
    if os.path.isdir(os.path.join(root, PACKAGES)):
        for name in _APT_DIRECTORIES:
            _add_directories(content, name)
    for name in [
        name for name in content.copies if name.startswith("etc/apt/sources") and _has_password(content, name)
    ]:
        del content.copies[name]
    return content


def _with_system_accounts(own: str, path: str) -> bytes:
    """Add the machine's system accounts or groups, which its packages brought, without members and descriptions."""
    lines = own.splitlines()
    taken = {part for line in lines for part in line.split(":")[:3:2]}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            rows = [line.rstrip("\n").split(":") for line in file]
    except FileNotFoundError:
        rows = []
    for name, _, number, *rest in (row for row in rows if len(row) >= 4):
        if not (number.isdecimal() and 0 < int(number) < _FIRST_PERSON) or taken & {name, number}:
            continue
        is_group = len(rest) == 1
        lines.append(f"{name}:x:{number}:" + ("" if is_group else f"{rest[0]}::/:/usr/sbin/nologin"))
    return ("\n".join(lines) + "\n").encode()


def _has_password(content: Content, name: str) -> bool:
    """Whether a list of package sources has a user's password in an address."""
    with open(content.copies[name], "rb") as file:
        text = file.read(_MAX_SOURCE_BYTES)
    return any(b"@" in address.split(b"/", 1)[0] for address in text.split(b"://")[1:])


def _add(content: Content, source: str, name: str) -> None:
    """Add what is at `source` under `name`. Every keeper does this before its first box, for hundreds of entries."""
    if not os.path.lexists(source):
        return
    _add_directories(content, os.path.dirname(name))
    if os.path.islink(source):
        content.links[name] = os.readlink(source)
    elif os.path.isdir(source):
        _add_tree(content, source, name)
    elif os.path.isfile(source) and _for_everybody(os.stat(source)):
        content.copies[name] = source


def _add_directories(content: Content, name: str) -> None:
    """Add a directory and those above it."""
    while name and name not in content.directories:
        content.directories.append(name)
        name = os.path.dirname(name)


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

    _make_below_private(parent)
    with prepared(final) as draft:
        _fill(content, draft)
    return final


def _make_below_private(parent: str) -> None:
    """Make a directory that everybody may read. What is missing above it may be a state directory: it is private."""
    missing = []
    above = os.path.dirname(parent)
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    with contextlib.suppress(FileExistsError):
        os.mkdir(parent, 0o755)


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
