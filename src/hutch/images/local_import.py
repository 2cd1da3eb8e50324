"""Importing an image from this machine: an OCI layout, what `docker save` writes (old and new), or a plain root.

The archive may be packed. What it says about itself is checked as if it had come from a registry.
"""

import hashlib
import os
import stat
import time
from typing import Any, BinaryIO

import msgspec

from hutch.errors import Invalid, NotFound, Refused
from hutch.images import archives, manifests, prune, unpack
from hutch.images.archives import Bundle, DirectoryBundle, TarBundle
from hutch.images.decompression import Unpacked
from hutch.images.layer_install import described, place
from hutch.images.manifests import Config, Descriptor, Index, Manifest, Platform, RootFs, RunConfig, Stored
from hutch.images.references import is_digest
from hutch.images.store import Image, Store

_PIECE = 1 << 20
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


def import_path(store: Store, path: str, name: str = "", platform: Platform | None = None) -> tuple[Image, ...]:
    """Every image of the file or directory. `name` is for archives that hold one and do not say how it is called."""
    if not os.path.isdir(path):
        with open_file(path) as file:
            return import_stream(store, file, name, platform)
    with prune.tidied(store), store.adding():
        return _import(store, DirectoryBundle(path), name, platform)


def open_file(path: str) -> BinaryIO:
    try:
        file = open(path, "rb")  # noqa: SIM115  # the caller closes it
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", op="import") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Invalid(f"{path} is no file", op="import", remedy="`-` reads from standard input")
    return file


def import_stream(store: Store, file: BinaryIO, name: str = "", platform: Platform | None = None) -> tuple[Image, ...]:
    """The same from an open file, which need not be one that can be sought in."""
    with prune.tidied(store), store.adding():
        prune.sweep(store)
        with store.draft() as work:
            spool = os.path.join(work, "archive")
            _spool(file, spool, store)
            bundle = TarBundle(spool, store.settings.bounds)
            if bundle.has("index.json") or bundle.has("manifest.json"):
                return _import(store, bundle, name, platform)
            return (_import_root(store, spool, work, name),)


def _spool(file: BinaryIO, path: str, store: Store) -> None:
    """Unpacked, so that its parts can be found again."""
    stream = Unpacked(file, store.settings.bounds)
    with open(path, "xb") as spool:
        while data := stream.read(_PIECE):
            spool.write(data)
            if stream.size > store.settings.bounds.unpacked_mb << 20:
                raise Refused(
                    f"the archive holds more than {store.settings.bounds.unpacked_mb} MB",
                    remedy="if you trust it, raise images.bounds.unpacked_mb",
                )


def _import(store: Store, bundle: Bundle, name: str, platform: Platform | None) -> tuple[Image, ...]:
    wanted = platform or manifests.here()
    if bundle.has("index.json"):
        found = [(_named(each), _from_layout(store, bundle, each, wanted)) for each in _top(bundle, wanted)]
    elif bundle.has("manifest.json"):
        found = _from_docker(store, bundle)
    else:
        raise Invalid("this directory is no OCI layout: it has no index.json", op="import", remedy="use dir:PATH")
    if name and len({digest for _, digest in found}) > 1:
        raise Invalid(f"the archive holds {len(found)} images, and one name was given", remedy="leave the name out")
    images = [_finish(store, name or told, digest) for told, digest in found]
    return tuple({image.stored.name: image for image in images}.values())


def _finish(store: Store, name: str, digest: str) -> Image:
    if not name:
        raise Invalid("the archive does not say how its image is called", op="import", remedy="give it a name")
    stored = Stored(name=str(store.reference(name)), manifest=digest, source="import", at=time.time())
    image = store.load(stored)  # before the name: it is whole
    store.name(stored)
    return image


# --- OCI layouts ---------------------------------------------------------------------------------------------


def _top(bundle: Bundle, wanted: Platform) -> list[Descriptor]:
    index = manifests.decode(Index, archives.read(bundle, "index.json"), "index.json")
    if not index.manifests:
        raise Invalid("index.json names no image", op="import")
    fitting = [each for each in index.manifests if each.platform is None or manifests.fits(each.platform, wanted)]
    if not fitting:
        manifests.choose(index, wanted)  # which says what there is
    return fitting


def _named(descriptor: Descriptor) -> str:
    """A tag alone is no name: a layout with only those leaves the name to whoever imports it."""
    told = [(descriptor.annotations or {}).get(key, "") for key in _NAMES]
    return next((text for text in told if "/" in text or ":" in text), "")


