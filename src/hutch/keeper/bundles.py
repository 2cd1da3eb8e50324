"""The file of an exported box: a compressed tar with a manifest, trees and one inner archive. Hostile ones are refused.

Unpacking needs no trust: only files, directories and links; every name stays below; links are made last, so that
nothing is ever written through one.
"""

import os
import secrets
import shutil
import tarfile
from pathlib import Path

from hutch.errors import FileMissing, Invalid, QuotaExceeded

MANIFEST = "hutch.json"
_PARTS = (MANIFEST, "workspace", "home", "system.tar")
_MOST_ENTRIES = 2_000_000


def pack(place: Path, file: Path) -> None:
    """All of the directory `place`; the file is there as a whole or not at all. The manifest comes first."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}~")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as tar:
            for name in _PARTS:
                if (place / name).exists():
                    tar.add(place / name, name, filter=_nobodys)
        draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)


def unpack(file: Path, place: Path, *, most: int = 1 << 40) -> None:
    """Invalid: it is no such file, or one that was made to hurt. `most` bounds what it may become."""
    links: list[tuple[Path, str]] = []
    try:
        with tarfile.open(file, mode="r:gz") as tar:
            for count, entry in enumerate(tar):
                if count > _MOST_ENTRIES:
                    raise Invalid(f"{file} has more than {_MOST_ENTRIES} entries", op="import")
                target = _below(place, entry.name)
                if entry.isdir():
                    target.mkdir(mode=0o700, parents=True, exist_ok=True)
                    target.chmod(entry.mode & 0o777 | 0o700)
                elif entry.issym():
                    links.append((target, entry.linkname))
                elif entry.isreg():
                    most -= entry.size
                    if most < 0:
                        raise QuotaExceeded(f"{file} is larger than it may be", op="import")
                    _write(tar, entry, target)
                else:
                    raise Invalid(f"{entry.name!r} in {file} is neither file, directory nor link", op="import")
    except FileNotFoundError as error:
        raise FileMissing(f"there is no {file}", op="import") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Invalid(f"{file} is no exported box, or is cut off: {error}", op="import") from error
    for target, said in links:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(said)


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Owners mean nothing elsewhere; what is no file, directory or link cannot be carried."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isreg() or entry.isdir() or entry.issym() else None


def _below(place: Path, name: str) -> Path:
    parts = Path(name).parts
    if not parts or name.startswith("/") or ".." in parts or parts[0] not in _PARTS:
        raise Invalid(f"an exported box has no {name!r}", op="import")
    return place.joinpath(*parts)


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    content = tar.extractfile(entry)
    assert content is not None
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        shutil.copyfileobj(content, out, 1 << 20)
    target.chmod(entry.mode & 0o777 | 0o600)
