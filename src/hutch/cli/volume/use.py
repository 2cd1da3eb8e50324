"""Which boxes work in which volume."""

from collections.abc import Iterable

from hutch.keeper.records import BoxRecord


def users(boxes: Iterable[BoxRecord]) -> dict[str, list[str]]:
    """From a volume to the ids of the boxes that have it as their workspace."""
    used: dict[str, list[str]] = {}
    for record in boxes:
        kind, _, name = record.spec.workspace.source.partition(":")
        if kind == "volume":
            used.setdefault(name, []).append(record.id)
    return used
