"""Lookup of boxes by id, by the beginning of an id, or by a name that is unique among an owner's live boxes."""

from hutch.errors import Conflict, Invalid, NotFound
from hutch.keeper.boxes.live import gone
from hutch.keeper.boxes.records import LOCAL_OWNER, BoxRecord
from hutch.keeper.store.store import Store
from hutch.model.ids import BoxId, is_name

SHORTEST_PREFIX = 4


async def find(store: Store, text: str, owner: str = LOCAL_OWNER) -> BoxRecord:
    """Return the one box that `text` means. A name wins over the beginning of an id; two candidates are an error."""
    exact = await store.get(BoxId(text))
    if exact is not None and exact.owner == owner:
        return exact
    if text and (named := await store.by_name(owner, text)) is not None:
        return named
    found = await store.by_prefix(owner, text) if len(text) >= SHORTEST_PREFIX else ()
    if len(found) == 1:
        return found[0]
    if found:
        raise Invalid(
            f"{text!r} begins the ids of {len(found)} boxes",
            details={"boxes": [record.id for record in found]},
            remedy=f"write more of it: {', '.join(record.id for record in found[:5])}",
        )
    raise await _not_found(store, text, owner)


async def check_name_free(store: Store, name: str, owner: str = LOCAL_OWNER, *, but: str = "") -> None:
    """Raise Conflict if another live box of this owner than `but` has the name.

    This check comes early and says which box has it. Of two creations at once, the store refuses the second record.
    """
    if not is_name(name):
        raise Invalid(
            f"{name!r} is no name for a box",
            details={"field": "name"},
            remedy="letters, digits and _ . - only, 63 at most, a letter or digit first",
        )
    record = await store.by_name(owner, name)
    if record is not None and record.id != but:
        raise Conflict(
            f"box {record.id} is called {name} already",
            details={"box": record.id, "name": name},
            remedy="choose another name, or rename or destroy that box",
        )


async def _not_found(store: Store, text: str, owner: str) -> NotFound:
    tombstone = await store.tombstone(BoxId(text)) or await store.find_tombstone(owner, text)
    short = 0 < len(text) < SHORTEST_PREFIX
    if tombstone is not None and tombstone.owner == owner and text and (tombstone.name == text or not short):
        return gone(tombstone)
    hint = f"the beginning of an id needs {SHORTEST_PREFIX} characters; " if short else ""
    return NotFound(f"no box {text}", remedy=f"{hint}`hutch box list` shows those there are")
