"""Permission questions over HTTP: asked by agents, seen and answered by people of the same owner, reported as
events."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.server.serving import Client, Server, until

ASKED = {
    "agent": "builder", "tool": "exec", "what": "rm -rf build", "reason": "commands that remove are asked for",
    "arguments": {"command": "rm -rf build", "password": "hunter2", "content": "x" * 5000},
}  # fmt: skip


def waiting(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.good("GET", "/v1/questions")["questions"]
    return found


@contextmanager
def asking(client: Client, **more: Any) -> Iterator[tuple[http.client.HTTPConnection, str]]:
    """A question that is on its way, and its id."""
    known = {each["id"] for each in waiting(client)}
    connection = client.connect()
    connection.request("POST", "/v1/questions", json.dumps({**ASKED, **more}), client.headers)
    try:
        (found,) = until(lambda: [each["id"] for each in waiting(client) if each["id"] not in known])
        yield connection, found
    finally:
        connection.close()


def answered(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def events(client: Client, question: str) -> list[tuple[str, str]]:
    found = client.good("GET", "/v1/events?limit=1000")["events"]
    return [(each["kind"], each["new"]) for each in found if each["old"] == question]


def test_a_question_waits_for_its_answer(server: Server) -> None:
    """A question is shown redacted and shortened, and its first answer counts."""
    agent = server.tcp(server.key("user", "asking"))
    person = server.tcp(server.key("user", "asking"))
    with agent.box() as box, asking(agent, box=box.rpartition("/")[2]) as (connection, question):
        (shown,) = waiting(person)
        assert shown["text"] == "May agent builder use exec: rm -rf build?"
        assert (shown["agent"], shown["tool"], shown["box"]) == ("builder", "exec", box.rpartition("/")[2])
        assert shown["arguments"]["command"] == "rm -rf build"
        assert "hunter2" not in json.dumps(shown)
        assert len(shown["arguments"]["content"]) < 2100
        assert events(person, question) == [("asked", "")]
        person.good("POST", f"/v1/questions/{question}", {"answer": "always"})
        assert answered(connection) == (200, {"answer": "always"})
        late = person.call("POST", f"/v1/questions/{question}", {"answer": "deny"})
        assert (late.status, late.json()["code"]) == (404, "not_found")
        assert waiting(person) == []
        assert events(person, question) == [("asked", ""), ("answered", "always")]


def test_only_people_of_the_owner_answer(server: Server) -> None:
    """For other owners the question does not exist; an observer only sees it; an admin may answer it."""
    agent = server.tcp(server.key("user", "careful"))
    foreign = server.tcp(server.key("user", "curious"))
    observer = server.tcp(server.key("observer", "careful"))
    admin = server.tcp(server.key("admin", "operators"))
    with asking(agent) as (connection, question):
        assert waiting(foreign) == []
        assert waiting(admin) == []
        assert (events(foreign, question), events(observer, question)) == ([], [("asked", "")])
        for client in (foreign, admin):
            real = client.call("POST", f"/v1/questions/{question}", {"answer": "allow"})
            none = client.call("POST", f"/v1/questions/{'0' * 16}", {"answer": "allow"})
            assert (real.status, real.json()["message"].replace(question, "0" * 16)) == (404, none.json()["message"])
        assert [each["id"] for each in waiting(observer)] == [question]
        assert observer.call("POST", f"/v1/questions/{question}", {"answer": "allow"}).status == 403
        over = admin.saying(hutch_admin="yes")
        assert question in [each["id"] for each in waiting(over)]
        over.good("POST", f"/v1/questions/{question}", {"answer": "deny"})
        assert answered(connection) == (200, {"answer": "deny"})


def test_a_client_that_disconnects_withdraws_its_question(server: Server) -> None:
    """A dashboard learns that a question is closed, however it went."""
    agent = server.tcp(server.key("user", "leaving"))
    with asking(agent) as (connection, question):
        connection.close()
        until(lambda: not waiting(agent))
    until(lambda: events(agent, question) == [("asked", ""), ("answered", "")])


def test_one_owner_does_not_fill_the_list(server: Server) -> None:
    """A hundred of one owner's questions wait; the next is refused, and other owners' are not."""
    crowd = server.tcp(server.key("user", "crowd"))
    connections = []
    try:
        for _ in range(100):
            connection = crowd.connect()
            connection.request("POST", "/v1/questions", json.dumps(ASKED), crowd.headers)
            connections.append(connection)
        until(lambda: len(waiting(crowd)) == 100)
        refused = crowd.call("POST", "/v1/questions", ASKED)
        assert (refused.status, refused.json()["code"]) == (429, "quota")
        with asking(server.tcp(server.key("user", "quiet"))):
            pass
    finally:
        for connection in connections:
            connection.close()


def test_a_foreign_box_is_not_named(server: Server) -> None:
    """A question cannot name another owner's box."""
    with server.tcp(server.key("user", "one")).box() as box:
        got = server.tcp(server.key("user", "two")).call(
            "POST", "/v1/questions", {**ASKED, "box": box.rpartition("/")[2]}
        )
        assert (got.status, got.json()["code"]) == (404, "not_found")


def test_a_question_concerns_the_owner_of_its_box(server: Server) -> None:
    """A caller who acts over all owners asks the people of the box's owner, and not his own."""
    owner = server.tcp(server.key("user", "concerned"))
    asker = server.tcp(server.key("admin", "operators"), hutch_admin="yes")
    colleague = server.tcp(server.key("user", "operators"))
    with owner.box() as box, asking(asker, box=box.rpartition("/")[2]) as (connection, question):
        assert (waiting(colleague), [each["id"] for each in waiting(owner)]) == ([], [question])
        assert colleague.call("POST", f"/v1/questions/{question}", {"answer": "allow"}).status == 404
        owner.good("POST", f"/v1/questions/{question}", {"answer": "deny"})
        assert answered(connection) == (200, {"answer": "deny"})
