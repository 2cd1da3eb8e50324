"""Writing an image as an OCI layout in one tar: what other engines and `hutch image import` read."""

import io
import os
import tarfile
from typing import BinaryIO

import msgspec

from hutch.images import manifests
from hutch.images.manifests import Descriptor, Index
from hutch.images.references import is_digest
from hutch.images.store import Image, Store

_NAME = "io.containerd.image.name"
_TAG = "org.opencontainers.image.ref.name"


def export(store: Store, image: Image, out: BinaryIO) -> None:
    """Byte by byte the same for the same image: digests stay what they are."""
    with store.adding(), tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(tar, "index.json", msgspec.json.encode(_index(store, image)))
        parts = (image.digest, image.manifest.config.digest, *(layer.digest for layer in image.manifest.layers))
        for digest in dict.fromkeys(parts):
            info = tarfile.TarInfo(f"blobs/sha256/{digest.partition(':')[2]}")
            with store.open_blob(digest) as file:
                info.size = os.fstat(file.fileno()).st_size
                info.mode = 0o644
                tar.addfile(info, file)


def _index(store: Store, image: Image) -> Index:
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


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    tar.addfile(info, io.BytesIO(data))
