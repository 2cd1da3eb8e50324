"""The image of the container tests: the shell and the small tools of this very machine, packed with their libraries."""

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path

NAME = "hutch-test-1:latest"
PROGRAMS = (
    "bash", "sh", "cat", "chmod", "cp", "cut", "dd", "echo", "env", "false", "find", "grep", "head", "id", "ln", "ls",
    "mkdir", "mkfifo", "mv", "nproc", "od", "ps", "pwd", "readlink", "rm", "rmdir", "sed", "seq", "setsid", "sha256sum",
    "sleep", "sort", "stat", "stty", "sync", "tail", "tar", "tee", "test", "timeout", "touch", "tr", "true", "tty", "uname",
    "uniq", "wc", "which", "yes", "printf", "mktemp", "date", "awk", "gzip", "unshare", "kill", "truncate", "chown", "df", "md5sum", "hostname", "nohup", "expr", "basename", "dirname", "xargs", "diff", "cmp", "getconf",
)  # fmt: skip


@cache
def archive() -> bytes:
    """A root file system as one tar; the same bytes as long as the machine's programs are the same."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        if found is None:
            continue
        real = os.path.realpath(found)
        if os.path.basename(real) != name:
            links[f"usr/bin/{name}"] = os.path.basename(real)
        files[f"usr/bin/{os.path.basename(real)}"] = real
        for library in _libraries(real):
            files[f"usr/lib/{library.lstrip('/')}".replace("usr/lib/lib/", "usr/lib/").replace("usr/lib/usr/lib/", "usr/lib/")] = library
    linker = next(Path("/lib64").glob("ld-linux*"), None)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for directory in ("dev", "etc", "home", "proc", "root", "sys", "tmp", "usr/bin", "usr/lib", "usr/sbin", "usr/lib64", "var/tmp", "run"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory.endswith("tmp") else 0o755
            tar.addfile(entry)
        for name, target in {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin", **links}.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        if linker is not None:
            files[f"usr/lib64/{linker.name}"] = str(linker)
        written = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
                   "etc/group": b"root:x:0:\nuser:x:1000:\n"}  # fmt: skip
        for name, content in {**{name: Path(source).read_bytes() for name, source in sorted(files.items())}, **written}.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644 if name.startswith("etc") else 0o755
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _libraries(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return re.findall(r"=> (/\S+)", listed)
