"""What a box's root is made of: an image reference becomes directories for the overlay.

`host` is this machine's /usr under a minimal /etc; `dir:PATH` any unpacked root; `tar:PATH` is unpacked once, into a
directory named by its digest.
"""

import asyncio
import os
from typing import NamedTuple

from hutch.errors import HutchError, Invalid, NotFound, Refused, Unsupported
from hutch.model.places import CheckedMount
from hutch.providers.native import skeleton

_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class Image(NamedTuple):
    """See `root.Shape` for the fields."""

    lowers: tuple[str, ...]
    binds: tuple[tuple[str, str], ...] = ()
    is_machine: bool = False
    pin: tuple[int, int] | None = None
    """Device and inode of the lowest directory, if it is one of the caller's."""


class Images:
    """Resolves references, remembering what was prepared."""

    def __init__(self, cache: str) -> None:
        self._cache = cache
        self._known: dict[str, Image] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def resolve(self, reference: str, place: CheckedMount | None = None) -> Image:
        """`place` is the directory or archive as policy has allowed it."""
        if place is not None:
            reference = f"{reference.partition(':')[0]}:{place.real}"
            _check_same(reference, place)
        known = self._known.get(reference)
        if known is not None and (place is None or known.pin in (None, (place.dev, place.ino))):
            return known
        self._known.pop(reference, None)  # another directory has taken its place since
        lock = self._locks.setdefault(reference, asyncio.Lock())  # one preparation for each reference
        async with lock:
            if reference not in self._known:
                self._known[reference] = await asyncio.to_thread(self._prepare, reference)
        return self._known[reference]

    def _prepare(self, reference: str) -> Image:
        kind, _, path = reference.partition(":")
        try:
            if reference == "host":
                return self._machine()
            if kind == "dir":
                return self._directory(path)
            if kind == "tar":
                return self._archive(path)
        except HutchError:
            raise
        except OSError as error:
            raise NotFound(f"image {reference!r} cannot be used: {error}", op="create") from error
        if kind == "oci":
            raise Unsupported(
                f"the native provider cannot pull {reference!r}",
                op="create",
                remedy="export it once (`docker export`) and use tar:PATH",
            )
        raise Invalid(f"image {reference!r} is none of host, dir:PATH, tar:PATH, oci:REF", op="create")

    def _machine(self) -> Image:
        content = skeleton.of_machine()
        binds = [("/usr", "usr")]
        for name in _USR_LINKS:
            if os.path.islink(f"/{name}"):
                content.links[name] = os.readlink(f"/{name}").lstrip("/")
            elif os.path.isdir(f"/{name}"):
                content.directories.append(name)
                binds.append((f"/{name}", name))
        return Image((self._skeleton(content),), tuple(binds), is_machine=True)

    def _directory(self, path: str) -> Image:
        real = os.path.realpath(path)
        if not os.path.isabs(path) or not os.path.isdir(real):
            raise NotFound(f"image dir:{path} is no directory", op="create", remedy="give the absolute path of a root")
        if real == "/":
            raise Invalid("dir:/ would show the whole machine to the box", op="create", remedy="use the image `host`")
        found = os.stat(real)
        return Image((self._skeleton(skeleton.over(real)), real), pin=(found.st_dev, found.st_ino))

    def _archive(self, path: str) -> Image:
        if not os.path.isabs(path) or not os.path.isfile(path):
            raise NotFound(f"image tar:{path} is no file", op="create", remedy="give the absolute path of an archive")
        from hutch.providers.native import unpacking  # with tarfile, which few need

        top = unpacking.unpack(path, os.path.join(self._cache, "images"))
        return Image((self._skeleton(skeleton.over(top)), top))

    def _skeleton(self, content: skeleton.Content) -> str:
        return skeleton.make(content, os.path.join(self._cache, "skeletons"))


def _check_same(reference: str, place: CheckedMount) -> None:
    try:
        found = os.stat(place.real)
    except OSError as error:
        raise NotFound(f"image {reference!r} cannot be used: {error.strerror}", op="create") from error
    if (found.st_dev, found.st_ino) != (place.dev, place.ino):
        raise Refused(f"image {reference!r} was replaced after it had been allowed", op="create")
