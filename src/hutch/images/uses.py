"""Which image each box stands on: written before the box is made, removed after it is gone.

Records of boxes may be in memory or in another store, so the images keep their own account. A mark whose box has left
neither a run directory nor kept files is stale: its process died between two steps.
"""

import contextlib
import os
import secrets
import time

from hutch.images.manifests import Stored
from hutch.images.store import Store, listed
from hutch.model.ids import is_box_id
from hutch.model.record import Record

_YOUNG = 600.0
"""Seconds in which a box may still be on its way."""


class Use(Record, frozen=True, kw_only=True):
    """One box's."""

    image: str
    """Digest of the manifest."""
    name: str
    places: tuple[str, ...]
    """Directories of which one is there as long as the box is."""


def mark(store: Store, box_id: str, stored: Stored, places: tuple[str, ...]) -> None:
    use = Use(image=stored.manifest, name=stored.name, places=places)
    # Not synced: every creation comes by here, and a box in memory does not outlive the power either.
    path = _path(store, box_id)
    draft = f"{path}.{secrets.token_hex(4)}~"
    with open(draft, "xb") as file:
        file.write(use.to_json())
    os.rename(draft, path)


def release(store: Store, box_id: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(store, box_id))


def of(store: Store, box_id: str) -> Use | None:
    """What the box stands on, if it is an image of the store."""
    try:
        with open(_path(store, box_id), "rb") as file:
            return Use.from_json(file.read())
    except FileNotFoundError:
        return None


def live(store: Store) -> dict[str, Use]:
    """From box ids to what they use; stale marks are left out."""
    found: dict[str, Use] = {}
    for name in listed(store.path("uses")):
        box_id = name.removesuffix(".json")
        if not is_box_id(box_id):
            continue
        with contextlib.suppress(FileNotFoundError):
            use = of(store, box_id)
            age = time.time() - os.stat(_path(store, box_id)).st_mtime
            if use is not None and (age < _YOUNG or any(map(os.path.isdir, use.places))):
                found[box_id] = use
    return found


def _path(store: Store, box_id: str) -> str:
    return store.path("uses", f"{box_id}.json")
