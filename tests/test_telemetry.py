"""OpenTelemetry: nothing of it while nobody asks; spans of everything when somebody does."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hutch import telemetry
from hutch.errors import HutchError
from hutch.keeper.embedded import Hutch
from tests.server.serving import serving

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.use(provider)
    try:
        yield exporter
    finally:
        telemetry.off()


def test_nothing_is_imported_unless_asked() -> None:
    script = (
        "import sys, asyncio; import hutch.server.run; from hutch.keeper.embedded import Hutch\n"
        "from hutch import telemetry\n"
        "assert telemetry.set_up({}) == '' and not telemetry.on\n"
        "async def main():\n"
        "    async with Hutch(store='memory') as hutch, hutch.box(memory_mb=64) as box: await box.exec('true')\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done


@pytest.mark.parametrize(("loaded", "joined"), [("opentelemetry.trace", False), ("opentelemetry.sdk.trace", True)])
def test_a_library_that_imports_the_api_alone_asks_for_no_spans(loaded: str, joined: bool) -> None:
    script = f"import {loaded}; from hutch import telemetry; telemetry.join(); print(telemetry.on)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == str(joined), done


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "console"}, False),
        ({"OTEL_SERVICE_NAME": "mine"}, False),
    ],
)
def test_the_standard_environment_decides(environ: dict[str, str], asked: bool) -> None:
    assert telemetry.configured(environ) is asked


def test_a_missing_exporter_is_reported_with_its_remedy() -> None:
    telemetry.off()  # a keeper of an earlier test has joined what this file has loaded
    answer = telemetry.set_up({"OTEL_TRACES_EXPORTER": "pigeon"})
    assert "pigeon" in answer and "hutch[otel]" in answer
    assert not telemetry.on


async def test_spans_of_creation_commands_and_files(spans: InMemorySpanExporter) -> None:
    """A box's creation step by step, exec, file operations; errors by their code."""
    async with Hutch(store="memory") as hutch:
        async with hutch.box(memory_mb=64) as box:
            await box.exec("exit 2")
            await box.files.write("a", "text")
            with pytest.raises(FileNotFoundError):
                await box.files.read("none")
    found: dict[str, ReadableSpan] = {span.name: span for span in spans.get_finished_spans()}
    make = found["hutch.create"]
    for step in ("record", "engine", "running"):
        parent = found[f"hutch.create.{step}"].parent
        assert parent is not None and parent.span_id == make.context.span_id, step
    assert dict(make.attributes or {})["provider"] == "native"
    ran = dict(found["hutch.exec"].attributes or {})
    assert (ran["hutch.box"], ran["hutch.cause"]) == (box.id, "exit")
    assert dict(found["hutch.files.read"].attributes or {})["error.type"] == "file_not_found"
    assert not found["hutch.files.read"].status.is_ok and found["hutch.files.write"].status.is_unset
    shown = str([span.to_json() for span in spans.get_finished_spans()])
    assert "exit 2" not in shown and "none" not in dict(found["hutch.files.read"].attributes or {}).values()


async def test_a_span_has_only_the_code_of_an_error(spans: InMemorySpanExporter) -> None:
    """What an error quotes (here a directory's name) is in no span: no message, no stack (lesson 37)."""
    async with Hutch(store="memory") as hutch:
        with pytest.raises(HutchError, match="correct-horse-battery"):
            await hutch.create(image="dir:/no/correct-horse-battery")
    failed = [dict(span.attributes or {}) for span in spans.get_finished_spans() if not span.status.is_unset]
    assert failed and all(attributes["error.type"] for attributes in failed)
    assert "correct-horse" not in str([span.to_json() for span in spans.get_finished_spans()])


class Collector(http.server.BaseHTTPRequestHandler):
    """What listens on port 4318 elsewhere."""

    got: list[Span]
    service: set[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.service.update(each.value.string_value for each in resource.resource.attributes)
            self.got.extend(span for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return None


@contextmanager
def collecting() -> Iterator[tuple[str, type[Collector]]]:
    handler = type("Handler", (Collector,), {"got": [], "service": set()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_sends_spans_below_its_callers_own() -> None:
    """The real exporter, configured by OTEL_* alone; `traceparent` is followed."""
    with collecting() as (url, collector):
        with serving(OTEL_EXPORTER_OTLP_ENDPOINT=url) as server:
            assert "spans are sent by otlp" in server.log.read_text()
            client = server.unix(traceparent=f"00-{TRACE}-{PARENT}-01")
            with client.box(memory_mb=64) as box:
                client.good("POST", f"{box}/exec", {"command": "true"})
                request = client.call("GET", f"{box}/files/content?path=none")
            server.end()
        spans = [span for span in collector.got if span.trace_id.hex() == TRACE]
        assert "hutch" in collector.service
    by_name = {span.name: span for span in spans}
    create, run = by_name["POST /v1/boxes"], by_name["POST /v1/boxes/{box}/exec"]
    assert create.parent_span_id.hex() == run.parent_span_id.hex() == PARENT
    assert by_name["hutch.create"].parent_span_id == create.span_id
    assert by_name["hutch.create.engine"].parent_span_id == by_name["hutch.create"].span_id
    assert by_name["hutch.exec"].parent_span_id == run.span_id
    failed = {each.key: each.value for each in by_name["GET /v1/boxes/{box}/files/content"].attributes}
    assert failed["http.response.status_code"].int_value == 404
    assert failed["hutch.request"].string_value == request.headers["hutch-request"]
