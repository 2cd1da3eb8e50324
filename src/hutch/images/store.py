"""Where images live: blobs by digest, each layer unpacked once, names that point at manifests.

    blobs/HEX            a verified blob: manifest, configuration, packed layer
    layers/HEX.json      "this diff id is unpacked in layers/HEX.TOKEN": written last, so nothing half-made is used
    names/KEY.json       one name of one image
    uses/BOX.json        which image a box stands on
    steps/KEY.json       the layer that a build step made
    partial/HEX          a download that was cut, to be resumed
    drafts/              work under way; what a dead process left there is swept

Whoever adds holds `lock` shared, whoever collects holds it exclusively; `locks/HEX` makes one worker of many.
Everything lies in a directory that only its owner can enter.
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

_SHORTEST_DIGEST = 8
_BUSY_SECONDS = 5.0


class Layer(Record, frozen=True, kw_only=True):
    """A layer as it was unpacked."""

    directory: str
    """Its name below `layers`; another one each time, so that a box never meets another layer under an old path."""
    bytes: int
    entries: int
    devices: int
    """Device nodes that were left out."""
    one_owner: bool
    """Unpacked by an ordinary user, to whom all its files belong."""


class Image:
    """An image of the store, ready to be used."""

    def __init__(self, stored: Stored, manifest: Manifest, config: Config, layers: tuple[str, ...]) -> None:
        self.stored = stored
        self.manifest = manifest
        self.config = config
        self.layers = layers
        """Directories, topmost first."""

    @property
    def digest(self) -> str:
        return self.stored.manifest

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """Lowest first."""
        return tuple(self.config.rootfs.diff_ids)

    def defaults(self) -> ImageDefaults:
        told = self.config.defaults()
        # `/` is what builders write when nobody said anything; a box's own default is better than that.
        workdir = told.workdir if _is_place(told.workdir) else ""
        return told.but(user=merged_view.box_user(told.user, self.layers), workdir=workdir)


class Store:
    """The store below one directory. Methods block; call them from a thread."""

    def __init__(self, home: str | os.PathLike[str], settings: ImageSettings | None = None) -> None:
        self.home = os.fspath(home)
        self.settings = settings or ImageSettings()
        self._prepared = False

    def path(self, *parts: str) -> str:
        return os.path.join(self.home, *parts)

    def prepare(self) -> None:
        """Closed to others: on the host a set-user-id file of an image would be just that."""
        if self._prepared:
            return
        os.makedirs(self.home, 0o700, exist_ok=True)
        for name in ("blobs", "layers", "names", "uses", "steps", "partial", "drafts", "locks"):
            os.makedirs(self.path(name), 0o700, exist_ok=True)
        self._prepared = True

    # --- locks -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Nothing is collected while this lasts."""
        self.prepare()
        with self._locked(self.path("lock"), fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def collecting(self, patience: float = _BUSY_SECONDS) -> Iterator[None]:
        """Alone in the store. Conflict while somebody pulls, imports or builds."""
        self.prepare()
        deadline = time.monotonic() + patience
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
    def working_on(self, digest: str) -> Iterator[None]:
        """One worker for each digest, in whatever process. Only inside `adding`."""
        with self._locked(self.path("locks", digest.partition(":")[2]), fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _locked(self, path: str, kind: int) -> Iterator[None]:
        with open(path, "a") as file:
            fcntl.flock(file, kind)
            yield

    @contextlib.contextmanager
    def draft(self) -> Iterator[str]:
        """A directory to work in, removed afterwards if it is still there. Its name tells whose it is: while the
        lock on it is held, nobody sweeps it."""
        path, lock = self._begun_draft()
        with lock:
            try:
                yield path
            finally:
                remove_tree(path)
                os.unlink(f"{path}.lock")

    def _begun_draft(self) -> tuple[str, IO[str]]:
        while True:
            path = self.path("drafts", secrets.token_hex(8))
            lock = open(f"{path}.lock", "x")  # noqa: SIM115  # the caller closes it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(f"{path}.lock"):  # else a sweep came between the two lines above
                os.mkdir(path, 0o700)
                return path, lock
            lock.close()

    # --- blobs -----------------------------------------------------------------------------------------------

    def blob_path(self, digest: str) -> str:
        if not references.is_digest(digest):
            raise Invalid(f"{digest!r} is no digest")
        return self.path("blobs", digest.partition(":")[2])

    def has_blob(self, digest: str) -> bool:
        return os.path.exists(self.blob_path(digest))

    def read_blob(self, digest: str) -> bytes:
        """A document. It is hashed again: what is used must be what was verified."""
        try:
            with open(self.blob_path(digest), "rb") as file:
                data = file.read(manifests.MOST_BYTES + 1)
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
        """Its digest."""
        digest = manifests.digest_of(data)
        if not self.has_blob(digest):
            self.write(self.blob_path(digest), data)
        return digest

    def add_file(self, path: str, digest: str) -> None:
        """Take over a file whose digest was verified."""
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        os.rename(path, self.blob_path(digest))

    def write(self, path: str, data: bytes) -> None:
        """All of it or nothing, also when the power fails."""
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
        """Take over an unpacked directory. It is on the disk before its record is: after a power failure a record must
        not tell of files that are empty."""
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

    def name(self, stored: Stored) -> None:
        self.write(self._name_path(stored.name), stored.to_json())

    def unname(self, name: str) -> None:
        os.unlink(self._name_path(name))

    def _name_path(self, name: str) -> str:
        return self.path("names", f"{hashlib.sha256(name.encode()).hexdigest()[:40]}.json")

    def named(self) -> tuple[Stored, ...]:
        """Every name, newest first."""
        found = []
        for file_name in listed(self.path("names")):
            if file_name.endswith(".json"):
                with contextlib.suppress(FileNotFoundError), open(self.path("names", file_name), "rb") as file:
                    found.append(Stored.from_json(file.read()))
        return tuple(sorted(found, key=lambda each: -each.at))

    def find(self, text: str) -> Stored:
        """By name, or by the beginning of its digest. NotFound says how to get it."""
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
            known = next((each for each in self.named() if each.manifest == text), None)
            return known or Stored(name=text, manifest=text)
        found = {each.manifest: each for each in self.named() if each.manifest.startswith(text)}
        if len(wanted) < _SHORTEST_DIGEST or not found:
            raise NotFound(f"no image here has the digest {text}", remedy="`hutch image list` shows them")
        if len(found) > 1:
            raise Invalid(f"{text} is the beginning of {len(found)} digests", remedy="give more of it")
        return next(iter(found.values()))

    def open(self, text: str) -> Image:
        """The image with all its layers; NotFound if it, or a part of it, is not here."""
        return self.load(self.find(text))

    def load(self, stored: Stored) -> Image:
        manifest = manifests.manifest_of(self.read_blob(stored.manifest), self.settings.bounds.layers)
        config = manifests.config_of(self.read_blob(manifest.config.digest), manifest)
        layers = tuple(self.layer_path(diff_id) for diff_id in reversed(config.rootfs.diff_ids))
        return Image(stored, manifest, config, layers)


def _sync(path: str) -> None:
    """Everything of the file system at `path`: a layer has too many files to sync one by one (syncfs(2))."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)


def _is_place(workdir: str) -> bool:
    """Whether commands can start there: an image's word is no reason to refuse a box."""
    named = workdir.startswith("/") and workdir.strip("/")
    return bool(named) and ".." not in workdir.split("/") and "\0" not in workdir


def remove_tree(path: str) -> None:
    """A tree of ours, whatever modes an archive gave to its directories."""
    if not os.path.lexists(path):
        return
    if os.geteuid() != 0:
        for directory, names, _ in os.walk(path):
            for name in names:
                entry = os.path.join(directory, name)
                if not os.path.islink(entry):
                    os.chmod(entry, 0o700)
    shutil.rmtree(path)


def listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
