"""From a verified blob to an unpacked layer of the store: once for each diff id, all of it or nothing."""

import os
import secrets

import msgspec

from hutch.errors import Refused
from hutch.images import manifests
from hutch.images.layers import unpack
from hutch.images.layers.decompression import Unpacked
from hutch.images.manifests import Config, Descriptor, Manifest, RootFs, RunConfig
from hutch.images.store import Layer, Store


def place(store: Store, blob: str, diff_id: str) -> bool:
    """Unpack the blob unless its layer is there; whether it had to. Refused if it is not what the image says it is."""
    if store.layer(diff_id) is not None:
        return False
    with store.working_on(diff_id):
        if store.layer(diff_id) is not None:
            return False  # somebody else has done it while we waited
        with store.draft() as work, store.open_blob(blob) as packed:
            root = os.path.join(work, "root")
            os.mkdir(root, 0o755)
            facts = unpack.unpack(Unpacked(packed, store.settings.bounds), root, store.settings.bounds)
            if facts.diff_id != diff_id:
                raise Refused(
                    f"layer {blob} holds {facts.diff_id}, and the image says {diff_id}",
                    remedy="whoever made or served the image has changed it: do not use it",
                )
            store.add_layer(diff_id, root, described(diff_id, facts))
    return True


def described(diff_id: str, facts: unpack.Facts) -> Layer:
    return Layer(
        directory=f"{diff_id.partition(':')[2][:32]}.{secrets.token_hex(4)}",
        bytes=facts.bytes,
        entries=facts.entries,
        devices=facts.devices,
        one_owner=os.geteuid() != 0,
    )


def assemble_bytes(store: Store, config: bytes, layers: list[Descriptor]) -> str:
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
    return assemble_bytes(store, msgspec.json.encode(config), layers)


def plain_config(diff_ids: list[str], run: RunConfig | None = None) -> Config:
    here = manifests.here()
    return Config(rootfs=RootFs(diff_ids), architecture=here.architecture, os=here.os, config=run or RunConfig())
