"""What all boxes of one engine share on disk: the packed guest and a small /etc, made once and only ever read."""

import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from hutch.errors import ConfigError
from hutch.providers.guest_bundle.pack import Plant, plant

_COPIED = ("ld.so.cache", "ld.so.conf", "localtime", "mime.types", "protocols", "services", "debian_version")
BORROWED = ("alternatives", "ca-certificates", "pki", "ssl", "java-11-openjdk", "java-17-openjdk", "fonts")
"""Directories of the machine's own /etc without which much of its /usr does not work; none holds a secret that an
ordinary user may read."""


class Ground:
    """Directories of the engine `name`: next to Hutch's run directory, because a box's user has to get through."""

    def __init__(self, name: str, run_dir: str) -> None:
        self.home = Path(f"{run_dir}-{name}")
        self._laid: Path | None = None
        self.plant: Plant | None = None

    def box(self, box_id: str) -> Path:
        return self.home / box_id

    def prepare(self, *, public: bool) -> Path:
        """The shared directory with `plant`, `etc` and `empty`. Blocks; `public`: boxes have a user of their own."""
        if self._laid is not None and self._laid.is_dir():
            return self._laid
        _own_directory(self.home, 0o711 if public else 0o700)
        packed = self.plant = plant()
        etc = _etc()
        mark = hashlib.sha256(repr(sorted(etc.items())).encode()).hexdigest()[:8]
        place = self.home / f".base-{packed.digest}-{mark}"
        if not place.is_dir():
            _lay(place, packed, etc)
        self._laid = place
        return place


def _lay(place: Path, packed: Plant, etc: dict[str, bytes]) -> None:
    """Whole or not at all: others may lay the same at this moment."""
    half = Path(tempfile.mkdtemp(prefix=".laying-", dir=place.parent))
    for name, content in packed.files:
        _write(half / "plant" / name, content, 0o755 if name.startswith(("bin/", "lib/ld")) else 0o644)
    for name, content in etc.items():
        _write(half / "etc" / name, content, 0o644)
    for name in BORROWED:
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
    """Users by the numbers they have inside; what the machine's programs look up besides."""
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
    """In /tmp somebody may have made it before us."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=mode, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(f"{path} is not ours alone", remedy="remove it, or configure another run_dir")
    path.chmod(mode)
