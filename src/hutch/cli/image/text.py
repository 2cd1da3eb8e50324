"""What is told of an image, for people and as JSON."""

import time
from typing import Any

from hutch.cli.tables import amount
from hutch.images import references, uses
from hutch.images.manifests import Stored
from hutch.images.store import Image, Store
from hutch.model.durations import shown

HEADER = ("IMAGE", "DIGEST", "LAYERS", "SIZE", "BOXES", "AGE")
_SHORT = 12


def short(store: Store, name: str) -> str:
    return store.reference(name).short if not references.is_digest(name) else name


def brief(store: Store, stored: Stored, boxes: list[str]) -> dict[str, Any]:
    image = store.load(stored)
    sizes = [layer.bytes for diff_id in image.diff_ids if (layer := store.layer(diff_id))]
    return {
        "name": stored.name,
        "short": short(store, stored.name),
        "digest": stored.manifest,
        "layers": len(sizes),
        "bytes": sum(sizes),
        "boxes": boxes,
        "at": stored.at,
        "source": stored.source,
    }


def full(store: Store, image: Image) -> dict[str, Any]:
    """Everything, with each layer on its own."""
    layers = [
        {"diff_id": diff_id, "blob": part.digest, "packed_bytes": part.size, **_layer(store, diff_id)}
        for diff_id, part in zip(image.diff_ids, image.manifest.layers, strict=True)
    ]
    config = image.config
    return {
        **brief(store, image.stored, boxes_of(store, image.digest)),
        "platform": "/".join(part for part in (config.os, config.architecture, config.variant) if part),
        "created": config.created,
        "config": image.config.defaults().to_plain(),
        "layers": layers,
    }


def row(image: dict[str, Any]) -> tuple[str, ...]:
    return (
        image["short"],
        image["digest"].partition(":")[2][:_SHORT],
        str(image["layers"]),
        amount(image["bytes"]),
        str(len(image["boxes"])),
        shown(max(0.0, time.time() - image["at"])),
    )


def boxes_of(store: Store, digest: str) -> list[str]:
    return [box_id for box_id, use in uses.live(store).items() if use.image == digest]


def _layer(store: Store, diff_id: str) -> dict[str, Any]:
    found = store.layer(diff_id)
    if found is None:
        return {"bytes": None}
    return {
        "bytes": found.bytes, "entries": found.entries, "devices_left_out": found.devices, "one_owner": found.one_owner,
    }  # fmt: skip
