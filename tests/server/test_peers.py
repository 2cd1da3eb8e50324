"""Foreign protocols at several servers: a door passes a request on to the server that keeps the box."""

import json
import socket
import tracemalloc
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from websockets.sync.client import connect

from hutch.server.peers import Recorded
from tests.keeper.postgres_server import database as database
from tests.keeper.postgres_server import postgres as postgres
from tests.server.previews.preview_box import previewed
from tests.server.serving import TIMEOUT_SECONDS, Client, Server, until
from tests.server.test_held_by_doors import Sandbox
from tests.server.test_several_servers import free_port, pair

pytestmark = pytest.mark.slow

SERVE = "nohup python3 -m http.server 8123 >/dev/null 2>&1 &"


@pytest.fixture
def servers(database: str) -> Iterator[tuple[Server, Server]]:
    """Each has a state key of its own, so that neither knows the tokens of the other's sandboxes and previews."""
    with pair(database) as both:
        yield both


def there(sandbox: Sandbox, server: Server) -> Sandbox:
    """Return the same sandbox as a client sees it who speaks with another server."""
    other = object.__new__(Sandbox)
    other.__dict__ |= {**sandbox.__dict__, "client": server.tcp()}
    return other


def bearer(server: Server, key: str) -> Client:
    return server.tcp(key)


def test_an_e2b_client_of_any_server_uses_every_sandbox(servers: tuple[Server, Server]) -> None:
    """Control plane, commands, files, and ports of a sandbox are served at the server that does not keep it (P17)."""
    first, second = servers
    made = Sandbox(bearer(first, first.key("user", "ann")))
    seen, key = there(made, second), {"x_api_key": made.key}
    control = seen.client.call("GET", f"/sandboxes/{made.id}", **key)
    assert (control.status, control.json()["sandboxID"]) == (200, made.id), control
    assert [each["sandboxID"] for each in seen.client.call("GET", "/v2/sandboxes", **key).json()] == [made.id]
    seen.run(f"echo hi > /tmp/note; {SERVE}")
    sent = seen.client.call(
        "POST", "/files?path=/tmp/large", bytes(3 << 20), content_type="application/octet-stream", **seen.headers
    )
    assert sent.status == 200, sent
    read = seen.client.call("GET", "/files?path=/tmp/note", **seen.headers)
    assert (read.status, read.body) == (200, b"hi\n"), read
    assert seen.call("/filesystem.Filesystem/Stat", {"path": "/tmp/large"}).json()["entry"]["size"] == 3 << 20
    port = {"e2b_sandbox_id": made.id, "e2b_sandbox_port": "8123"}
    until(lambda: seen.client.call("GET", "/", **port).status == 200)
    assert b"Directory listing" in seen.client.call("GET", "/", **port).body
    assert seen.client.call("GET", "/health", **seen.headers).status == 204
    assert seen.client.call("DELETE", f"/sandboxes/{made.id}", **key).status == 204
    assert made.client.call("GET", f"/sandboxes/{made.id}", **key).status == 404


def test_an_astrbot_of_any_server_uses_its_ship(servers: tuple[Server, Server]) -> None:
    """A request whose body was read before the box was found is passed on whole."""
    first, second = servers
    key = first.key("user", "ann")
    ship = bearer(first, key).good("POST", "/shipyard/ship", {"ttl": 3000}, x_session_id="s")["id"]
    write = {"type": "fs/write_file", "payload": {"path": "a.txt", "content": "x" * 100_000}}
    bearer(second, key).good("POST", f"/shipyard/ship/{ship}/exec", write, x_session_id="s")
    read = {"type": "fs/read_file", "payload": {"path": "a.txt"}}
    answer = bearer(first, key).good("POST", f"/shipyard/ship/{ship}/exec", read, x_session_id="s")
    assert "x" * 100_000 in json.dumps(answer)


def test_a_preview_is_served_at_any_server(servers: tuple[Server, Server]) -> None:
    """The address of a preview leads to any server, by its host name and by its path; WebSockets too."""
    first, second = servers
    with previewed(bearer(first, first.key("user", "ann"))) as preview:
        shown = {"host": preview.host, "hutch_preview": preview.token}
        seen = second.tcp().good("PUT", "/echo?a=%20b", b"body", **shown, cookie="own=1")
        assert (seen["method"], seen["target"], seen["body"]) == ("PUT", "/echo?a=%20b", "body")
        headers = {name.lower(): value for name, value in seen["headers"]}
        assert (headers["host"], headers["cookie"]) == (preview.host, "own=1")
        assert not [name for name in headers if name.startswith("hutch")]
        path = urlsplit(preview.facts["path_url"]).path
        assert b"hello from the box" in second.tcp().call("GET", path).body
        assert second.tcp().call("GET", "/", host=preview.host).status == 401
        stream = socket.create_connection(
            ("127.0.0.1", urlsplit(second.announcement["url"]).port or 0), TIMEOUT_SECONDS
        )
        with connect(
            f"ws://{preview.host}/ws", sock=stream, additional_headers={"Hutch-Preview": preview.token}
        ) as inner:
            inner.send("text ü")
            assert inner.recv(TIMEOUT_SECONDS) == "text ü"


@pytest.mark.parametrize("message", [{"type": "websocket.receive", "bytes": b"x" * 50}, {"type": "http.request"}])
async def test_what_is_kept_of_a_request_is_bounded(message: dict[str, object]) -> None:
    """A WebSocket or a body without end, in pieces of any size, holds its first megabyte at most (lesson 46)."""

    async def endless() -> dict[str, object]:
        return dict(message)

    received = Recorded(endless, most_bytes=1 << 20)
    tracemalloc.start()
    try:
        for _ in range(30_000):
            await received()
        assert not received.is_whole
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_no_request_is_passed_on_in_circles_or_in_the_open(servers: tuple[Server, Server], database: str) -> None:
    """A request that came from a peer, and one whose box has no address, gets the error itself; a peer that is gone is
    an error that says to try again; and whoever may not see the box learns nothing at either server."""
    first, second = servers
    eve = first.key("user", "eve")
    made = Sandbox(bearer(first, first.key("user", "ann")))
    path, key = f"/sandboxes/{made.id}", {"x_api_key": made.key}
    passed = second.tcp().call("GET", path, hutch_passed_on="1", **key)
    assert (passed.status, passed.json()["error_code"]) == (409, "held_elsewhere"), passed
    assert second.tcp().call("GET", path, x_api_key=eve).status == 404
    wrong = {"e2b_sandbox_id": made.id, "x_access_token": f"{made.headers['x_access_token'][:-1]}~"}
    assert second.tcp().call("GET", "/files?path=/tmp/x", **wrong).status == 401
    for url, status in ((f"http://127.0.0.1:{free_port()}", 503), ("", 409), (second.announcement["url"], 409)):
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("UPDATE hutch.keepers SET url = %s", (url,))
        answer = second.tcp().call("GET", path, **key)
        assert answer.status == status, (url, answer)
