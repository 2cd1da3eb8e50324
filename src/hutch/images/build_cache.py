"""The build cache: finds the layer of a build step again by everything it was made from."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence

from hutch.images.store import Store, list_names
from hutch.model.record import Record


class Step(Record, frozen=True, kw_only=True):
    """The layer that one step created."""

    blob: str
    """Digest of the compressed layer."""
    diff_id: str
    size: int


def step_key(parent: Sequence[str], *parts: str) -> str:
    """Hash the layers below and everything that decides what the step does."""
    sha = hashlib.sha256()
    for part in (*parent, "", *parts):
        sha.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return sha.hexdigest()


def save(store: Store, key: str, step: Step) -> None:
    store.write(store.path("steps", f"{key}.json"), step.to_json())


def find(store: Store, key: str) -> Step | None:
    """Return None if the step never ran, or if its layer has been removed since."""
    try:
        with open(store.path("steps", f"{key}.json"), "rb") as file:
            step = Step.from_json(file.read())
    except FileNotFoundError:
        return None
    return step if store.has_blob(step.blob) and store.layer(step.diff_id) else None


def step_blobs(store: Store) -> Iterator[tuple[str, str]]:
    """Yield blob and diff id of each step whose layer still exists, and forget the other steps."""
    for name in list_names(store.path("steps")):
        if not name.endswith(".json"):
            continue
        with contextlib.suppress(FileNotFoundError):
            step = find(store, name.removesuffix(".json"))
            if step is None:
                os.unlink(store.path("steps", name))
            else:
                yield step.blob, step.diff_id
