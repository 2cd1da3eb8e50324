"""BoxLite's package, imported at first use, and its errors as ours."""

import importlib.metadata
import importlib.util
from contextlib import AbstractAsyncContextManager
from typing import Any

from hutch.errors import EngineError, HutchError, NotFound, QuotaExceeded, Unavailable
from hutch.providers.stdio_relay import sdk_calls


def is_installed() -> bool:
    return importlib.util.find_spec("boxlite") is not None


def version() -> str:
    return importlib.metadata.version("boxlite")


def sdk() -> Any:
    """Return the package, which is untyped."""
    import boxlite  # type: ignore[import-untyped]

    return boxlite


def translate_errors(op: str) -> AbstractAsyncContextManager[None]:
    """Raise a HutchError for whatever the package raises inside."""
    return sdk_calls.translate_errors(op, to_hutch_error)


def to_hutch_error(error: Exception, op: str) -> HutchError:
    boxlite = sdk()
    message = f"BoxLite: {error}" if str(error) else f"BoxLite: {type(error).__name__}"
    if isinstance(error, boxlite.NotFoundError | boxlite.StoppedError | boxlite.ImageError):
        return NotFound(message, op=op)
    if isinstance(error, boxlite.ResourceExhaustedError):
        return QuotaExceeded(message, op=op)
    if isinstance(error, boxlite.TimeoutError | boxlite.NetworkError | boxlite.UpstreamUnavailableError | OSError):
        return Unavailable(message, op=op)
    return EngineError(message, op=op)
