"""Scopes: a template and its values, hashed into the key by which a conversation finds its box.

The key covers owner, kind, template and every value the template names, each with its length, so that `{a}_{b}` with
("x_y", "z") and ("x", "y_z") are two boxes, and two owners never share one. The rendered text is for people only.
A box that moves to another conversation gets its key, so that the other conversation's `box_for` finds it.
"""

import os
import re
import string
from collections.abc import Mapping

from hutch.errors import Conflict, Invalid
from hutch.keeper.boxes.clocks import orphan_grace, push_clocks
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import SCOPE_KEY
from hutch.keeper.counters import KIND_LABEL
from hutch.keeper.keeper import Keeper
from hutch.model.boxes import State
from hutch.model.ids import digest
from hutch.model.record import Record

READY_MADE = {
    "chat": "{launcher_type}_{launcher_id}",
    "user_in_chat": "{launcher_type}_{launcher_id}_{sender_id}",
    "conversation": "{conversation_id}",
    "message": "{query_id}",
    "user": "{sender_id}",
    "global": "{global}",
    "pipeline": "{pipeline_id}",
    "project": "{sender_id}_{project_id}",
    "task": "{kind}:{user}:{task}",
}
"""Scopes by name: personal assistant `user`; customer service across pipelines `user`; employee tool `user`;
shared group assistant `chat`; group isolated per user `user_in_chat`; teaching across channels `user`;
one-off `message`; several projects `project`."""

_FIELD = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Scope(Record, frozen=True, kw_only=True):
    """The key of a conversation's box, and the text that people see."""

    key: str
    shown: str


def scope(template: str, values: Mapping[str, object], *, owner: str, kind: str = "") -> Scope:
    """Return the scope of a template. A missing value is an error, never a shared box called "unknown"."""
    given = {"global": "global", **({"kind": kind} if kind else {}), **values}
    if template == "task":
        given["task"] = _task(given)
    template = READY_MADE.get(template, template)
    names = _names(template)
    missing = [name for name in names if given.get(name) in (None, "")]
    if missing:
        raise Invalid(
            f"the scope {template!r} needs {', '.join(missing)}",
            op="box_for",
            details={"missing": list(missing)},
            remedy="pass a value for each variable of the template; without an identity nothing is shared",
        )
    texts = [str(given[name]) for name in names]
    parts = [part.encode("utf-8", "surrogatepass") for part in (owner, kind, template, *texts)]
    shown = template
    for name, text in zip(names, texts, strict=True):
        shown = shown.replace("{" + name + "}", text)
    return Scope(key=SCOPE_KEY + digest(*(len(part).to_bytes(8, "big") + part for part in parts)), shown=shown[:200])


def _task(given: Mapping[str, object]) -> object:
    """Return the task of a box: the one that is named, else the conversation, else a new one."""
    return given.get("task") or given.get("conversation_id") or os.urandom(8).hex()


def _names(template: str) -> tuple[str, ...]:
    try:
        fields = [field for _, field, spec, change in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise Invalid(f"the scope {template!r} is not a template: {error}", op="box_for") from error
    wrong = [field for field in fields if not _FIELD.fullmatch(field)]
    if wrong or not fields:
        raise Invalid(
            f"the scope {template!r} must name its variables as {{name}}",
            op="box_for",
            remedy=f"or use one of {', '.join(sorted(READY_MADE))}",
        )
    return tuple(dict.fromkeys(fields))


def scope_labels(scope: Scope, kind: str) -> dict[str, str]:
    """Return the labels by which people recognise the box of a conversation."""
    return {"scope": scope.shown, **({KIND_LABEL: kind} if kind else {})}


async def move_to_scope(keeper: Keeper, live: Live, scope: Scope, kind: str) -> None:
    """Give the box the key of another conversation of its owner. Conflict if that conversation has a box."""
    record = live.record
    there = await keeper.store.by_key(record.owner, scope.key)
    if there is not None and there.id != record.id:
        raise Conflict(
            f"{scope.shown} has a box already ({there.id})", op="move_to", details={"box": there.id},
            remedy="destroy that box first, or choose another conversation",
        )  # fmt: skip
    async with live.state_lock:
        record = live.record
        kept = {name: text for name, text in record.labels.items() if name not in ("scope", KIND_LABEL)}
        labels = kept | scope_labels(scope, kind)
        await keeper.states.update(
            record, into=live, kind="changed", reason=f"moved to {scope.shown}", idempotency_key=scope.key,
            labels=labels, spec=record.spec.but(labels=labels),
            grace_sec=orphan_grace(keeper.config, record.spec, scope.key),
        )  # fmt: skip
    if live.record.state is State.RUNNING:
        await push_clocks(live.running, live.record)  # A conversation's box may wait longer for its next program.
