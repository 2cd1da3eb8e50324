"""Errors in E2B's forms: of the control plane and `/files` (an HTTP status as the code), and of the Connect protocol.

The JavaScript SDK branches on the `code` of the body and the Python SDK on the status, so both are always the same.
"""

from typing import NamedTuple

from hutch.errors import HutchError
from hutch.logs import redact
from hutch.model.record import encode_json

_STATUS = {
    "invalid": 400, "config": 400, "unauthenticated": 401, "refused": 403, "file_denied": 403, "not_found": 404,
    "gone": 404, "file_not_found": 404, "timeout": 504, "conflict": 409, "lease_lost": 409, "busy": 409,
    "held_elsewhere": 409, "file_exists": 409, "is_directory": 400, "not_directory": 400, "file_changed": 409,
    "too_large": 413, "unsupported": 501, "not_runnable": 400, "file_failed": 400, "quota": 429, "unavailable": 503,
    "disabled": 503, "no_space": 507,
}  # fmt: skip
_CONNECT = {
    400: "invalid_argument", 401: "unauthenticated", 403: "permission_denied", 404: "not_found", 409: "already_exists",
    413: "resource_exhausted", 429: "resource_exhausted", 501: "unimplemented", 502: "unavailable",
    503: "unavailable", 504: "deadline_exceeded", 507: "resource_exhausted",
}  # fmt: skip
_STATUS_OF_CONNECT = {name: status for status, name in reversed(_CONNECT.items())} | {"failed_precondition": 400}


class Answer(NamedTuple):
    """A complete HTTP answer, which the door sends in one piece."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class NotRunning(HutchError):
    """The sandbox of a data-plane request is gone or paused. The SDKs look for these words."""

    def __init__(self, sandbox: str) -> None:
        super().__init__("The sandbox was not found", code="not_running", details={"sandboxId": sandbox})


class PortNotOpen(HutchError):
    """Nothing listens on the port of a sandbox. The SDKs look for these words."""

    def __init__(self, sandbox: str, port: int) -> None:
        message = "The sandbox is running but port is not open"
        super().__init__(message, code="port_closed", details={"sandboxId": sandbox, "port": port})


def status_of(error: HutchError) -> int:
    if error.details.get("errno") in ("ENOSPC", "EDQUOT"):
        return 507
    if isinstance(error, NotRunning | PortNotOpen):
        return 502
    return _STATUS.get(error.code, 500)


def text_of(error: HutchError) -> str:
    return redact(str(error))


def answer_of(error: HutchError) -> Answer:
    """Return the error as the control plane and `/files` send it."""
    status = status_of(error)
    body: dict[str, object] = {"code": status, "message": text_of(error)}
    if status != 401:  # Clients compare the whole body of these.
        body["error_code"] = error.code
    if isinstance(error, NotRunning | PortNotOpen):
        body = {**error.details, **body}
    headers = [("content-type", "application/json")]
    if error.retry_after is not None:
        headers.append(("retry-after", str(max(1, round(error.retry_after)))))
    if status >= 500:
        # The Python SDK would repeat the call three times; what failed here is not a matter of milliseconds.
        headers.append(("should-retry", "false"))
    return Answer(status, encode_json(body), tuple(headers))


def connect_code(error: HutchError) -> str:
    return _CONNECT.get(status_of(error), "internal")


def connect_answer(error: HutchError) -> Answer:
    """Return the error as an answer to a unary call of the Connect protocol."""
    if isinstance(error, NotRunning):
        return answer_of(error)
    code = connect_code(error)
    body = encode_json({"code": code, "message": text_of(error)})
    return Answer(_STATUS_OF_CONNECT.get(code, 500), body, (("content-type", "application/json"),))
