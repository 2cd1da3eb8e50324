"""Which image each box uses: recorded before the box is created, removed after it is destroyed.

Box records may be in memory or in another store, so the image store keeps its own. A record is stale if its box has
neither a run directory nor kept files: its process died between two steps.
"""

import contextlib
import os
import secrets
import time

from hutch.images.manifests import Stored
from hutch.images.store import Store, list_names
from hutch.model.ids import is_box_id
from hutch.model.record import Record

_CREATION_SECONDS = 600.0
"""Seconds for which a box may still be in creation."""


class Use(Record, frozen=True, kw_only=True):
    """The image of one box."""

    image: str
    """Digest of the manifest."""
    name: str
    places: tuple[str, ...]
    """Directories of the box; at least one of them exists as long as the box does."""


def record(store: Store, box_id: str, stored: Stored, places: tuple[str, ...]) -> None:
    use = Use(image=stored.manifest, name=stored.name, places=places)
    # It is not synced: every creation passes here, and a box in memory does not survive a power failure either.
    path = _path(store, box_id)
    draft = f"{path}.{secrets.token_hex(4)}~"
    with open(draft, "xb") as file:
        file.write(use.to_json())
    os.rename(draft, path)


def release(store: Store, box_id: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(store, box_id))


def find(store: Store, box_id: str) -> Use | None:
    """Return the image that the box uses, if it is one of the store."""
    try:
        with open(_path(store, box_id), "rb") as file:
            return Use.from_json(file.read())
    except FileNotFoundError:
        return None


def live(store: Store) -> dict[str, Use]:
    """Return the live uses by box id, without stale records."""
    found: dict[str, Use] = {}
    for name in list_names(store.path("uses")):
        box_id = name.removesuffix(".json")
        if not is_box_id(box_id):
            continue
        with contextlib.suppress(FileNotFoundError):
            use = find(store, box_id)
            age = time.time() - os.stat(_path(store, box_id)).st_mtime
            if use is not None and (age < _CREATION_SECONDS or any(map(os.path.isdir, use.places))):
                found[box_id] = use
    return found


def _path(store: Store, box_id: str) -> str:
    return store.path("uses", f"{box_id}.json")
