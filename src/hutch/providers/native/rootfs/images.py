"""Resolves an image reference into the directories of a box's overlay.

`host` is this machine's /usr under a minimal /etc; `dir:PATH` any unpacked root; `tar:PATH` is unpacked once, into a
directory named by its digest; `oci:NAME` is an image of the store, one directory for each of its layers.
"""

import asyncio
import contextlib
import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from hutch.errors import EngineError, HutchError, Invalid, NotFound, Refused
from hutch.images.settings import ImageSettings
from hutch.model.images import ImageDefaults
from hutch.model.spec import CheckedMount
from hutch.providers.native.rootfs import skeleton

if TYPE_CHECKING:
    from hutch.images import store as images
    from hutch.images.manifests import Stored

_ROOTS, _SKELETONS = "images", "skeletons"
"""Directories below the cache: unpacked archives, and skeletons."""
ENVIRONMENT = os.path.join("kernels", "environment")
"""A link below the state directory, to the environment whose interpreters are forked into boxes."""
_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class Image(NamedTuple):
    """The image's part of a `root.BoxTemplate`, which describes the fields."""

    lowers: tuple[str, ...]
    binds: tuple[tuple[str, str], ...] = ()
    is_machine: bool = False
    pin: tuple[int, int] | None = None
    """Device and inode of the lowest directory, if it belongs to the caller."""
    changeable: tuple[tuple[str, str], ...] = ()
    """Directories, as `binds` names them, that only a box with a writable root needs."""
    environment: str = ""
    """The directory of prepared interpreters, which boxes see at the same path; "" if there is none."""