def _from_layout(store: Store, bundle: Bundle, descriptor: Descriptor, wanted: Platform) -> str:
    data = _document(bundle, descriptor.digest)
    if manifests.kind_of(data) in manifests.INDEXES:
        chosen = manifests.choose(manifests.decode(Index, data, "index"), wanted)
        return _from_layout(store, bundle, chosen, wanted)
    manifest = manifests.manifest_of(data, store.settings.bounds.layers)
    config = manifests.config_of(_document(bundle, manifest.config.digest), manifest)
    store.add_document(_document(bundle, manifest.config.digest))
    for layer, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True):
        if not store.has_blob(layer.digest):
            with bundle.open(_blob_name(layer.digest)) as file:
                _take(store, file, layer.digest)
        place(store, layer.digest, diff_id)
    return store.add_document(data)


def _document(bundle: Bundle, digest: str) -> bytes:
    data = archives.read(bundle, _blob_name(digest))
    if manifests.digest_of(data) != digest:
        raise Refused(f"{digest} of the archive is {manifests.digest_of(data)}", op="import", remedy="do not use it")
    return data


def _blob_name(digest: str) -> str:
    if not is_digest(digest):
        raise Invalid(f"the archive names a blob by {digest[:80]!r}", remedy="only sha256 is used")
    return f"blobs/sha256/{digest.partition(':')[2]}"


# --- docker save, before it wrote OCI layouts ----------------------------------------------------------------


class _Saved(msgspec.Struct, rename="pascal"):
    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


def _from_docker(store: Store, bundle: Bundle) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for saved in manifests.decode(list[_Saved], archives.read(bundle, "manifest.json"), "manifest.json"):
        data = archives.read(bundle, saved.config)
        layers = []
        for name in saved.layers:
            with bundle.open(name) as file:
                digest, size = _take(store, file)
            layers.append(Descriptor(media_type=manifests.LAYER, digest=digest, size=size))
        digest = _assemble(store, data, layers)
        found += [(tag, digest) for tag in saved.repo_tags or [""]]
    return found


def _assemble(store: Store, config: bytes, layers: list[Descriptor]) -> str:
    """A manifest of our own over a configuration and layers of the store."""
    described = Descriptor(media_type=manifests.CONFIG, digest=store.add_document(config), size=len(config))
    manifest = Manifest(config=described, layers=layers)
    data = msgspec.json.encode(manifest)
    manifests.manifest_of(data, store.settings.bounds.layers)
    ids = manifests.config_of(config, manifest).rootfs.diff_ids
    for layer, diff_id in zip(layers, ids, strict=True):
        place(store, layer.digest, diff_id)
    return store.add_document(data)


def assemble(store: Store, config: Config, layers: list[Descriptor]) -> str:
    """The digest of the image that has this configuration."""
    return _assemble(store, msgspec.json.encode(config), layers)


# --- a plain root --------------------------------------------------------------------------------------------


def _import_root(store: Store, spool: str, work: str, name: str) -> Image:
    """One layer with everything in it: `docker export`, debootstrap's --make-tarball and the like."""
    root = os.path.join(work, "root")
    os.mkdir(root, 0o755)
    with open(spool, "rb") as file:
        facts = unpack.unpack(Unpacked(file, store.settings.bounds), root, store.settings.bounds)
    size = os.stat(spool).st_size
    with store.working_on(facts.diff_id):
        if not store.has_blob(facts.diff_id):
            store.add_file(spool, facts.diff_id)  # it is not packed, so its digest is its diff id
        if store.layer(facts.diff_id) is None:
            store.add_layer(facts.diff_id, root, described(facts.diff_id, facts))
    config = plain_config([facts.diff_id])
    layer = Descriptor(media_type=manifests.LAYER, digest=facts.diff_id, size=size)
    return _finish(store, name, assemble(store, config, [layer]))


def plain_config(diff_ids: list[str], run: RunConfig | None = None) -> Config:
    here = manifests.here()
    return Config(rootfs=RootFs(diff_ids), architecture=here.architecture, os=here.os, config=run or RunConfig())


def _take(store: Store, file: BinaryIO, wanted: str = "") -> tuple[str, int]:
    """Into the store, hashed on the way; Refused if it is not what was wanted."""
    with store.draft() as work:
        path = os.path.join(work, "blob")
        sha: Any = hashlib.sha256()
        size = 0
        with open(path, "xb") as out:
            while data := file.read(_PIECE):
                sha.update(data)
                out.write(data)
                size += len(data)
                if size > store.settings.bounds.blob_mb << 20:
                    raise Refused("a layer of the archive is larger than images.bounds.blob_mb")
        digest = f"sha256:{sha.hexdigest()}"
        if wanted and digest != wanted:
            raise Refused(f"{wanted} of the archive is {digest}", op="import", remedy="do not use it")
        if not store.has_blob(digest):
            store.add_file(path, digest)
    return digest, size
