"""Installing layers: a verified blob becomes an unpacked layer of the store, once for each diff id and atomically."""

import os
import secrets

import msgspec

from hutch.errors import Refused
from hutch.images import manifests
from hutch.images.layers import unpack
from hutch.images.layers.decompression import DecompressedStream
from hutch.images.manifests import Config, Descriptor, Manifest, RootFs, RunConfig
from hutch.images.store import Layer, Store


def install_layer(store: Store, blob: str, diff_id: str) -> bool:
    """Unpack the blob unless its layer exists; return whether it did. Raises Refused if the content is another."""
    if store.layer(diff_id) is not None:
        return False
    with store.lock_digest(diff_id):
        if store.layer(diff_id) is not None:
            return False  # another process has done it meanwhile
        with store.work_directory() as work, store.open_blob(blob) as packed:
            root = os.path.join(work, "root")
            os.mkdir(root, 0o755)
            facts = unpack.unpack(DecompressedStream(packed, store.settings.bounds), root, store.settings.bounds)
            if facts.diff_id != diff_id:
                raise Refused(
                    f"layer {blob} contains {facts.diff_id}, but the image declares {diff_id}",
                    remedy="its publisher or its registry has changed it: do not use it",
                )
            store.add_layer(diff_id, root, layer_record(diff_id, facts))
    return True


def layer_record(diff_id: str, facts: unpack.UnpackResult) -> Layer:
    return Layer(
        directory=f"{diff_id.partition(':')[2][:32]}.{secrets.token_hex(4)}",
        bytes=facts.bytes,
        entries=facts.entries,
        devices=facts.devices,
        one_owner=os.geteuid() != 0,
    )


def assemble_bytes(store: Store, config: bytes, layers: list[Descriptor]) -> str:
    """Create a manifest for a configuration and layers of the store, and return its digest."""
    config_descriptor = Descriptor(media_type=manifests.CONFIG, digest=store.add_document(config), size=len(config))
    manifest = Manifest(config=config_descriptor, layers=layers)
    data = msgspec.json.encode(manifest)
    manifests.parse_manifest(data, store.settings.bounds.layers)
    ids = manifests.parse_config(config, manifest).rootfs.diff_ids
    for layer, diff_id in zip(layers, ids, strict=True):
        install_layer(store, layer.digest, diff_id)
    return store.add_document(data)


def assemble(store: Store, config: Config, layers: list[Descriptor]) -> str:
    """Return the digest of the image that has this configuration and these layers."""
    return assemble_bytes(store, msgspec.json.encode(config), layers)


def plain_config(diff_ids: list[str], run: RunConfig | None = None) -> Config:
    here = manifests.this_platform()
    return Config(rootfs=RootFs(diff_ids), architecture=here.architecture, os=here.os, config=run or RunConfig())
