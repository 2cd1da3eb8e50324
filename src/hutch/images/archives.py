"""Images in files: import of OCI layouts, `docker save` archives (old and new) and plain roots, and export.

An archive may be compressed. What it says about itself is checked as if it had come from a registry.
"""

import hashlib
import io
import os
import posixpath
import stat
import tarfile
import time
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec

from hutch.errors import HutchError, Invalid, NotFound, Refused
from hutch.images import manifests, prune
from hutch.images.layers import tar_entries, unpack
from hutch.images.layers.decompression import DecompressedStream, Readable
from hutch.images.layers.install import assemble, assemble_bytes, install_layer, layer_record, plain_config
from hutch.images.layers.tar_entries import Reader
from hutch.images.layers.unpack import safe_name
from hutch.images.manifests import Descriptor, Index, Platform, Stored
from hutch.images.references import is_digest
from hutch.images.settings import Bounds
from hutch.images.store import Image, Store

_MAX_LINKS = 8
_CHUNK = 1 << 20
_NAME = "io.containerd.image.name"
_TAG = "org.opencontainers.image.ref.name"


class Archive(Protocol):
    """Looks up the files of an image; names are relative and never lead out."""

    def has(self, name: str) -> bool: ...

    def open(self, name: str) -> BinaryIO: ...


def read_document(archive: Archive, name: str) -> bytes:
    """Read a document of the archive."""
    with archive.open(name) as file:
        data = file.read(manifests.MAX_DOCUMENT_BYTES + 1)
    if len(data) > manifests.MAX_DOCUMENT_BYTES:
        raise Invalid(f"{name} is larger than any document of an image")
    return data


class DirectoryArchive:
    """A directory; links in it are not followed."""

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
            parts = safe_name(name).split("/")
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
            raise NotFound(f"{name} of {self._path} is not a file")
        return file


class _Member(NamedTuple):
    offset: int
    size: int
    link: str


class TarArchive:
    """An uncompressed archive, read once for its names."""

    def __init__(self, path: str, bounds: Bounds) -> None:
        self._path = path
        self._members: dict[str, _Member] = {}
        with open(path, "rb") as file:
            reader = Reader(file)
            for number, entry in enumerate(reader):
                if number >= bounds.entries:
                    raise Invalid(f"{path} has more than {bounds.entries} entries")
                self._index(entry, reader, file)

    def _index(self, entry: tar_entries.Entry, reader: Reader, file: BinaryIO) -> None:
        name = safe_name(entry.name)
        if entry.kind == tar_entries.FILE:
            self._members[name] = _Member(reader.offset, entry.size, "")
            reader.skip_content(file)
        elif entry.kind in (tar_entries.SYMLINK, tar_entries.LINK):
            # Old versions of `docker save` write a layer that two images share once, and a link for the other.
            above = posixpath.dirname(name) if entry.kind == tar_entries.SYMLINK else ""
            self._members[name] = _Member(
                0, 0, posixpath.normpath(posixpath.join("/", above, entry.target)).lstrip("/")
            )

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def open(self, name: str) -> BinaryIO:
        member = self._find(name)
        if member is None:
            raise NotFound(f"{self._path} has no file {name}")
        file = open(self._path, "rb")  # noqa: SIM115  # the caller closes it
        file.seek(member.offset)
        return io.BufferedReader(_FileSlice(file, member.size), 1 << 18)

    def _find(self, name: str) -> _Member | None:
        wanted = safe_name(name)
        for _ in range(_MAX_LINKS):
            member = self._members.get(wanted)
            if member is None or not member.link:
                return member
            wanted = member.link
        return None


class _FileSlice(io.RawIOBase):
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


def import_path(store: Store, path: str, name: str = "", platform: Platform | None = None) -> tuple[Image, ...]:
    """Import every image of a file or directory. `name` is for an archive with one image and no name."""
    if not os.path.isdir(path):
        with open_file(path) as file:
            return import_stream(store, file, name, platform)
    with prune.cleaned_on_refusal(store), store.lock_shared():
        return _import(store, DirectoryArchive(path), name, platform)


def open_file(path: str) -> BinaryIO:
    try:
        file = open(path, "rb")  # noqa: SIM115  # the caller closes it
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", op="import") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Invalid(f"{path} is not a file", op="import", remedy="`-` reads from standard input")
    return file


