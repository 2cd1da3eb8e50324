"""Every header of ours, once: what it says to people, how it is described to programs, and what pages may send."""

import re
from collections.abc import Mapping
from typing import Any

from hutch.errors import Invalid

_VISIBLE = "^[ -~]*$"

REQUEST_HEADERS: Mapping[str, dict[str, Any]] = {
    "Hutch-Session": {
        "description": "Whose lease it is: boxes are changed by one session at a time. Default: the key's id.",
        "schema": {"type": "string", "maxLength": 128, "pattern": _VISIBLE},
    },
    "Hutch-Client": {
        "description": "Which process of the session this is. A lease that several share is released by the last.",
        "schema": {"type": "string", "pattern": "^[a-zA-Z0-9]{1,64}$"},
    },
    "Hutch-Admin": {
        "description": "`yes` from an admin: every owner's boxes, past their lease. Each such call is logged.",
        "schema": {"enum": ["yes"]},
    },
    "Hutch-Epoch": {
        "description": "The epoch in which the client got the box: `lease_lost` if another session has it meanwhile.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    },
    "Hutch-Observe": {
        "description": "`yes` from whoever only looks: no lease is taken, no clock extended, and nothing can change.",
        "schema": {"enum": ["yes", "true"]},
    },
    "Hutch-Operation": {
        "description": "A name for what is asked: asked again under the same name, it is not done a second time.",
        "schema": {"type": "string", "pattern": "^[a-zA-Z0-9]{1,64}$"},
    },
    "Hutch-Again": {
        "description": "`yes` if this was asked before: an operation that is not known any more is not begun.",
        "schema": {"enum": ["yes", "true"]},
    },
    "Idempotency-Key": {
        "description": "A retry with the same key gives the box that was made.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": _VISIBLE},
    },
    "Hutch-Mount-Roots": {
        "description": "From an admin: host paths, as a JSON list, that this one box may mount besides `mount_roots`. "
        "Each is logged, and what is always refused stays refused.",
        "schema": {"type": "string", "maxLength": 16384, "pattern": _VISIBLE},
    },
    "Last-Event-ID": {
        "description": "Goes before `after`, as browsers send it.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    },
    "Range": {
        "description": "`bytes=FIRST-LAST`: one part of the file. A form that is not understood is not looked at.",
        "schema": {"type": "string"},
    },
}
OF_EVERY_ROUTE = ("Hutch-Session", "Hutch-Client", "Hutch-Admin")
OF_BOX_ROUTES = ("Hutch-Epoch", "Hutch-Observe")

FOR_PAGES = (
    "Authorization", "Hutch-Key", "Content-Type", "Accept", "Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method",
    "Mcp-Name", *REQUEST_HEADERS,
)  # fmt: skip
"""What a page of `server.origins` may send."""
TO_PAGES = (
    "Hutch-Request", "Hutch-Cursor", "Hutch-Eof", "Hutch-Dropped", "Hutch-Notes", "Location", "Retry-After",
    "Content-Range", "Mcp-Session-Id",
)  # fmt: skip
"""What it may read of an answer."""


def _form(schema: dict[str, Any]) -> re.Pattern[str]:
    if "enum" in schema:
        return re.compile("|".join(schema["enum"]), re.IGNORECASE)
    return re.compile(f"(?=.{{0,{schema.get('maxLength', '')}}}$){schema.get('pattern', '.*').strip('^$')}")


_FORMS = tuple((name.lower(), _form(told["schema"])) for name, told in REQUEST_HEADERS.items())


def check(headers: Mapping[str, str]) -> None:
    """Invalid for a header of ours that is not as described: a misspelt `Hutch-Observe` must not take a lease."""
    for name, form in _FORMS:
        said = headers.get(name)
        if said is not None and form.fullmatch(said) is None:
            raise Invalid(f"{name.title()}: {said[:40]!r} is not understood", remedy="see docs/reference/http.md")
