"""What a box's root is made of: an image reference becomes directories for the overlay.

`host` is this machine's /usr under a minimal /etc; `dir:PATH` any unpacked root; `tar:PATH` is unpacked once, into a
directory named by its digest.
"""

import asyncio
import os
from dataclasses import dataclass

from hutch.errors import HutchError, Invalid, NotFound, Unsupported
from hutch.providers.native import skeleton

_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True)
class Image:
    """See `root.Shape` for the fields."""

    lowers: tuple[str, ...]
    binds: tuple[tuple[str, str], ...] = ()
    is_machine: bool = False


class Images:
    """Resolves references, remembering what was prepared."""

    def __init__(self, cache: str) -> None:
        self._cache = cache
        self._known: dict[str, Image] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def resolve(self, reference: str) -> Image:
        known = self._known.get(reference)
        if known is not None:
            return known
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
        return Image((self._skeleton(skeleton.over(real)), real))

    def _archive(self, path: str) -> Image:
        if not os.path.isabs(path) or not os.path.isfile(path):
            raise NotFound(f"image tar:{path} is no file", op="create", remedy="give the absolute path of an archive")
        from hutch.providers.native import unpacking  # with tarfile, which few need

        return self._directory(unpacking.unpack(path, os.path.join(self._cache, "images")))

    def _skeleton(self, content: skeleton.Content) -> str:
        return skeleton.make(content, os.path.join(self._cache, "skeletons"))
