"""What is left in a store."""

import os

from hutch.images.store import Store

PARTS = ("blobs", "layers", "names", "steps", "partial", "drafts")


def content(store: Store) -> dict[str, list[str]]:
    """Everything but locks; empty lists: nothing was left behind."""
    found = {}
    for part in PARTS:
        path = store.path(part)
        found[part] = sorted(os.listdir(path)) if os.path.isdir(path) else []
    return found


NOTHING: dict[str, list[str]] = {part: [] for part in PARTS}
