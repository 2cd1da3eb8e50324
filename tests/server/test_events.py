"""Events over HTTP: pages and a stream that resumes where it was left; numbers for Prometheus; status."""

import http.client
import json
from typing import Any

from tests.server.serving import Client, Server


def _next(response: http.client.HTTPResponse) -> dict[str, Any]:
    """The next event of a stream, without the comments between."""
    fields: dict[str, str] = {}
    while True:
        line = response.readline().decode().rstrip("\n")
        if not line and fields:
            return {**json.loads(fields["data"]), "id": int(fields["id"]), "event": fields["event"]}
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def test_a_stream_resumes_where_it_was_left(server: Server) -> None:
    """A resumed stream neither misses nor repeats an event, and shows only the owner's."""
    owner = server.tcp(server.key("user", "listener"))
    other = server.tcp(server.key("user", "talker"))
    connection, response = owner.open("GET", "/v1/events", accept="text/event-stream")
    assert response.headers["content-type"] == "text/event-stream"
    with owner.box() as box, other.box():
        created, running = _next(response), _next(response)
        assert (created["event"], running["new"]) == ("created", "running")
        assert created["box_id"] == running["box_id"] == box.rpartition("/")[2]
        connection.close()
        owner.good("POST", f"{box}/pause")
        owner.good("POST", f"{box}/resume")
    connection, response = owner.open("GET", "/v1/events", accept="text/event-stream", last_event_id=str(running["id"]))
    rest = []
    while not rest or rest[-1]["event"] != "gone":
        rest.append(_next(response))
    assert [each["new"] for each in rest if each["event"] == "state"] == ["paused", "running", "stopping"]
    assert {each["owner"] for each in rest} == {"listener"}
    connection.close()

    paged: list[int] = []
    cursor = 0
    while (page := owner.good("GET", f"/v1/events?after={cursor}&limit=2"))["events"]:
        paged += [event["seq"] for event in page["events"]]
        cursor = page["cursor"]
    assert paged == sorted(set(paged))
    assert paged[:2] == [created["id"], running["id"]]
    assert paged[-1] == rest[-1]["id"]


def test_a_wrong_cursor_is_refused(client: Client) -> None:
    for headers, query in (({"last_event_id": "x"}, ""), ({}, "?after=-1"), ({}, "?after=x")):
        answer = client.call("GET", f"/v1/events{query}", accept="text/event-stream", **headers)
        assert (answer.status, answer.json()["code"]) == (400, "invalid")


def test_status_lists_what_is_there(client: Client) -> None:
    """The status says whether boxes can be created, why not, and what the caller has (B25)."""
    with client.box():
        status = client.good("GET", "/v1/status")
        assert (status["state"], status["available"], status["enabled"]) == ("ready", True, True)
        assert status["boxes"]["running"] >= 1
    assert {each["name"] for each in client.good("GET", "/v1/profiles")["profiles"]} >= {"default", "code"}
    (native,) = client.good("GET", "/v1/providers?name=native")["providers"]
    assert native["usable"]
