"""Removing images: names first, then every blob and layer that no name, no box and no build step refers to."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from hutch.errors import Conflict, HutchError, Unavailable
from hutch.images import manifests, uses
from hutch.images.build_cache import step_blobs
from hutch.images.manifests import Stored
from hutch.images.store import Store, list_names, remove_tree
from hutch.logs import log

_PARTIAL_SECONDS = 86400.0
"""Seconds for which an interrupted download can be resumed."""


class Removal(NamedTuple):
    """What was removed."""

    blobs: int
    layers: int
    bytes: int


def remove(store: Store, text: str, *, force: bool = False) -> tuple[Stored, Removal]:
    """Remove a name and what only it needed. Raises Conflict while a box uses the image and it has no other name;
    with `force` the name is removed, and the layers stay as long as the box."""
    with store.lock_exclusive():
        stored = store.find(text)
        others = any(each.manifest == stored.manifest and each.name != stored.name for each in store.names())
        if not others and not force:
            _refuse_if_used(store, text, stored.manifest)
        store.remove_name(stored.name)
        return stored, _collect(store, keep_steps=True)


def remove_all_names(store: Store, digest: str, *, force: bool = False) -> tuple[tuple[Stored, ...], Removal]:
    """Like `remove`, for every name of this manifest: all of them are removed, or none."""
    with store.lock_exclusive():
        if not force:
            _refuse_if_used(store, digest, digest)
        gone = tuple(each for each in store.names() if each.manifest == digest)
        for each in gone:
            store.remove_name(each.name)
        return gone, _collect(store, keep_steps=True)


def _refuse_if_used(store: Store, text: str, manifest: str) -> None:
    users = [box_id for box_id, use in uses.live(store).items() if use.image == manifest]
    if users:
        raise Conflict(
            f"image {text} is in use by {len(users)} box{'es' if len(users) > 1 else ''}: {', '.join(users)}",
            remedy="destroy them first, or force it: then only the name goes, and the layers follow the last box",
            details={"boxes": list(users)},
        )


def prune(store: Store) -> Removal:
    """Remove everything that no image and no live box uses, also the layers of build steps and partial downloads."""
    with store.lock_exclusive():
        return _collect(store, keep_steps=False)


@contextlib.contextmanager
def cleaned_on_refusal(store: Store) -> Iterator[None]:
    """Remove what a refused image left behind, also its good layers. An interrupted connection is no refusal:
    complete layers are kept for the next attempt."""
    partial_before = set(list_names(store.path("partial")))
    try:
        yield
    except Unavailable:
        raise
    except HutchError:
        # If others are at work, the next `prune` removes it.
        with contextlib.suppress(Conflict), store.lock_exclusive(timeout=0):
            for name in set(list_names(store.path("partial"))) - partial_before:  # other layers
                os.unlink(store.path("partial", name))
            _collect(store, keep_steps=True)
        raise


def sweep(store: Store) -> None:
    """Remove what dead processes left unfinished; this is cheap, and safe while others work."""
    for name in list_names(store.path("drafts")):
        if name.endswith(".lock"):
            _sweep_draft(store, name.removesuffix(".lock"))
    for name in list_names(store.path("partial")):
        _remove_if_old(store.path("partial", name), _PARTIAL_SECONDS)


def _sweep_draft(store: Store, name: str) -> None:
    path = store.path("drafts", name)
    try:
        with open(f"{path}.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)
            os.unlink(f"{path}.lock")
    except (BlockingIOError, FileNotFoundError):
        return  # its owner is alive, or has just finished


def _collect(store: Store, *, keep_steps: bool) -> Removal:
    """Remove what nothing refers to; the caller holds the exclusive lock."""
    sweep(store)
    digests = {each.manifest for each in store.names()}
    live_uses = uses.live(store)
    for name in list_names(store.path("uses")):
        if name.removesuffix(".json") not in live_uses:
            os.unlink(store.path("uses", name))
    digests |= {use.image for use in live_uses.values()}
    blobs, layers = _referenced(store, digests)
    if keep_steps:
        for blob, diff_id in step_blobs(store):
            blobs.add(blob)
            layers.add(diff_id)
    else:
        _clear_directory(store.path("steps"))
        _clear_directory(store.path("partial"))
    _clear_directory(store.path("locks"))
    return _remove_all_but(store, {_hex(each) for each in blobs}, {_hex(each) for each in layers})


def _referenced(store: Store, digests: set[str]) -> tuple[set[str], set[str]]:
    blobs: set[str] = set()
    layers: set[str] = set()
    for digest in digests:
        try:
            manifest = manifests.parse_manifest(store.read_blob(digest), 1 << 16)
            blobs |= {digest, manifest.config.digest, *(layer.digest for layer in manifest.layers)}
            layers |= set(manifests.parse_config(store.read_blob(manifest.config.digest), manifest).rootfs.diff_ids)
        except HutchError as error:
            log("images").warning("image cannot be read", image=digest, error=error)
    return blobs, layers


def _remove_all_but(store: Store, blobs: set[str], layers: set[str]) -> Removal:
    gone_blobs = gone_layers = size = 0
    for name in list_names(store.path("blobs")):
        if name not in blobs:
            size += os.stat(store.path("blobs", name)).st_size
            os.unlink(store.path("blobs", name))
            gone_blobs += 1
    kept: set[str] = set()
    for name in list_names(store.path("layers")):
        if not name.endswith(".json"):
            continue
        layer = store.layer(f"sha256:{name.removesuffix('.json')}")
        if layer is not None and name.removesuffix(".json") in layers:
            kept.add(layer.directory)
            continue
        # The record is removed first: a crash then leaves a directory without a record, which the next run removes.
        os.unlink(store.path("layers", name))
        size += layer.bytes if layer else 0
        gone_layers += 1
    for name in list_names(store.path("layers")):
        if not name.endswith(".json") and name not in kept:
            remove_tree(store.path("layers", name))
    return Removal(gone_blobs, gone_layers, size)


def _clear_directory(directory: str) -> None:
    for name in list_names(directory):
        os.unlink(os.path.join(directory, name))


def _remove_if_old(path: str, seconds: float) -> None:
    try:
        if time.time() - os.stat(path).st_mtime > seconds:
            os.unlink(path)
    except FileNotFoundError:
        return


def _hex(digest: str) -> str:
    return digest.partition(":")[2]
