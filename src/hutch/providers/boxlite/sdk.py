"""BoxLite's package, imported when it is first needed, and its errors in our words."""

import importlib.metadata
import importlib.util
from contextlib import AbstractAsyncContextManager
from typing import Any

from hutch.errors import EngineError, HutchError, NotFound, QuotaExceeded, Unavailable
from hutch.providers.stdio_relay.sdk_errors import translated


def is_installed() -> bool:
    return importlib.util.find_spec("boxlite") is not None


def version() -> str:
    return importlib.metadata.version("boxlite")


def sdk() -> Any:
    """The package; it has no types."""
    import boxlite  # type: ignore[import-untyped]

    return boxlite


def spoken(op: str) -> AbstractAsyncContextManager[None]:
    """Whatever the package raises inside comes out as a HutchError."""
    return translated(op, told)


def told(error: Exception, op: str) -> HutchError:
    boxlite = sdk()
    message = f"BoxLite: {error}" if str(error) else f"BoxLite: {type(error).__name__}"
    if isinstance(error, boxlite.NotFoundError | boxlite.StoppedError | boxlite.ImageError):
        return NotFound(message, op=op)
    if isinstance(error, boxlite.ResourceExhaustedError):
        return QuotaExceeded(message, op=op)
    if isinstance(error, boxlite.TimeoutError | boxlite.NetworkError | boxlite.UpstreamUnavailableError | OSError):
        return Unavailable(message, op=op)
    return EngineError(message, op=op)
