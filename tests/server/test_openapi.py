"""The served document: valid, whole, true to the table and to what streams hold; and the reference made from it."""

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate

from hutch.model.boxes import Event
from hutch.server.error_status import STATUS
from hutch.server.handlers.websockets import SOCKETS
from hutch.server.openapi import codes_of, document
from hutch.server.routes import ROUTES, May
from hutch.server.wire import ExecLine, SpecForm, WatchLine
from tests.proofs import ROOT
from tests.server.serving import Client, Server


def _operations() -> dict[str, dict[str, Any]]:
    paths = document()["paths"]
    return {f"{method.upper()} {path}": each for path, by in paths.items() for method, each in by.items()}


def test_it_is_served_to_every_authenticated_caller(server: Server, client: Client) -> None:
    """Every role gets the same OpenAPI 3.1 document; without a key the answer is 401."""
    for role in ("user", "observer", "admin"):
        answer = server.tcp(server.key(role, "reader")).good("GET", "/v1/openapi.json")
        assert answer == document()
    assert answer["openapi"].startswith("3.1")
    assert server.tcp().call("GET", "/v1/openapi.json").status == 401


def test_it_is_valid() -> None:
    validate(document())


def test_it_describes_every_route() -> None:
    """With a summary, an id of its own, who may, what it takes and what it answers."""
    operations = _operations()
    assert set(operations) == {route.op for route in ROUTES}
    assert len({each["operationId"] for each in operations.values()}) == len(ROUTES)
    for route in ROUTES:
        answer = operations[route.op]
        assert answer["summary"], route.op
        assert answer["x-hutch-may"] == route.may
        assert ("requestBody" in answer) == (route.body is not None or route.raw), route.op
        assert (answer.get("security") == []) == (route.may is May.ANYBODY)
        asked = {each["name"] for each in answer["parameters"] if each.get("in") == "query"}
        assert asked == set(getattr(route.query, "__struct_fields__", ())), route.op
        good = [status for status in answer["responses"] if status.startswith("2")]
        assert good, route.op
        if route.may is not May.ANYBODY:
            assert {"400", "401", "403", "429"} <= set(answer["responses"]), route.op
    assert set(document()["x-websockets"]) == set(SOCKETS)


def test_it_describes_every_error() -> None:
    """Every code that a caller can meet stands with some route; a broken configuration ends a server at its start, and
    a closed port is met by WebSockets and visitors of previews only."""
    assert {code for route in ROUTES for code in codes_of(route)} == set(STATUS) - {"config", "port_closed"}


def test_fields_carry_the_sentences_of_the_source() -> None:
    schemas = document()["components"]["schemas"]
    assert "cursor" in schemas["EventPage"]["properties"]
    assert schemas["EventPage"]["properties"]["cursor"]["description"] == "The value of `after` for the next page."
    assert "never shown" in schemas["SpecForm"]["properties"]["secrets"]["description"]
    assert "lesson" not in json.dumps(document())


@pytest.mark.parametrize(
    "spec",
    [
        {"memory_mb": 64, "mounts": ["/tmp:/data"], "workspace": "own:ro"},
        {"limits": {"pids": 5}, "mounts": [{"source": "/tmp", "target": "/data", "mode": "ro"}], "name": None},
    ],
)
def test_the_form_of_a_spec_is_what_is_taken(client: Client, spec: dict[str, Any]) -> None:
    """The described form is as forgiving as the handler; whether policy agrees is another question."""
    msgspec.convert(spec, SpecForm)
    assert client.call("POST", "/v1/boxes", spec).json()["code"] == "refused", "mounts of /tmp are not allowed here"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"memry_mb": 64}, SpecForm)


def test_lines_of_streams_are_as_described(client: Client) -> None:
    """OpenAPI has no word for them, so they are held against the records that `x-each` names."""
    with client.box(memory_mb=128) as box:
        for command, last in (("echo out; echo err >&2", "result"), ("sleep 0.01; exit 3", "result")):
            answer = client.call("POST", f"{box}/exec", {"command": command}, accept="application/x-ndjson")
            lines = [ExecLine.from_json(line) for line in answer.body.splitlines()]
            assert getattr(lines[-1], last) is not msgspec.UNSET
        connection, response = client.open("GET", f"{box}/files/watch")
        assert WatchLine.from_json(response.readline()).watching is True
        client.good("PUT", f"{box}/files/content?path=new", b"x")
        assert WatchLine.from_json(response.readline()).path == "new"
        connection.close()
        connection, response = client.open("GET", "/v1/events", accept="text/event-stream")
        while not (line := response.readline()).startswith(b"data: "):
            pass
        assert Event.from_json(line.removeprefix(b"data: ")).kind
        connection.close()


def test_the_reference_is_current() -> None:
    """docs/reference/http.md is made from this document: a change of the table without it fails here."""
    program = ROOT / "tools" / "http_reference.py"
    done = subprocess.run([sys.executable, str(program), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
