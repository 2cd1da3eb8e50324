"""What build steps made: the layer of a step is found again by what it was made from."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence

from hutch.images.store import Store, listed
from hutch.model.record import Record


class Step(Record, frozen=True, kw_only=True):
    """The layer that one step made."""

    blob: str
    """Digest of the packed layer."""
    diff_id: str
    size: int


def key(parent: Sequence[str], *parts: str) -> str:
    """By the layers below and everything that decides what the step does."""
    sha = hashlib.sha256()
    for part in (*parent, "", *parts):
        sha.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return sha.hexdigest()


def remember(store: Store, key: str, step: Step) -> None:
    store.write(store.path("steps", f"{key}.json"), step.to_json())


def known(store: Store, key: str) -> Step | None:
    """None if it was never made, or its layer has been collected since."""
    try:
        with open(store.path("steps", f"{key}.json"), "rb") as file:
            step = Step.from_json(file.read())
    except FileNotFoundError:
        return None
    return step if store.has_blob(step.blob) and store.layer(step.diff_id) else None


def step_blobs(store: Store) -> Iterator[tuple[str, str]]:
    """Blob and diff id of each step whose layer is still there."""
    for name in listed(store.path("steps")):
        if not name.endswith(".json"):
            continue
        with contextlib.suppress(FileNotFoundError):
            step = known(store, name.removesuffix(".json"))
            if step is None:
                os.unlink(store.path("steps", name))
            else:
                yield step.blob, step.diff_id