def import_stream(store: Store, file: Readable, name: str = "", platform: Platform | None = None) -> tuple[Image, ...]:
    """Import from an open file, which need not be seekable."""
    with prune.cleaned_on_refusal(store), store.lock_shared():
        prune.sweep(store)
        with store.work_directory() as work:
            spool = os.path.join(work, "archive")
            _spool(file, spool, store)
            archive = TarArchive(spool, store.settings.bounds)
            if archive.has("index.json") or archive.has("manifest.json"):
                return _import(store, archive, name, platform)
            return (_import_root(store, spool, work, name),)


def _spool(file: Readable, path: str, store: Store) -> None:
    """Write the decompressed archive to a file, so that its members can be found again."""
    stream = DecompressedStream(file, store.settings.bounds)
    with open(path, "xb") as spool:
        while data := stream.read(_CHUNK):
            spool.write(data)
            if stream.size > store.settings.bounds.unpacked_mb << 20:
                raise Refused(
                    f"the archive holds more than {store.settings.bounds.unpacked_mb} MB",
                    remedy="if you trust it, raise images.bounds.unpacked_mb",
                )


def _import(store: Store, archive: Archive, name: str, platform: Platform | None) -> tuple[Image, ...]:
    wanted = platform or manifests.this_platform()
    if archive.has("index.json"):
        found = [
            (_name_of(each), _import_layout(store, archive, each, wanted)) for each in _top_manifests(archive, wanted)
        ]
    elif archive.has("manifest.json"):
        found = _import_docker(store, archive)
    else:
        raise Invalid("this directory is not an OCI layout: it has no index.json", op="import", remedy="use dir:PATH")
    if name and len({digest for _, digest in found}) > 1:
        raise Invalid(f"the archive holds {len(found)} images, and one name was given", remedy="leave the name out")
    images = [_set_name(store, name or annotated, digest) for annotated, digest in found]
    return tuple({image.stored.name: image for image in images}.values())


def _set_name(store: Store, name: str, digest: str) -> Image:
    if not name:
        raise Invalid("the archive does not name its image", op="import", remedy="give it a name")
    stored = Stored(name=str(store.reference(name)), manifest=digest, source="import", at=time.time())
    image = store.load(stored)  # before the name is set: this proves that the image is complete
    store.set_name(stored)
    return image


# --- OCI layouts ---------------------------------------------------------------------------------------------


def _top_manifests(archive: Archive, wanted: Platform) -> list[Descriptor]:
    index = manifests.decode(Index, read_document(archive, "index.json"), "index.json")
    if not index.manifests:
        raise Invalid("index.json names no image", op="import")
    fitting = [
        each for each in index.manifests if each.platform is None or manifests.platform_matches(each.platform, wanted)
    ]
    if not fitting:
        manifests.choose_manifest(index, wanted)  # raises an error that lists the platforms there are
    return fitting


def _name_of(descriptor: Descriptor) -> str:
    """Return the name that an annotation gives. A tag alone is no name; then the caller of the import gives one."""
    annotated = [(descriptor.annotations or {}).get(key, "") for key in (_NAME, _TAG)]
    return next((text for text in annotated if "/" in text or ":" in text), "")


def _import_layout(store: Store, archive: Archive, descriptor: Descriptor, wanted: Platform) -> str:
    data = _document(archive, descriptor.digest)
    if manifests.media_type_of(data) in manifests.INDEXES:
        chosen = manifests.choose_manifest(manifests.decode(Index, data, "index"), wanted)
        return _import_layout(store, archive, chosen, wanted)
    manifest = manifests.parse_manifest(data, store.settings.bounds.layers)
    config = manifests.parse_config(_document(archive, manifest.config.digest), manifest)
    store.add_document(_document(archive, manifest.config.digest))
    for layer, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True):
        if not store.has_blob(layer.digest):
            with archive.open(_blob_name(layer.digest)) as file:
                _store_blob(store, file, layer.digest)
        install_layer(store, layer.digest, diff_id)
    return store.add_document(data)


def _damaged(wanted: str, found: str) -> Refused:
    return Refused(
        "the archive is damaged or was changed: a part of it does not have the checksum that the archive itself names",
        op="import", details={"expected": wanted, "found": found},
        remedy="copy or save it again, and do not use this one",
    )  # fmt: skip


def _document(archive: Archive, digest: str) -> bytes:
    data = read_document(archive, _blob_name(digest))
    if manifests.digest_of(data) != digest:
        raise _damaged(digest, manifests.digest_of(data))
    return data


def _blob_name(digest: str) -> str:
    if not is_digest(digest):
        raise Invalid(f"the archive identifies a blob by {digest[:80]!r}", remedy="only sha256 is used")
    return f"blobs/sha256/{digest.partition(':')[2]}"


