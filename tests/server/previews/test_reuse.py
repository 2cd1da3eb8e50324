"""Connections into a box are used again by the same visitor, and by nobody else, and never after something odd."""

import json
from collections.abc import Iterator

import pytest

from tests.server.previews.preview_box import PORT, Preview
from tests.server.serving import Client, Server, until

PROGRAM = f"""
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served = 0
    def do_GET(self):
        length = int(self.headers.get("content-length", 0))
        self.rfile.read(length)
        self.served += 1
        body = json.dumps([self.client_address[1], self.served, self.headers["connection"]]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.path == "/surplus":  # In one write: what came later could not be told from a late answer.
            body += b"HTTP/1.1 200 OK\\r\\ncontent-length: 6\\r\\n\\r\\nforged"
        self.wfile.write(body)
        if self.path == "/closes":
            self.close_connection = True
    do_POST = do_GET
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
"""


@pytest.fixture
def owner(server: Server) -> Client:
    return server.tcp(server.key("user", "reuse"))


@pytest.fixture
def preview(owner: Client) -> Iterator[Preview]:
    with owner.box(ports=[PORT]) as path:
        start(owner, path)
        yield Preview(owner, path, owner.good("POST", f"{path}/ports/{PORT}/url", {}))


def start(owner: Client, path: str) -> str:
    job = str(owner.good("POST", f"{path}/jobs", {"command": ["python3", "-c", PROGRAM]})["id"])
    owner.good("GET", f"{path}/ports?wait=60")
    return job


def asked(preview: Preview, target: str = "/", method: str = "GET", body: bytes | None = None) -> tuple[int, int, str]:
    """The connection on which the program got the request, how many it had there, and its header."""
    answer = preview.visit(method, target, body)
    assert answer.status == 200, answer
    port, served, header = json.loads(answer.body)
    return port, served, header


def test_a_visitors_requests_share_a_connection(preview: Preview) -> None:
    """(lesson 32) Those with a body do not, so that no program can mistake a part of one for a request."""

    def shared() -> tuple[int, int, str] | None:
        first, second = asked(preview), asked(preview)
        return second if (second[0], second[1]) == (first[0], first[1] + 1) else None

    found = until(shared)  # A connection waits for two seconds, which a busy machine can miss.
    assert found is not None and found[2] == "keep-alive"
    posted = asked(preview, method="POST", body=b"GET /forged HTTP/1.1\r\n\r\n")
    assert posted[0] != found[0]
    assert posted[1:] == (1, "close")


def test_visitors_do_not_share_connections(preview: Preview, owner: Client) -> None:
    """Another grant has its own, and those who share a public address have one for each request."""
    first = asked(preview)[0]
    other = Preview(owner, preview.path, owner.good("POST", f"{preview.path}/ports/{PORT}/url", {}))
    assert asked(other)[0] != first
    public = Preview(owner, preview.path, owner.good("POST", f"{preview.path}/ports/{PORT}/url", {"public": True}))
    visits = [json.loads(public.visit("GET", "/", Hutch_Preview="").body) for _ in range(2)]
    assert [each[1:] for each in visits] == [[1, "close"], [1, "close"]]


def test_what_follows_an_answer_is_nobodys_answer(preview: Preview) -> None:
    for _ in range(3):
        assert asked(preview, "/surplus")[1] == 1
    assert asked(preview)[1] == 1


def test_a_connection_that_the_program_closed_is_not_missed(preview: Preview, owner: Client) -> None:
    """The request goes in on a new one, also after the program was started again."""
    for _ in range(3):
        assert asked(preview, "/closes")[1] == 1
    jobs = owner.good("GET", f"{preview.path}/jobs")["jobs"]
    asked(preview)
    owner.good("POST", f"{preview.path}/jobs/{jobs[0]['id']}/signal", {"number": 9})
    until(lambda: not owner.good("GET", f"{preview.path}/ports")["ports"])
    start(owner, preview.path)
    assert asked(preview)[1] == 1


def test_a_paused_box_wakes_for_the_next_request(preview: Preview, owner: Client) -> None:
    asked(preview)
    owner.good("POST", f"{preview.path}/pause")
    asked(preview)
    assert owner.good("GET", preview.path)["state"] == "running"
