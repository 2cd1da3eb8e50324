"""Images of this machine over HTTP: which there are, for everybody; to pull, remove and prune them, for admins.

They are nobody's own: an image is content by digest, and whoever may make boxes may stand them on it. An archive of the
machine's files is imported by its own people, with `hutch image import`.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, TypeVar

import msgspec

from hutch.errors import HutchError, NotFound
from hutch.images import manifests, views
from hutch.images import manifests as documents
from hutch.images import prune as collecting
from hutch.images.pull import LayerProgress
from hutch.images.store import Store
from hutch.logs import log
from hutch.model.ids import BoxId
from hutch.model.images import ImageDetails, ImageInfo
from hutch.model.record import Record, encoded
from hutch.policy import rights
from hutch.server.error_status import wire_of
from hutch.server.request import NDJSON, Call, Reply
from hutch.server.wire import Error

FAILS = ("not_found", "conflict", "unsupported", "engine", "timeout", "too_large")

Info = TypeVar("Info", bound=ImageInfo)


class ImagesQuery(Record, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Only the image of this name."""


class ImageList(Record, frozen=True, kw_only=True):
    images: tuple[ImageInfo, ...]


class PullBody(Record, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    """NAME[:TAG], HOST[:PORT]/NAME[:TAG] or NAME@sha256:…"""
    platform: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """Of several, take this one, such as linux/arm64; empty: this machine's."""


class PullLine(Record, frozen=True, kw_only=True):
    """One line of a pull: how far a layer is, or the end, which is the image or an error."""

    layer: str | msgspec.UnsetType = msgspec.UNSET
    step: str | msgspec.UnsetType = msgspec.UNSET
    """waiting | fetching | unpacking | done | there (it was there before)"""
    done: int | msgspec.UnsetType = msgspec.UNSET
    """Bytes, of `total`."""
    total: int | msgspec.UnsetType = msgspec.UNSET
    image: ImageDetails | msgspec.UnsetType = msgspec.UNSET
    error: Error | msgspec.UnsetType = msgspec.UNSET


class RemoveImageQuery(Record, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Take away only this one of its names."""
    force: bool = False
    """Also while boxes stand on it: the names go now, the layers with the last of those boxes."""


class Removed(Record, frozen=True, kw_only=True):
    names: tuple[str, ...] = ()
    blobs: int
    layers: int
    freed_bytes: int


async def list_images(call: Call, query: ImagesQuery) -> Reply:
    """Every image there is, newest first."""
    store = _store(call)
    found = await asyncio.to_thread(views.list_images, store)
    if query.name:
        name = str(store.reference(query.name))
        found = tuple(each for each in found if name in each.names)
    return Reply(ImageList(images=tuple([await _visible(call, each) for each in found])))


async def get(call: Call) -> Reply:
    """One image, with its layers and how its commands run."""
    found = await asyncio.to_thread(views.find_details, _store(call), _digest(call))
    return Reply(await _visible(call, found))


async def pull_image(call: Call, body: PullBody) -> Reply:
    """Fetch an image from its registry; layers that are here already are not fetched again. For admins, unless
    `server.pulls` or the caller's rights say otherwise. Accept: application/x-ndjson tells how far it is."""
    rights.check_pull(body.name, call.caller.rights)
    platform = documents.parse_platform(body.platform) if body.platform else None
    log("server").info("image asked for", image=body.name, by=call.caller.key_id)
    pulling = call.service.pulls.pull(_store(call), body.name, platform, call.service.draining)
    if call.accepts(NDJSON):
        return Reply(_lines(pulling), type=NDJSON)
    async with aclosing(pulling):
        *_, image = [told async for told in pulling]
    assert isinstance(image, ImageDetails)
    return Reply(image)


async def remove(call: Call, query: RemoveImageQuery) -> Reply:
    """With the layers that no other image needs; a conflict while a box stands on it."""
    store, digest = _store(call), _digest(call)

    def work() -> Removed:
        stored = views.find_by_digest(store, digest)
        if not query.name:
            names, freed = collecting.remove_all_names(store, stored.manifest, force=query.force)
            return _removed(freed, *names)
        one = store.find(query.name)
        if one.manifest != stored.manifest:
            raise NotFound(f"{query.name[:200]} is no name of {digest}", remedy="look at its names")
        _, freed = collecting.remove(store, one.name, force=query.force)
        return _removed(freed, one)

    removed = await asyncio.to_thread(work)
    log("server").warning("image removed", image=digest, names=list(removed.names), by=call.caller.key_id)
    return Reply(removed)


async def prune(call: Call) -> Reply:
    """Remove what no image and no box needs: layers without a name, results of build steps, cut downloads."""
    return Reply(_removed(await asyncio.to_thread(collecting.prune, _store(call))))


def _removed(freed: collecting.Removal, *names: manifests.Stored) -> Removed:
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
    """Whose boxes stand on it is nobody else's business; that some do, is why it cannot be removed."""
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
    begun = False
    async with aclosing(pulling):
        try:
            async for told in pulling:
                begun = True
                yield _line(told._asdict() if isinstance(told, LayerProgress) else {"image": told})
        except HutchError as error:
            if not begun:  # it can still be told by the status
                raise
            yield _line({"error": wire_of(error, "pull")})


def _line(value: Mapping[str, object]) -> bytes:
    return encoded(value) + b"\n"
