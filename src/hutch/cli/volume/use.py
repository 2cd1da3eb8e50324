"""Which boxes work in which volume."""

from collections.abc import Iterable

from hutch.model.boxes import BoxInfo


def users(boxes: Iterable[BoxInfo]) -> dict[str, list[str]]:
    """From a volume to the ids of the boxes that have it as their workspace."""
    used: dict[str, list[str]] = {}
    for box in boxes:
        kind, _, name = box.spec.workspace.source.partition(":")
        if kind == "volume":
            used.setdefault(name, []).append(box.id)
    return used