# --- docker save, before it wrote OCI layouts ----------------------------------------------------------------


class _SavedImage(msgspec.Struct, rename="pascal"):
    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


def _import_docker(store: Store, archive: Archive) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for saved in manifests.decode(list[_SavedImage], read_document(archive, "manifest.json"), "manifest.json"):
        data = read_document(archive, saved.config)
        layers = []
        for name in saved.layers:
            with archive.open(name) as file:
                digest, size = _store_blob(store, file)
            layers.append(Descriptor(media_type=manifests.LAYER, digest=digest, size=size))
        digest = assemble_bytes(store, data, layers)
        found += [(tag, digest) for tag in saved.repo_tags or [""]]
    return found


# --- a plain root --------------------------------------------------------------------------------------------


def _import_root(store: Store, spool: str, work: str, name: str) -> Image:
    """Import one layer with everything in it, from `docker export`, debootstrap's --make-tarball and the like."""
    root = os.path.join(work, "root")
    os.mkdir(root, 0o755)
    with open(spool, "rb") as file:
        facts = unpack.unpack(DecompressedStream(file, store.settings.bounds), root, store.settings.bounds)
    size = os.stat(spool).st_size
    with store.lock_digest(facts.diff_id):
        if not store.has_blob(facts.diff_id):
            store.add_file(spool, facts.diff_id)  # it is not compressed, so its digest is its diff id
        if store.layer(facts.diff_id) is None:
            store.add_layer(facts.diff_id, root, layer_record(facts.diff_id, facts))
    config = plain_config([facts.diff_id])
    layer = Descriptor(media_type=manifests.LAYER, digest=facts.diff_id, size=size)
    return _set_name(store, name, assemble(store, config, [layer]))


def _store_blob(store: Store, file: BinaryIO, wanted: str = "") -> tuple[str, int]:
    """Copy a blob into the store and hash it. Raises Refused if it has another digest than `wanted`."""
    with store.work_directory() as work:
        path = os.path.join(work, "blob")
        sha: Any = hashlib.sha256()
        size = 0
        with open(path, "xb") as out:
            while data := file.read(_CHUNK):
                sha.update(data)
                out.write(data)
                size += len(data)
                if size > store.settings.bounds.blob_mb << 20:
                    raise Refused("a layer of the archive is larger than images.bounds.blob_mb")
        digest = f"sha256:{sha.hexdigest()}"
        if wanted and digest != wanted:
            raise _damaged(wanted, digest)
        if not store.has_blob(digest):
            store.add_file(path, digest)
    return digest, size


def export(store: Store, image: Image, out: BinaryIO) -> None:
    """Write an image as an OCI layout; the same image gives the same bytes, so digests stay the same.

    `docker load` reads the file of its own format, which names the same blobs.
    """
    with store.lock_shared(), tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add_bytes(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add_bytes(tar, "index.json", msgspec.json.encode(_export_index(store, image)))
        _add_bytes(tar, "manifest.json", msgspec.json.encode([_saved(store, image)]))
        parts = (image.digest, image.manifest.config.digest, *(layer.digest for layer in image.manifest.layers))
        for digest in dict.fromkeys(parts):
            info = tarfile.TarInfo(_blob(digest))
            with store.open_blob(digest) as file:
                info.size = os.fstat(file.fileno()).st_size
                info.mode = 0o644
                tar.addfile(info, file)


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.partition(':')[2]}"


def _saved(store: Store, image: Image) -> _SavedImage:
    name = image.stored.name
    tags = [] if is_digest(name) else [str(store.reference(name))]
    layers = [_blob(layer.digest) for layer in image.manifest.layers]
    return _SavedImage(config=_blob(image.manifest.config.digest), layers=layers, repo_tags=tags)


def _export_index(store: Store, image: Image) -> Index:
    config = image.config
    platform = manifests.Platform(architecture=config.architecture, os=config.os, variant=config.variant)
    annotations: dict[str, str] = {}
    if not is_digest(image.stored.name):
        annotations = {_NAME: image.stored.name, _TAG: store.reference(image.stored.name).tag}
    size = len(store.read_blob(image.digest))
    media_type = image.manifest.media_type or manifests.MANIFEST
    return Index(
        manifests=[
            Descriptor(
                media_type=media_type, digest=image.digest, size=size, annotations=annotations, platform=platform
            )
        ]
    )


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    tar.addfile(info, io.BytesIO(data))
