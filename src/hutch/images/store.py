"""The image store: blobs by digest, each layer unpacked once, and names that point at manifests.

    blobs/HEX            a verified blob: manifest, configuration, packed layer
    layers/HEX.json      "this diff id is unpacked in layers/HEX.TOKEN": written last, so nothing half-made is used
    names/KEY.json       one name of one image
    uses/BOX.json        which image a box uses
    steps/KEY.json       the layer that a build step made
    partial/HEX          an interrupted download, to be resumed
    drafts/              work in progress; what a dead process left there is removed

Adding holds `lock` shared and removing holds it exclusively; `locks/HEX` lets one worker at a time handle a digest.
Only its owner can enter the directory.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from typing import IO, BinaryIO

from hutch.errors import Conflict, EngineError, Invalid, NotFound
from hutch.images import manifests, references
from hutch.images.layers import merged_view
from hutch.images.manifests import Config, Manifest, Stored
from hutch.images.references import Reference
from hutch.images.settings import ImageSettings
from hutch.model.images import ImageDefaults
from hutch.model.record import Record

_MIN_DIGEST_PREFIX = 8
_LOCK_TIMEOUT = 5.0


class Layer(Record, frozen=True, kw_only=True):
    """An unpacked layer."""

    directory: str
    """Its name below `layers`; it is new each time, so that a box never finds another layer under an old path."""
    bytes: int
    entries: int
    devices: int
    """Device nodes that were left out."""
    one_owner: bool
    """Whether an unprivileged user unpacked it, who then owns all its files."""


class Image:
    """An image of the store with all its layers present."""

    def __init__(self, stored: Stored, manifest: Manifest, config: Config, layers: tuple[str, ...]) -> None:
        self.stored = stored
        self.manifest = manifest
        self.config = config
        self.layers = layers
        """Layer directories, topmost first."""

    @property
    def digest(self) -> str:
        return self.stored.manifest

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """Layers by diff id, lowest first."""
        return tuple(self.config.rootfs.diff_ids)

    def defaults(self) -> ImageDefaults:
        declared = self.config.defaults()
        # Build tools write `/` when nothing was set; a box's own default is better.
        workdir = declared.workdir if _is_usable_workdir(declared.workdir) else ""
        return declared.but(user=merged_view.box_user(declared.user, self.layers), workdir=workdir)


class Store:
    """The store below one directory. Its methods block; call them from a thread."""

    def __init__(self, home: str | os.PathLike[str], settings: ImageSettings | None = None) -> None:
        self.home = os.fspath(home)
        self.settings = settings or ImageSettings()
        self._prepared = False

    def path(self, *parts: str) -> str:
        return os.path.join(self.home, *parts)

    def prepare(self) -> None:
        """Create the directories, closed to other users: a set-user-id file of an image would work on the host."""
        if self._prepared:
            return
        os.makedirs(self.home, 0o700, exist_ok=True)
        for name in ("blobs", "layers", "names", "uses", "steps", "partial", "drafts", "locks"):
            os.makedirs(self.path(name), 0o700, exist_ok=True)
        self._prepared = True

    # --- locks -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock_shared(self) -> Iterator[None]:
        """Keep others from removing anything while this is held."""
        self.prepare()
        with self._locked(self.path("lock"), fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def lock_exclusive(self, timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
        """Be alone in the store. Raises Conflict while somebody pulls, imports or builds."""
        self.prepare()
        deadline = time.monotonic() + timeout
        with open(self.path("lock"), "a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Conflict(
                            "images are being pulled, imported or built now", remedy="try again when that has ended"
                        ) from None
                    time.sleep(0.05)
            yield

    @contextlib.contextmanager
    def lock_digest(self, digest: str) -> Iterator[None]:
        """Let only one worker in any process handle a digest. The caller holds `lock_shared`."""
        with self._locked(self.path("locks", digest.partition(":")[2]), fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _locked(self, path: str, kind: int) -> Iterator[None]:
        with open(path, "a") as file:
            fcntl.flock(file, kind)
            yield

    @contextlib.contextmanager
    def work_directory(self) -> Iterator[str]:
        """A temporary directory, removed at the end. While its lock is held, no sweep removes it."""
        path, lock = self._new_work_directory()
        with lock:
            try:
                yield path
            finally:
                remove_tree(path)
                os.unlink(f"{path}.lock")

    def _new_work_directory(self) -> tuple[str, IO[str]]:
        while True:
            path = self.path("drafts", secrets.token_hex(8))
            lock = open(f"{path}.lock", "x")  # noqa: SIM115  # the caller closes it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(f"{path}.lock"):  # otherwise a sweep came between the two lines above
                os.mkdir(path, 0o700)
                return path, lock
            lock.close()

    # --- blobs -----------------------------------------------------------------------------------------------

    def blob_path(self, digest: str) -> str:
        if not references.is_digest(digest):
            raise Invalid(f"{digest!r} is not a digest")
        return self.path("blobs", digest.partition(":")[2])

    def has_blob(self, digest: str) -> bool:
        return os.path.exists(self.blob_path(digest))

    def read_blob(self, digest: str) -> bytes:
        """Read a document and verify its digest again, because the file may have changed since."""
        try:
            with open(self.blob_path(digest), "rb") as file:
                data = file.read(manifests.MAX_DOCUMENT_BYTES + 1)
        except FileNotFoundError:
            raise NotFound(f"the store has no blob {digest}", remedy="pull or import the image again") from None
        if manifests.digest_of(data) != digest:
            raise EngineError(
                f"blob {digest} of the store was changed on disk", remedy="`hutch image remove` the image, then pull it"
            )
        return data

    def open_blob(self, digest: str) -> BinaryIO:
        return open(self.blob_path(digest), "rb")

    def add_document(self, data: bytes) -> str:
        """Store a document and return its digest."""
        digest = manifests.digest_of(data)
        if not self.has_blob(digest):
            self.write(self.blob_path(digest), data)
        return digest

    def add_file(self, path: str, digest: str) -> None:
        """Move a file into the store whose digest was verified."""
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        os.rename(path, self.blob_path(digest))

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically, also in case of a power failure."""
        draft = f"{path}.{secrets.token_hex(4)}~"
        try:
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            raise

    # --- layers ----------------------------------------------------------------------------------------------

    def layer(self, diff_id: str) -> Layer | None:
        try:
            with open(self.path("layers", f"{diff_id.partition(':')[2]}.json"), "rb") as file:
                found = Layer.from_json(file.read())
        except FileNotFoundError:
            return None
        return found if os.path.isdir(self.path("layers", found.directory)) else None

    def add_layer(self, diff_id: str, draft: str, facts: Layer) -> None:
        """Move an unpacked directory into the store. It is synced before its record is written: after a power
        failure a record must not refer to empty files."""
        _sync(draft)
        os.rename(draft, self.path("layers", facts.directory))
        self.write(self.path("layers", f"{diff_id.partition(':')[2]}.json"), facts.to_json())

    def layer_path(self, diff_id: str) -> str:
        found = self.layer(diff_id)
        if found is None:
            raise NotFound(f"the store has no layer {diff_id}", remedy="pull or import the image again")
        return self.path("layers", found.directory)

    # --- names -----------------------------------------------------------------------------------------------

    def reference(self, text: str) -> Reference:
        return references.parse(text, self.settings.default_registry)

    def set_name(self, stored: Stored) -> None:
        self.write(self._name_path(stored.name), stored.to_json())

    def remove_name(self, name: str) -> None:
        os.unlink(self._name_path(name))

    def _name_path(self, name: str) -> str:
        return self.path("names", f"{hashlib.sha256(name.encode()).hexdigest()[:40]}.json")

    def names(self) -> tuple[Stored, ...]:
        """Return every name, newest first."""
        found = []
        for file_name in list_names(self.path("names")):
            if file_name.endswith(".json"):
                with contextlib.suppress(FileNotFoundError), open(self.path("names", file_name), "rb") as file:
                    found.append(Stored.from_json(file.read()))
        return tuple(sorted(found, key=lambda each: -each.at))

    def find(self, text: str) -> Stored:
        """Find an image by name, or by the beginning of its digest. NotFound says how to get it."""
        if text.startswith("sha256:") and "/" not in text:
            return self._by_digest(text)
        reference = self.reference(text)
        try:
            with open(self._name_path(str(reference)), "rb") as file:
                return Stored.from_json(file.read())
        except FileNotFoundError:
            raise NotFound(
                f"image {text!r} is not here", remedy=f"hutch image pull {text}", details={"image": str(reference)}
            ) from None

    def _by_digest(self, text: str) -> Stored:
        wanted = text.removeprefix("sha256:")
        if len(wanted) == 64 and self.has_blob(text):
            known = next((each for each in self.names() if each.manifest == text), None)
            return known or Stored(name=text, manifest=text)
        found = {each.manifest: each for each in self.names() if each.manifest.startswith(text)}
        if len(wanted) < _MIN_DIGEST_PREFIX or not found:
            raise NotFound(f"no image here has the digest {text}", remedy="`hutch image list` shows them")
        if len(found) > 1:
            raise Invalid(f"{text} matches {len(found)} digests", remedy="give more of the digest")
        return next(iter(found.values()))

    def open(self, text: str) -> Image:
        """Return the image with all its layers. Raises NotFound if any part of it is missing."""
        return self.load(self.find(text))

    def load(self, stored: Stored) -> Image:
        manifest = manifests.parse_manifest(self.read_blob(stored.manifest), self.settings.bounds.layers)
        config = manifests.parse_config(self.read_blob(manifest.config.digest), manifest)
        layers = tuple(self.layer_path(diff_id) for diff_id in reversed(config.rootfs.diff_ids))
        return Image(stored, manifest, config, layers)


def _sync(path: str) -> None:
    """Sync the whole file system at `path`: a layer has too many files to sync one by one, syncfs(2)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)


def _is_usable_workdir(workdir: str) -> bool:
    """Return whether commands can start there; a bad workdir in an image is no reason to refuse a box."""
    below_root = workdir.startswith("/") and workdir.strip("/")
    return bool(below_root) and ".." not in workdir.split("/") and "\0" not in workdir


def remove_tree(path: str) -> None:
    """Remove a tree, whatever modes an archive gave to its directories."""
    if not os.path.lexists(path):
        return
    if os.geteuid() != 0:
        for directory, names, _ in os.walk(path):
            for name in names:
                entry = os.path.join(directory, name)
                if not os.path.islink(entry):
                    os.chmod(entry, 0o700)
    shutil.rmtree(path)


def list_names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
