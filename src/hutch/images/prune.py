"""Removing what nobody needs: names first, then every blob and layer that no name, no box and no build step holds."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from hutch.errors import Conflict, HutchError, Unavailable
from hutch.images import manifests as documents
from hutch.images import uses
from hutch.images.build_cache import step_blobs
from hutch.images.manifests import Stored
from hutch.images.store import Store, listed, remove_tree
from hutch.logs import log

_PARTIAL_SECONDS = 86400.0
"""How long a cut download waits to be resumed."""


class Collected(NamedTuple):
    """What went."""

    blobs: int
    layers: int
    bytes: int


def remove(store: Store, text: str, *, force: bool = False) -> tuple[Stored, Collected]:
    """Take a name away and collect. Conflict while a box stands on the image and no other name holds it; with `force`
    the name goes, and the layers stay as long as the box does."""
    with store.collecting():
        stored = store.find(text)
        others = any(each.manifest == stored.manifest and each.name != stored.name for each in store.named())
        if not others and not force:
            _refuse_if_used(store, text, stored.manifest)
        store.unname(stored.name)
        return stored, _collect(store, keep_steps=True)


def remove_all_names(store: Store, digest: str, *, force: bool = False) -> tuple[tuple[Stored, ...], Collected]:
    """As `remove`, of every name that this manifest has: all of them go, or none."""
    with store.collecting():
        if not force:
            _refuse_if_used(store, digest, digest)
        gone = tuple(each for each in store.named() if each.manifest == digest)
        for each in gone:
            store.unname(each.name)
        return gone, _collect(store, keep_steps=True)


def _refuse_if_used(store: Store, text: str, manifest: str) -> None:
    users = [box_id for box_id, use in uses.live(store).items() if use.image == manifest]
    if users:
        raise Conflict(
            f"image {text} is in use by {len(users)} box{'es' if len(users) > 1 else ''}: {', '.join(users)}",
            remedy="destroy them first, or force it: then only the name goes, and the layers with the last of them",
            details={"boxes": list(users)},
        )


def prune(store: Store) -> Collected:
    """Everything that no image and no live box uses: also the layers of build steps and cut downloads."""
    with store.collecting():
        return _collect(store, keep_steps=False)


@contextlib.contextmanager
def tidied(store: Store) -> Iterator[None]:
    """What is refused leaves nothing behind, not even its good layers. A cut connection is no refusal: what has arrived
    whole waits for the next try."""
    waiting = set(listed(store.path("partial")))
    try:
        yield
    except Unavailable:
        raise
    except HutchError:
        with contextlib.suppress(Conflict), store.collecting(patience=0):  # others at work: the next `prune` does it
            for name in set(listed(store.path("partial"))) - waiting:  # of layers beside the one that was refused
                os.unlink(store.path("partial", name))
            _collect(store, keep_steps=True)
        raise


def sweep(store: Store) -> None:
    """What dead processes left half-made; cheap, and safe beside others at work."""
    for name in listed(store.path("drafts")):
        if name.endswith(".lock"):
            _sweep_draft(store, name.removesuffix(".lock"))
    for name in listed(store.path("partial")):
        _remove_if_old(store.path("partial", name), _PARTIAL_SECONDS)


def _sweep_draft(store: Store, name: str) -> None:
    path = store.path("drafts", name)
    try:
        with open(f"{path}.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)
            os.unlink(f"{path}.lock")
    except (BlockingIOError, FileNotFoundError):
        return  # its owner lives, or has just ended


def _collect(store: Store, *, keep_steps: bool) -> Collected:
    """Alone in the store."""
    sweep(store)
    manifests = {each.manifest for each in store.named()}
    standing = uses.live(store)
    for name in listed(store.path("uses")):
        if name.removesuffix(".json") not in standing:
            os.unlink(store.path("uses", name))
    manifests |= {use.image for use in standing.values()}
    blobs, layers = _held(store, manifests)
    if keep_steps:
        for blob, diff_id in step_blobs(store):
            blobs.add(blob)
            layers.add(diff_id)
    else:
        _empty(store.path("steps"))
        _empty(store.path("partial"))
    _empty(store.path("locks"))
    return _remove_all_but(store, {_hex(each) for each in blobs}, {_hex(each) for each in layers})


def _held(store: Store, manifests: set[str]) -> tuple[set[str], set[str]]:
    blobs: set[str] = set()
    layers: set[str] = set()
    for digest in manifests:
        try:
            manifest = documents.manifest_of(store.read_blob(digest), 1 << 16)
            blobs |= {digest, manifest.config.digest, *(layer.digest for layer in manifest.layers)}
            layers |= set(documents.config_of(store.read_blob(manifest.config.digest), manifest).rootfs.diff_ids)
        except HutchError as error:
            log("images").warning("image cannot be read", image=digest, error=error)
    return blobs, layers


def _remove_all_but(store: Store, blobs: set[str], layers: set[str]) -> Collected:
    gone_blobs = gone_layers = size = 0
    for name in listed(store.path("blobs")):
        if name not in blobs:
            size += os.stat(store.path("blobs", name)).st_size
            os.unlink(store.path("blobs", name))
            gone_blobs += 1
    kept: set[str] = set()
    for name in listed(store.path("layers")):
        if not name.endswith(".json"):
            continue
        layer = store.layer(f"sha256:{name.removesuffix('.json')}")
        if layer is not None and name.removesuffix(".json") in layers:
            kept.add(layer.directory)
            continue
        # The record first: a crash leaves a directory without one, which the next collection finds.
        os.unlink(store.path("layers", name))
        size += layer.bytes if layer else 0
        gone_layers += 1
    for name in listed(store.path("layers")):
        if not name.endswith(".json") and name not in kept:
            remove_tree(store.path("layers", name))
    return Collected(gone_blobs, gone_layers, size)


def _empty(directory: str) -> None:
    for name in listed(directory):
        os.unlink(os.path.join(directory, name))


def _remove_if_old(path: str, seconds: float) -> None:
    try:
        if time.time() - os.stat(path).st_mtime > seconds:
            os.unlink(path)
    except FileNotFoundError:
        return


def _hex(digest: str) -> str:
    return digest.partition(":")[2]
