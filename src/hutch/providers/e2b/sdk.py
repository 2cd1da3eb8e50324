"""The official E2B SDK, imported at first use, and its errors as ours."""

import importlib.util
from contextlib import AbstractAsyncContextManager
from typing import Any

from hutch.errors import EngineError, HutchError, NotFound, QuotaExceeded, Refused, Unavailable
from hutch.providers.stdio_relay import sdk_calls


def is_installed() -> bool:
    return importlib.util.find_spec("e2b") is not None


def sdk() -> Any:
    """Return the package, which has no stubs that mypy's strict mode could use."""
    import e2b

    return e2b


def translate_errors(op: str) -> AbstractAsyncContextManager[None]:
    """Raise a HutchError for whatever the SDK raises inside."""
    return sdk_calls.translate_errors(op, to_hutch_error)


def to_hutch_error(error: Exception, op: str) -> HutchError:
    e2b = sdk()
    message = f"E2B: {error}" if str(error) else f"E2B: {type(error).__name__}"
    if isinstance(error, e2b.AuthenticationException):
        return Refused(message, op=op, remedy="check E2B_API_KEY or [providers.e2b] api_key")
    if isinstance(error, e2b.NotFoundException | e2b.SandboxNotRunningException):
        return NotFound(message, op=op)
    if isinstance(error, e2b.RateLimitException):
        return QuotaExceeded(message, op=op, retryable=True, remedy="wait, or ask E2B for a higher limit")
    if isinstance(error, e2b.TimeoutException | e2b.ServiceBusyException | OSError):
        return Unavailable(message, op=op)
    if isinstance(error, e2b.SandboxException | e2b.InvalidArgumentException):
        return EngineError(message, op=op)
    # Errors of the HTTP transport below the SDK.
    return Unavailable(message, op=op)
