"""The HTTP status of each error code, the codes that groups of routes share, and the wire form of an error."""

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
    "mcp_server": 424,
    "app_failed": 424,
    "quota": 429,
    "internal": 500,
    "engine": 502,
    "box_broken": 502,
    "port_closed": 502,
    "unavailable": 503,
    "disabled": 503,
}

BOX_ERRORS = (
    "not_found", "refused", "conflict", "lease_lost", "busy", "held_elsewhere", "gone", "unsupported", "not_runnable",
    "timeout", "too_large", "quota", "engine", "box_broken", "unavailable", "disabled",
)  # fmt: skip
"""Errors of every route that works on a box."""
FILE_ERRORS = (
    "file_denied", "file_not_found", "file_exists", "is_directory", "not_directory", "file_changed", "no_match",
    "file_failed",
)  # fmt: skip
COMMON_ERRORS = ("invalid", "unauthenticated", "refused", "quota", "unavailable", "internal")
"""Errors of every route that needs a key."""
BODY_ERRORS = ("invalid", "timeout", "too_large")


def status_of(code: str) -> int:
    return STATUS.get(code, 500)


def error_to_wire(error: HutchError, op: str) -> dict[str, object]:
    """The error as callers get it: with its operation, and with secrets of boxes redacted."""
    wire = dict(error.to_wire())
    wire["message"] = redact(error.message)
    wire["remedy"] = redact(error.remedy)
    wire["op"] = error.op or op
    return {**wire, "details": redact_field("", error.details)}
