"""Files that all boxes of one engine share: the guest bundle and a small /etc, written once and then only read."""

import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from hutch.errors import ConfigError
from hutch.providers.guest_bundle.pack import GuestBundle, guest_bundle

_COPIED = ("ld.so.cache", "ld.so.conf", "localtime", "mime.types", "protocols", "services", "debian_version")
ETC_DIRECTORIES = ("alternatives", "ca-certificates", "pki", "ssl", "java-11-openjdk", "java-17-openjdk", "fonts")
"""Directories of the host's /etc that much of its /usr needs. None holds a secret that an ordinary user may read."""


class SharedFiles:
    """The directories of the engine `name`, beside Hutch's run directory, which a box's user could not enter."""

    def __init__(self, name: str, run_dir: str) -> None:
        self.home = Path(f"{run_dir}-{name}")
        self._prepared: Path | None = None
        self.bundle: GuestBundle | None = None

    def box(self, box_id: str) -> Path:
        return self.home / box_id

    def prepare(self, *, public: bool) -> Path:
        """Return the directory with `bundle`, `etc` and `empty`. Blocks. `public`: boxes have users of their own."""
        if self._prepared is not None and self._prepared.is_dir():
            return self._prepared
        _own_directory(self.home, 0o711 if public else 0o700)
        packed = self.bundle = guest_bundle()
        etc = _etc()
        mark = hashlib.sha256(repr(sorted(etc.items())).encode()).hexdigest()[:8]
        place = self.home / f".base-{packed.digest}-{mark}"
        if not place.is_dir():
            _write_shared(place, packed, etc)
        self._prepared = place
        return place


def _write_shared(place: Path, packed: GuestBundle, etc: dict[str, bytes]) -> None:
    """Write all of it or nothing, because another process may write the same at this moment."""
    half = Path(tempfile.mkdtemp(prefix=".writing-", dir=place.parent))
    for name, content in packed.files:
        _write(half / "bundle" / name, content, 0o755 if name.startswith(("bin/", "lib/ld")) else 0o644)
    for name, content in etc.items():
        _write(half / "etc" / name, content, 0o644)
    for name in ETC_DIRECTORIES:
        if Path("/etc", name).is_dir():
            (half / "etc" / name).mkdir()
    (half / "empty").mkdir()
    half.chmod(0o755)
    try:
        half.rename(place)
    except OSError:
        shutil.rmtree(half)
        if not place.is_dir():
            raise


def _etc() -> dict[str, bytes]:
    """Return the files of /etc: the users as they are inside, and what the host's programs look up."""
    found = {
        "passwd": b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"
        b"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
        "hosts": b"127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files dns\n",
        "resolv.conf": b"",
    }
    for name in _COPIED:
        path = Path("/etc", name)
        if path.is_file() and path.stat().st_mode & stat.S_IROTH:
            found[name] = path.read_bytes()
    return found


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _own_directory(path: Path, mode: int) -> None:
    """Make the directory, and refuse one that somebody else made before us in /tmp."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=mode, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(f"{path} is not ours alone", remedy="remove it, or configure another run_dir")
    path.chmod(mode)
