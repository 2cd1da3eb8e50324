"""The images of the container tests: this very machine's shell and small tools with their libraries; and busybox alone.

Nothing is downloaded. The small one has no C library at all, which is what a bundle guest must not need.
"""

import io
import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
from functools import cache
from pathlib import Path

NAME = "hutch-test-tools:latest"
SMALL = "hutch-test-busybox:latest"
INTERPRETERS = "hutch-test-interpreters:latest"
PROGRAMS = (
    "awk", "basename", "bash", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df", "echo", "env", "expr",
    "false", "find", "grep", "head", "hostname", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mktemp", "mv", "nohup",
    "od", "perl", "printf", "ps", "pwd", "readlink", "rm", "rmdir", "sed", "seq", "setsid", "sh", "sha256sum", "sleep",
    "sort", "stat", "stty", "sync", "tail", "tar", "tee", "test", "timeout", "touch", "tr", "true", "truncate", "tty",
    "uname", "uniq", "unshare", "wc", "xargs", "yes",
)  # fmt: skip
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "tkinter", "site-packages", "dist-packages"}
"""What a kernel never imports of the standard library."""
DIRECTORIES = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/lib64", "usr/sbin", "var/tmp")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"


@cache
def archive() -> bytes:
    """Programs and libraries at the paths that they have here."""
    return _with_libraries(PROGRAMS, {})


def _with_libraries(programs: tuple[str, ...], extra: dict[str, bytes]) -> bytes:
    files: dict[str, bytes] = {"etc/passwd": PASSWD, "etc/group": b"root:x:0:\nuser:x:1000:\n", **extra}
    links = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
    for name in programs:
        found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        if found is None:
            continue
        real = os.path.realpath(found)
        if os.path.basename(real) != name:
            links[f"usr/bin/{name}"] = os.path.basename(real)
        files[f"usr/bin/{os.path.basename(real)}"] = Path(real).read_bytes()
        for library in _libraries(real):
            place = library.lstrip("/")
            files[place if place.startswith("usr/") else f"usr/{place}"] = Path(library).read_bytes()
    return _packed(files, links)


@cache
def interpreters() -> bytes:
    """The same with this machine's Python, its standard library, and Node."""
    library = Path(sysconfig.get_path("stdlib"))
    files = {
        str(path).lstrip("/"): path.read_bytes()
        for path in library.rglob("*")
        if path.suffix in (".py", ".so") and path.is_file() and not _LEFT_OUT & set(path.parts)
    }
    return _with_libraries((*PROGRAMS, "python3", "node"), files)


@cache
def small() -> bytes:
    """One static program under many names."""
    busybox = shutil.which("busybox")
    if busybox is None:
        return archive()
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True).stdout.split()
    links = {"bin": "usr/bin", "sbin": "usr/sbin", **{f"usr/bin/{name}": "busybox" for name in names}}
    links.pop("usr/bin/busybox", None)
    return _packed({"usr/bin/busybox": Path(busybox).read_bytes(), "etc/passwd": PASSWD}, links)


def _packed(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in DIRECTORIES:
            tar.addfile(_entry(name, tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755))
        for name, target in links.items():
            entry = _entry(name, tarfile.SYMTYPE, 0o777)
            entry.linkname = target
            tar.addfile(entry)
        for name, content in sorted(files.items()):
            entry = _entry(name, tarfile.REGTYPE, 0o644 if name.startswith("etc/") else 0o755)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _libraries(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [*re.findall(r"=> (/\S+)", listed), *re.findall(r"^\s+(/lib64/\S+)", listed, re.M)]
