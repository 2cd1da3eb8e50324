"""Images of this machine over HTTP: everybody lists them, admins pull, remove and prune them.

Images belong to no owner: an image is content by digest, and everybody who may create boxes may use it. An archive on
this machine is imported with `hutch image import`, not over HTTP.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, TypeVar

import msgspec

from hutch.errors import HutchError, NotFound
from hutch.images import manifests, views
from hutch.images import prune as image_prune
from hutch.images.pull import LayerProgress
from hutch.images.store import Store
from hutch.logs import log
from hutch.model.ids import BoxId
from hutch.model.images import ImageDetails, ImageInfo
from hutch.model.record import Record, encode_json
from hutch.policy import rights
from hutch.server.error_status import error_to_wire
from hutch.server.request import NDJSON, Call, Reply
from hutch.server.wire import Error

FAILS = ("not_found", "conflict", "unsupported", "engine", "timeout", "too_large")

Info = TypeVar("Info", bound=ImageInfo)


class ImagesQuery(Record, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """List only the image of this name."""


class ImageList(Record, frozen=True, kw_only=True):
    images: tuple[ImageInfo, ...]


class PullBody(Record, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    """NAME[:TAG], HOST[:PORT]/NAME[:TAG] or NAME@sha256:…"""
    platform: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The platform of a multi-platform image, such as linux/arm64; empty for this machine's."""


class PullLine(Record, frozen=True, kw_only=True):
    """One line of a pull: the progress of a layer, or at the end the image or an error."""

    layer: str | msgspec.UnsetType = msgspec.UNSET
    step: str | msgspec.UnsetType = msgspec.UNSET
    """waiting | fetching | unpacking | done | there (it was present before)"""
    done: int | msgspec.UnsetType = msgspec.UNSET
    """Bytes that are done, of `total`."""
    total: int | msgspec.UnsetType = msgspec.UNSET
    image: ImageDetails | msgspec.UnsetType = msgspec.UNSET
    error: Error | msgspec.UnsetType = msgspec.UNSET


class RemoveImageQuery(Record, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Remove only this name of the image."""
    force: bool = False
    """Remove it even while boxes use it: its names at once, its layers with the last of those boxes."""


class Removed(Record, frozen=True, kw_only=True):
    names: tuple[str, ...] = ()
    blobs: int
    layers: int
    freed_bytes: int


async def list_images(call: Call, query: ImagesQuery) -> Reply:
    """List every image, newest first."""
    store = _store(call)
    found = await asyncio.to_thread(views.list_images, store)
    if query.name:
        name = str(store.reference(query.name))
        found = tuple(each for each in found if name in each.names)
    return Reply(ImageList(images=tuple([await _visible(call, each) for each in found])))


async def get(call: Call) -> Reply:
    """Return one image with its layers and its command settings."""
    found = await asyncio.to_thread(views.find_details, _store(call), _digest(call))
    return Reply(await _visible(call, found))


async def pull_image(call: Call, body: PullBody) -> Reply:
    """Pull an image from its registry; layers that are present are not fetched again. Only admins may pull, unless
    `server.pulls` or the caller's rights say otherwise. Accept: application/x-ndjson reports progress."""
    rights.check_pull(body.name, call.caller.rights)
    platform = manifests.parse_platform(body.platform) if body.platform else None
    log("server").info("image asked for", image=body.name, by=call.caller.key_id)
    pulling = call.service.pulls.pull(_store(call), body.name, platform, call.service.draining)
    if call.accepts(NDJSON):
        return Reply(_lines(pulling), type=NDJSON)
    async with aclosing(pulling):
        *_, image = [item async for item in pulling]
    assert isinstance(image, ImageDetails)
    return Reply(image)


async def remove(call: Call, query: RemoveImageQuery) -> Reply:
    """Remove an image and the layers that no other image needs; a conflict while a box uses it."""
    store, digest = _store(call), _digest(call)

    def work() -> Removed:
        stored = views.find_by_digest(store, digest)
        if not query.name:
            names, freed = image_prune.remove_all_names(store, stored.manifest, force=query.force)
            return _removed(freed, *names)
        one = store.find(query.name)
        if one.manifest != stored.manifest:
            raise NotFound(f"{query.name[:200]} is no name of {digest}", remedy="look at its names")
        _, freed = image_prune.remove(store, one.name, force=query.force)
        return _removed(freed, one)

    removed = await asyncio.to_thread(work)
    log("server").warning("image removed", image=digest, names=list(removed.names), by=call.caller.key_id)
    return Reply(removed)


async def prune(call: Call) -> Reply:
    """Remove what no image and no box needs: unnamed layers, results of build steps, partial downloads."""
    return Reply(_removed(await asyncio.to_thread(image_prune.prune, _store(call))))


def _removed(freed: image_prune.Removal, *names: manifests.Stored) -> Removed:
    return Removed(
        names=tuple(each.name for each in names), blobs=freed.blobs, layers=freed.layers, freed_bytes=freed.bytes
    )


def _store(call: Call) -> Store:
    config = call.service.config
    return Store(os.path.join(config.state_dir, "images"), config.images)


def _digest(call: Call) -> str:
    digest = call.params["image"]
    if not digest.startswith("sha256:"):
        raise NotFound(f"no image {digest[:80]!r}", remedy="an image is named by its digest here: sha256:…")
    return digest


async def _visible(call: Call, image: Info) -> Info:
    """The image with only the caller's own boxes in its list; other owners' boxes stay hidden."""
    if call.caller.over_all:
        return image
    own = []
    for box_id in image.boxes:
        record = await call.keeper.store.get(BoxId(box_id))
        if record is not None and record.owner == call.caller.owner:
            own.append(box_id)
    return image.but(boxes=tuple(own))


async def _lines(
    pulling: AsyncGenerator[LayerProgress | ImageDetails, None],
) -> AsyncGenerator[bytes, None]:
    started = False
    async with aclosing(pulling):
        try:
            async for item in pulling:
                started = True
                yield _line(item._asdict() if isinstance(item, LayerProgress) else {"image": item})
        except HutchError as error:
            if not started:  # The error still gets its own status.
                raise
            yield _line({"error": error_to_wire(error, "pull")})


def _line(value: Mapping[str, object]) -> bytes:
    return encode_json(value) + b"\n"
