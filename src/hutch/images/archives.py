"""Files by name, in a directory or in an archive: what an image comes in when it does not come from a registry."""

import io
import os
import posixpath
from typing import BinaryIO, NamedTuple, Protocol

from hutch.errors import HutchError, Invalid, NotFound
from hutch.images import manifests, tar_entries
from hutch.images.settings import Bounds
from hutch.images.tar_entries import Reader
from hutch.images.unpack import clean

_MOST_LINKS = 8


class Bundle(Protocol):
    """Where the parts of an image are looked up; names are relative and never lead out."""

    def has(self, name: str) -> bool: ...

    def open(self, name: str) -> BinaryIO: ...


def read(bundle: Bundle, name: str) -> bytes:
    """A document of the bundle."""
    with bundle.open(name) as file:
        data = file.read(manifests.MOST_BYTES + 1)
    if len(data) > manifests.MOST_BYTES:
        raise Invalid(f"{name} is larger than any document of an image")
    return data


class DirectoryBundle:
    """A directory, of which no link is followed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        try:
            self.open(name).close()
        except HutchError:
            return False
        return True

    def open(self, name: str) -> BinaryIO:
        fd = os.open(self._path, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = clean(name).split("/")
            for number, part in enumerate(parts):
                kind = os.O_DIRECTORY if number < len(parts) - 1 else os.O_NONBLOCK
                following = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=fd)
                os.close(fd)
                fd = following
        except OSError as error:
            os.close(fd)
            raise NotFound(f"{self._path} has no file {name} ({error.strerror})") from error
        file = os.fdopen(fd, "rb")
        if not os.path.isfile(f"/proc/self/fd/{fd}"):
            file.close()
            raise NotFound(f"{name} of {self._path} is no file")
        return file


class _Place(NamedTuple):
    offset: int
    size: int
    link: str


class TarBundle:
    """An archive that is not packed, read once for its names."""

    def __init__(self, path: str, bounds: Bounds) -> None:
        self._path = path
        self._places: dict[str, _Place] = {}
        with open(path, "rb") as file:
            reader = Reader(file)
            for number, entry in enumerate(reader):
                if number >= bounds.entries:
                    raise Invalid(f"{path} has more than {bounds.entries} entries")
                self._note(entry, reader, file)

    def _note(self, entry: tar_entries.Entry, reader: Reader, file: BinaryIO) -> None:
        name = clean(entry.name)
        if entry.kind == tar_entries.FILE:
            self._places[name] = _Place(reader.offset, entry.size, "")
            reader.pass_over(file)
        elif entry.kind in (tar_entries.SYMLINK, tar_entries.LINK):
            # `docker save` of old writes a layer that two images share once, and a link for the other.
            above = posixpath.dirname(name) if entry.kind == tar_entries.SYMLINK else ""
            self._places[name] = _Place(0, 0, posixpath.normpath(posixpath.join("/", above, entry.target)).lstrip("/"))

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def open(self, name: str) -> BinaryIO:
        place = self._find(name)
        if place is None:
            raise NotFound(f"{self._path} has no file {name}")
        file = open(self._path, "rb")  # noqa: SIM115  # the caller closes it
        file.seek(place.offset)
        return io.BufferedReader(_Part(file, place.size), 1 << 18)

    def _find(self, name: str) -> _Place | None:
        wanted = clean(name)
        for _ in range(_MOST_LINKS):
            place = self._places.get(wanted)
            if place is None or not place.link:
                return place
            wanted = place.link
        return None


class _Part(io.RawIOBase):
    """The next `size` bytes of a file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
