"""The request headers that Hutch defines: their description, their schema, and which of them web pages may use."""

import re
from collections.abc import Mapping
from typing import Any

from hutch.errors import Invalid

_VISIBLE = "^[ -~]*$"

REQUEST_HEADERS: Mapping[str, dict[str, Any]] = {
    "Hutch-Session": {
        "description": "The session that holds leases: one session at a time may change a box. Default: the key's id.",
        "schema": {"type": "string", "maxLength": 128, "pattern": _VISIBLE},
    },
    "Hutch-Client": {
        "description": "The sending process of the session. A lease that processes share is released by the last one.",
        "schema": {"type": "string", "pattern": "^[a-zA-Z0-9]{1,64}$"},
    },
    "Hutch-Admin": {
        "description": "`yes` lets an admin act on every owner's boxes without their lease. Each such call is logged.",
        "schema": {"enum": ["yes"]},
    },
    "Hutch-Epoch": {
        "description": "The epoch in which the client got the box; `lease_lost` if another session has it now.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    },
    "Hutch-Observe": {
        "description": "`yes` makes the call read-only: it takes no lease, extends no clock and can change nothing.",
        "schema": {"enum": ["yes", "true"]},
    },
    "Hutch-Operation": {
        "description": "A name for this operation. A retry under the same name does not run it a second time.",
        "schema": {"type": "string", "pattern": "^[a-zA-Z0-9]{1,64}$"},
    },
    "Hutch-Again": {
        "description": "`yes` marks a retry: an operation that the server no longer knows is not started.",
        "schema": {"enum": ["yes", "true"]},
    },
    "Idempotency-Key": {
        "description": "A retry with the same key returns the box that was created.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": _VISIBLE},
    },
    "Hutch-Mount-Roots": {
        "description": "Host paths, as a JSON list, that an admin lets this one box mount besides `mount_roots`. "
        "Each path is logged, and a path that is always refused stays refused.",
        "schema": {"type": "string", "maxLength": 16384, "pattern": _VISIBLE},
    },
    "Hutch-Csrf": {
        "description": "The token of a signed-in browser's session, which every change by cookie must carry.",
        "schema": {"type": "string", "pattern": "^[0-9a-f]{1,64}$"},
    },
    "Last-Event-ID": {
        "description": "Takes precedence over `after`; browsers send it when they reconnect.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    },
    "Range": {
        "description": "`bytes=FIRST-LAST` selects one part of the file. Other forms are ignored.",
        "schema": {"type": "string"},
    },
}
COMMON_HEADERS = ("Hutch-Session", "Hutch-Client", "Hutch-Admin")
BOX_HEADERS = ("Hutch-Epoch", "Hutch-Observe")

CORS_REQUEST_HEADERS = (
    "Authorization", "Hutch-Key", "Content-Type", "Accept", "Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method",
    "Mcp-Name", *REQUEST_HEADERS,
)  # fmt: skip
"""Request headers that a page of `server.origins` may send."""
CORS_EXPOSED_HEADERS = (
    "Hutch-Request", "Hutch-Cursor", "Hutch-Eof", "Hutch-Dropped", "Hutch-Notes", "Location", "Retry-After",
    "Content-Range", "Mcp-Session-Id",
)  # fmt: skip
"""Response headers that such a page may read."""


def _pattern(schema: dict[str, Any]) -> re.Pattern[str]:
    if "enum" in schema:
        return re.compile("|".join(schema["enum"]), re.IGNORECASE)
    return re.compile(f"(?=.{{0,{schema.get('maxLength', '')}}}$){schema.get('pattern', '.*').strip('^$')}")


_PATTERNS = tuple((name.lower(), _pattern(header["schema"])) for name, header in REQUEST_HEADERS.items())


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise Invalid if a header does not match its schema: a misspelt `Hutch-Observe` must not take a lease."""
    for name, pattern in _PATTERNS:
        value = headers.get(name)
        if value is not None and pattern.fullmatch(value) is None:
            raise Invalid(f"{name.title()}: {value[:40]!r} is not understood", remedy="see docs/reference/http.md")
