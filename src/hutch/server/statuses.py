"""Which HTTP status tells of which error code, and how an error is written for a caller."""

from hutch.errors import HutchError
from hutch.logs import redact, redact_field

STATUS = {
    "invalid": 400,
    "config": 400,
    "unauthenticated": 401,
    "refused": 403,
    "file_denied": 403,
    "not_found": 404,
    "file_not_found": 404,
    "timeout": 408,
    "conflict": 409,
    "lease_lost": 409,
    "busy": 409,
    "held_elsewhere": 409,
    "file_exists": 409,
    "is_directory": 409,
    "not_directory": 409,
    "file_changed": 409,
    "gone": 410,
    "too_large": 413,
    "unsupported": 422,
    "not_runnable": 422,
    "no_match": 422,
    "file_failed": 422,
    "quota": 429,
    "internal": 500,
    "engine": 502,
    "box_broken": 502,
    "unavailable": 503,
    "disabled": 503,
}


def status_of(code: str) -> int:
    return STATUS.get(code, 500)


def wire_of(error: HutchError, op: str) -> dict[str, object]:
    """An error as callers see it: always with an operation, never with a secret of a box."""
    wire = dict(error.to_wire())
    wire["message"] = redact(error.message)
    wire["op"] = error.op or op
    return {**wire, "details": redact_field("", error.details)}