class Images:
    """Resolves image references and remembers what was prepared."""

    def __init__(self, cache: str, home: str = "", settings: ImageSettings | None = None) -> None:
        self._cache = cache
        self._home = home or os.path.join(cache, "store")
        self._settings = settings or ImageSettings()
        self._environment_link = os.path.join(os.path.dirname(cache), ENVIRONMENT)
        self._known: dict[str, Image] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._loaded: dict[str, tuple[Image, ImageDefaults]] = {}
        """Images of the store, by the digest of their manifest."""

    async def resolve(self, reference: str, place: CheckedMount | None = None) -> Image:
        """Resolve a `host`, `dir:` or `tar:` image. `place` is the directory or archive as policy has allowed it."""
        if place is not None:
            reference = f"{reference.partition(':')[0]}:{place.real}"
            _check_same(reference, place)
        known = self._known.get(reference)
        if known is not None and known.is_machine and known.environment != self._environment():
            known = None  # it was prepared since
        if known is not None and (place is None or known.pin in (None, (place.dev, place.ino))):
            return known
        self._known.pop(reference, None)  # the directory was replaced since
        async with self._lock(reference):  # one preparation for each reference
            if reference not in self._known:
                self._known[reference] = await asyncio.to_thread(self._prepare, reference, place)
        return self._known[reference]

    # --- images of the store ---------------------------------------------------------------------------------

    async def defaults(self, reference: str) -> ImageDefaults | None:
        """The image's defaults for commands. A missing image is pulled if the settings say so, else NotFound."""
        kind, _, name = reference.partition(":")
        if kind != "oci":
            return None
        if self._settings.pull in ("missing", "always"):
            async with self._lock(reference):
                await asyncio.to_thread(self._pull, name)
        return await asyncio.to_thread(lambda: self._load(self._store().find(name))[1])

    async def needs_pull(self, reference: str) -> bool:
        """Whether `defaults` would pull the image, because the store does not have it."""
        if self._settings.pull not in ("missing", "always"):
            return False
        try:
            await asyncio.to_thread(self._store().find, reference.removeprefix("oci:"))
        except NotFound:
            return True
        return False

    async def hold_for_box(self, reference: str, box_id: str, places: tuple[str, ...]) -> Image:
        """Resolve an image of the store, and keep its layers from removal while one of the paths `places` exists."""
        return await asyncio.to_thread(self._hold_for_box, reference.partition(":")[2], box_id, places)

    def release(self, box_id: str) -> None:
        """Release the box's image. Most boxes use no image of the store, and this must not cost them an import."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._home, "uses", f"{box_id}.json"))

    def sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """Remove what killed keepers left unfinished, and return the paths."""
        from hutch.providers.native.rootfs import prepared

        places = (os.path.join(self._cache, name) for name in (_ROOTS, _SKELETONS))
        return tuple(path for place in places for path in prepared.sweep(place, dry_run=dry_run))

    def _hold_for_box(self, name: str, box_id: str, places: tuple[str, ...]) -> Image:
        from hutch.images import uses
        from hutch.images.manifests import Stored

        store = self._store()
        with store.lock_shared():
            # A restored box keeps the image it had, whatever the name refers to by now.
            held = uses.find(store, box_id)
            stored = Stored(name=held.name, manifest=held.image) if held else store.find(name)
            image = self._load(stored)[0]
            uses.record(store, box_id, stored, places)
        return image

    def _load(self, stored: "Stored") -> tuple[Image, ImageDefaults]:
        known = self._loaded.get(stored.manifest)
        if known is not None and all(map(os.path.isdir, known[0].lowers)):
            return known
        found = self._store().load(stored)
        layers = found.layers or (self._empty(),)
        image = Image((self._skeleton(skeleton.over_layers(layers)), *layers))
        self._loaded[stored.manifest] = image, found.defaults()
        return self._loaded[stored.manifest]

    def _pull(self, name: str) -> None:
        from hutch.images.pull import pull

        store = self._store()
        if self._settings.pull == "missing":
            with contextlib.suppress(NotFound):
                store.open(name)
                return
        pull(store, name)

    def _store(self) -> "images.Store":
        from hutch.images.store import Store

        return Store(self._home, self._settings)

    # --- all others ------------------------------------------------------------------------------------------

    def _prepare(self, reference: str, place: CheckedMount | None) -> Image:
        kind, _, path = reference.partition(":")
        try:
            if reference == "host":
                return self._host_image()
            if kind == "dir":
                return self._directory(path, place)
            if kind == "tar":
                return self._archive(path, place)
        except HutchError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message = f"image {reference!r} cannot be prepared: {error}"
                remedy = f"free space on the file system of {self._cache}, or set HUTCH_STATE_DIR to another"
                raise EngineError(message, op="create", remedy=remedy) from error
            raise NotFound(f"image {reference!r} cannot be used: {error}", op="create") from error
        raise Invalid(f"image {reference!r} is none of host, dir:PATH, tar:PATH, oci:REF", op="create")

    def _environment(self) -> str:
        """The prepared environment of this machine's kernels, whose directory the link names."""
        try:
            found = os.readlink(self._environment_link)
        except OSError:
            return ""
        return found if os.path.isdir(found) and not found.startswith("/usr/") else ""

    def _host_image(self) -> Image:
        content = skeleton.of_machine()
        environment = self._environment()
        parts = environment.strip("/").split("/") if environment else []
        content.directories += ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        binds = [("/usr", "usr")]
        for name in _USR_LINKS:
            if os.path.islink(f"/{name}"):
                content.links[name] = os.readlink(f"/{name}").lstrip("/")
            elif os.path.isdir(f"/{name}"):
                content.directories.append(name)
                binds.append((f"/{name}", name))
        packages = ((f"/{skeleton.PACKAGES}", skeleton.PACKAGES),) if skeleton.PACKAGES in content.directories else ()
        return Image((self._skeleton(content),), tuple(binds), True, changeable=packages, environment=environment)

    def _directory(self, path: str, place: CheckedMount | None) -> Image:
        real = os.path.realpath(path)
        if not os.path.isabs(path) or not os.path.isdir(real):
            raise NotFound(f"image dir:{path} is no directory", op="create", remedy="give the absolute path of a root")
        if real == "/":
            raise Invalid("dir:/ would show the whole machine to the box", op="create", remedy="use the image `host`")
        found = os.stat(real)
        if place is not None and (real, found.st_dev, found.st_ino) != (place.real, place.dev, place.ino):
            raise Refused(f"image dir:{path} was replaced after it had been allowed", op="create")
        return Image((self._skeleton(skeleton.over(real)), real), pin=(found.st_dev, found.st_ino))

    def _archive(self, path: str, place: CheckedMount | None) -> Image:
        if not os.path.isabs(path) or not os.path.isfile(path):
            raise NotFound(f"image tar:{path} is no file", op="create", remedy="give the absolute path of an archive")
        from hutch.providers.native.rootfs import unpack  # with its decompressors, which few need

        top = unpack.unpack(path, os.path.join(self._cache, _ROOTS), self._settings.bounds, place)
        return Image((self._skeleton(skeleton.over(top)), top))

    def _skeleton(self, content: skeleton.Content) -> str:
        return skeleton.make(content, os.path.join(self._cache, _SKELETONS))

    def _empty(self) -> str:
        """An empty directory, which serves as the root of an image without layers."""
        path = os.path.join(self._cache, "empty")
        os.makedirs(path, 0o755, exist_ok=True)
        return path

    def _lock(self, reference: str) -> asyncio.Lock:
        return self._locks.setdefault(reference, asyncio.Lock())


def _check_same(reference: str, place: CheckedMount) -> None:
    try:
        found = os.stat(place.real)
    except OSError as error:
        raise NotFound(f"image {reference!r} cannot be used: {error.strerror}", op="create") from error
    if (found.st_dev, found.st_ino) != (place.dev, place.ino):
        raise Refused(f"image {reference!r} was replaced after it had been allowed", op="create")
