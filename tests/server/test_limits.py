"""How much and how long anybody may ask for: requests, bodies, heads, time."""

import json
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import TIMEOUT_SECONDS, Client, Server, serving, until

BODY_MB = 1


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with small limits."""
    config = tmp_path_factory.mktemp("strict") / "hutch.toml"
    config.write_text(
        f"[server]\nmax_body_mb = {BODY_MB}\nmax_upload_mb = 2\nbody_timeout_sec = 1\nbody_total_sec = 2\n"
    )
    with serving(HUTCH_CONFIG=str(config)) as server:
        yield server


def _raw(client: Client, sent: bytes) -> socket.socket:
    connection = socket.create_connection(client.address, timeout=TIMEOUT_SECONDS)  # type: ignore[arg-type]
    connection.sendall(sent)
    return connection


def _answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body, up to the end of the connection."""
    with connection:
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_bodies_that_are_too_large(strict: Server) -> None:
    """A body that is too large gets 413, whether its size was declared or not."""
    client = strict.tcp(strict.key("user", "large"))
    answer = client.call("POST", "/v1/boxes", b"{" + b" " * (BODY_MB << 20) + b"}")
    assert (answer.status, answer.json()["code"]) == (413, "too_large")
    assert answer.json()["details"] == {"limit": BODY_MB << 20}

    def pieces() -> Iterator[bytes]:
        yield b"{"
        for _ in range(BODY_MB << 4):
            yield b" " * 65536
        yield b"}"

    seen = client.call("POST", "/v1/boxes", pieces())
    assert (seen.status, seen.json()["code"]) == (413, "too_large")
    with client.box(memory_mb=128) as box:
        assert client.call("PUT", f"{box}/files/content?path=f", b"x" * (BODY_MB << 20) + b"x").status == 200
        refused = client.call("PUT", f"{box}/files/content?path=g", b"x" * (2 << 20) + b"x")
        assert (refused.status, refused.json()["code"]) == (413, "too_large")
        assert client.call("GET", f"{box}/files/stat?path=g").status == 404, "nothing of it was kept"


def test_bodies_that_stand_still(strict: Server) -> None:
    """A body that stops gets 408 and a closed connection; an interrupted upload changes nothing."""
    client = strict.tcp(strict.key("user", "slow"))
    with client.box(memory_mb=128) as box:
        client.good("PUT", f"{box}/files/content?path=f", b"whole")
        for line in ("POST /v1/boxes", f"PUT {box}/files/content?path=f"):
            head = f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 100\r\n"
            key = client.headers["authorization"]
            status, body = _answer(_raw(client, f"{head}Authorization: {key}\r\n\r\n{{".encode()))
            assert (status, json.loads(body)["code"], json.loads(body)["retryable"]) == (408, "timeout", True), line
        assert client.call("GET", f"{box}/files/content?path=f").body == b"whole"


def test_bodies_that_trickle(strict: Server) -> None:
    """A byte now and then, each in time, does not hold a connection for ever; a body that keeps coming is read."""
    client = strict.tcp(strict.key("user", "trickling"))
    head = "POST /v1/boxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 100000\r\n"
    connection = _raw(client, f"{head}Authorization: {client.headers['authorization']}\r\n\r\n{{".encode())
    for _ in range(100):
        if select.select([connection], [], [], 0.2)[0]:
            break
        connection.sendall(b" ")
    else:
        pytest.fail("it was read for 20 s")
    status, body = _answer(connection)
    assert (status, json.loads(body)["code"]) == (408, "timeout")


def test_heartbeats_have_a_size(strict: Server) -> None:
    """One names at most a thousand boxes, however they are spread over sessions."""
    client = strict.tcp(strict.key("user", "many"))
    for sessions in (1, 10):
        boxes = {str(each): 1.0 for each in range(1000 // sessions)}
        body = {"sessions": {f"s{each}": boxes for each in range(sessions)}}
        assert client.good("POST", "/v1/session/presence", body)["kept"] == 0
        body["sessions"]["one more"] = {"x": 1.0}
        refused = client.call("POST", "/v1/session/presence", body)
        assert (refused.status, refused.json()["code"]) == (400, "invalid")


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal"],
    ids=["nothing", "half a head", "half a second one"],
)
def test_heads_that_never_end(strict: Server, sent: bytes) -> None:
    """A client that opens connections and sends nothing loses them."""
    with _raw(strict.tcp(), sent) as connection:
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert b"HTTP/1.1 408 " in answer


def test_heads_that_are_too_large(strict: Server) -> None:
    """Endless headers cost the sender a connection, not the server its memory."""
    with _raw(strict.tcp(), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: ") as connection:
        answer = b""
        try:
            for _ in range(10_000):
                connection.sendall(b"a" * 65536)
            pytest.fail("640 MB of one header were taken")
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            answer = connection.recv(65536)
        except ConnectionResetError:
            return
    assert b" 431 " in answer or answer == b""


def test_a_connection_that_is_used_stays(strict: Server) -> None:
    """The time of a head begins with its first byte: not with the connection."""
    connection = strict.tcp().connect()
    for _ in range(3):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"ok":true}'
        time.sleep(0.6)
    connection.close()


def test_strangers_have_a_rate(tmp_path: Path) -> None:
    """By address, for requests without a good key, made-up keys and health checks alike; a caller with a key is not
    concerned."""
    (tmp_path / "hutch.toml").write_text("[server]\nrate_per_sec = 5\n")
    with serving(HUTCH_CONFIG=str(tmp_path / "hutch.toml")) as server:
        good = server.tcp(server.key("user", "good"))
        strangers = [server.tcp(), server.tcp("nonsense"), server.tcp(f"hutch_k000000000000_{'A' * 43}")]
        answers = [strangers[turn % 3].call("GET", "/v1/boxes") for turn in range(60)]
        refused = [each for each in answers if each.status == 429]
        assert {each.status for each in answers} == {401, 429}
        assert refused[0].json()["retryable"]
        assert refused[0].json()["retry_after"] > 0
        assert int(refused[0].headers["retry-after"]) >= 1
        assert good.call("GET", "/v1/session/current").status == 200
        until(lambda: server.tcp().call("GET", "/healthz").status == 200)
        assert 429 in {server.tcp().call("GET", "/healthz").status for _ in range(60)}
