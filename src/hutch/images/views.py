"""Descriptions of images for their users: names, size, how commands run, and layers."""

from collections.abc import Iterable

from hutch.errors import HutchError, Invalid, NotFound
from hutch.images import uses
from hutch.images.manifests import Stored
from hutch.images.store import Image, Store
from hutch.logs import log
from hutch.model.images import ImageDetails, ImageInfo, LayerInfo


def list_images(store: Store) -> tuple[ImageInfo, ...]:
    """List images, newest first; one that cannot be read is logged and left out."""
    named, boxes = _by_digest(store.names()), _boxes_by_image(store)
    found = []
    for digest, names in named.items():
        try:
            found.append(_info(store, store.load(names[0]), names, boxes.get(digest, [])))
        except HutchError as error:
            log("images").warning("image cannot be read", image=digest, error=error)
    return tuple(found)


def find_details(store: Store, digest: str) -> ImageDetails:
    """Describe an image by its digest, or the beginning of it."""
    return details(store, find_by_digest(store, digest))


def details(store: Store, stored: Stored) -> ImageDetails:
    image = store.load(stored)
    names = [each for each in store.names() if each.manifest == image.digest] or [stored]
    info = _info(store, image, names, _boxes_by_image(store).get(image.digest, []))
    layers = [
        _layer(store, diff_id, part.size) for diff_id, part in zip(image.diff_ids, image.manifest.layers, strict=True)
    ]
    config = image.config
    return ImageDetails(
        **{field: getattr(info, field) for field in ImageInfo.__struct_fields__},
        platform="/".join(part for part in (config.os, config.architecture, config.variant) if part),
        created=config.created or "", defaults=config.defaults(), parts=tuple(layers),
    )  # fmt: skip


def find_by_digest(store: Store, digest: str) -> Stored:
    """Return the newest name of the image with this digest or digest prefix."""
    found = {each.manifest: each for each in reversed(store.names()) if each.manifest.startswith(digest)}
    if not found or len(digest) < len("sha256:") + 8:
        raise NotFound(f"no image here has the digest {digest[:80]}", remedy="`hutch image list` shows them")
    if len(found) > 1:
        raise Invalid(f"{digest} matches {len(found)} digests", remedy="give more of the digest")
    return next(iter(found.values()))


def _by_digest(named: Iterable[Stored]) -> dict[str, list[Stored]]:
    found: dict[str, list[Stored]] = {}
    for each in named:
        found.setdefault(each.manifest, []).append(each)
    return found


def _boxes_by_image(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for box_id, use in uses.live(store).items():
        found.setdefault(use.image, []).append(box_id)
    return found


def _info(store: Store, image: Image, names: list[Stored], boxes: list[str]) -> ImageInfo:
    sizes = [layer.bytes for diff_id in image.diff_ids if (layer := store.layer(diff_id))]
    return ImageInfo(
        digest=image.digest, names=tuple(each.name for each in names), layers=len(sizes), bytes=sum(sizes),
        at=names[0].at, source=names[0].source, boxes=tuple(boxes), in_use=bool(boxes),
    )  # fmt: skip


def _layer(store: Store, diff_id: str, packed: int) -> LayerInfo:
    found = store.layer(diff_id)
    if found is None:
        return LayerInfo(diff_id=diff_id, packed_bytes=packed)
    return LayerInfo(
        diff_id=diff_id, packed_bytes=packed, bytes=found.bytes, entries=found.entries, devices_left_out=found.devices
    )
