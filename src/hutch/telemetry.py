"""OpenTelemetry spans: of requests, of the steps of a box's creation, of operations on boxes.

It is off, and OpenTelemetry is not imported, unless `OTEL_*` names an exporter or the application uses it. Only the
standard environment variables configure it. It needs `pip install 'hutch[otel]'`.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

on = False
"""Whether spans are made. Callers read it first, so that it costs nothing while it is off."""

_NOTHING: AbstractContextManager[Any] = nullcontext()
_ASKED = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NAMES = {"otlp": "otlp_proto_http"}
"""Maps the name of an exporter in the environment to its name in its package."""
_tracer: Any = None
_own: Any = None
"""The tracer provider that we made and have to shut down."""


def configured(environ: Mapping[str, str]) -> bool:
    """Return whether the environment asks for spans."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return environ.get("OTEL_TRACES_EXPORTER", "") != "none" and any(environ.get(name) for name in _ASKED)


def join() -> None:
    """Use the application's own OpenTelemetry, if it has one.

    The API alone does not count: other libraries import it too, and without an SDK or another provider its spans cost
    time and record nothing.
    """
    if on or "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry import trace

    if "opentelemetry.sdk.trace" in sys.modules or not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    ):
        use(None)


def set_up(environ: Mapping[str, str] | None = None) -> str:
    """Set up the exporters that the environment names, for a process of ours.

    Returns a sentence for the log; empty if nothing was asked for.
    """
    environ = os.environ if environ is None else environ
    if not configured(environ):
        return ""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        return f"no spans are sent: {error} (fix: pip install 'hutch[otel]')"
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win; the SDK reads them itself.
    named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": "hutch"}))
    names = [name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",") if name.strip()]
    for name in names:
        exporter = _exporter(name)
        if exporter is None:
            return f"no spans are sent: there is no exporter {name!r} (fix: pip install 'hutch[otel]')"
        provider.add_span_processor(BatchSpanProcessor(exporter))
    global _own
    _own = provider
    use(provider)
    return f"spans are sent by {', '.join(names)}"


def use(provider: Any) -> None:
    """Make spans with this tracer provider; None for the one of the process."""
    global on, _tracer
    from opentelemetry import trace

    _tracer = trace.get_tracer("hutch", tracer_provider=provider)
    on = True


def off() -> None:
    """Send the remaining spans, and make no more."""
    global on, _tracer, _own
    provider, on, _tracer, _own = _own, False, None, None
    if provider is not None:
        provider.shutdown()


def request(headers: Mapping[str, str]) -> AbstractContextManager[Any]:
    """Open the span of a request, below the caller's if it sent a `traceparent`; None while off."""
    return _request(headers) if on else _NOTHING


def served(span: Any, op: str, status: int, request: str) -> None:
    """Add what is known at the end of a request; `span` is what `request` returned."""
    if span is None:
        return
    method, _, route = op.partition(" ")
    span.update_name(op)
    span.set_attributes(
        {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "hutch.request": request,
        }
    )
    if status >= 500:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR)


def step(name: str, **attributes: str) -> AbstractContextManager[Any]:
    """Open a span below the current one for one step."""
    return _span(name, attributes=attributes) if on else _NOTHING


def start(name: str, attributes: Mapping[str, str]) -> Any:
    """Start a span that does not become current, because its work may be interleaved with other work."""
    return _tracer.start_span(name, attributes=dict(attributes))


def finish(span: Any, error: str, attributes: Mapping[str, str]) -> None:
    """End a span; `error` is the code of what went wrong."""
    if attributes:
        span.set_attributes(dict(attributes))
    if error:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR, error)
    span.end()


@contextmanager
def _request(headers: Mapping[str, str]) -> Iterator[Any]:
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    with _span("request", context=extract(headers), kind=SpanKind.SERVER) as span:
        yield span


@contextmanager
def _span(name: str, **options: Any) -> Iterator[Any]:
    """Open a current span. Only the code or class of an error is recorded: OpenTelemetry would add its message and a
    stack, which may quote a command, a path or a secret."""
    with _tracer.start_as_current_span(
        name, record_exception=False, set_status_on_exception=False, **options
    ) as span:  # fmt: skip
        try:
            yield span
        except BaseException as error:
            from opentelemetry.trace import StatusCode

            span.set_attribute("error.type", str(getattr(error, "code", "") or type(error).__name__))
            span.set_status(StatusCode.ERROR)
            raise


def _exporter(name: str) -> Any:
    from importlib.metadata import entry_points

    for found in entry_points(group="opentelemetry_traces_exporter"):
        if found.name == _NAMES.get(name, name):
            return found.load()()
    return None
