"""WebSockets: terminals that are typed into, and the line relay that MCP clients use."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect, unix_connect

from tests.server.serving import TIMEOUT_SECONDS, Client, Server, until


@contextmanager
def attached(client: Client, path: str, **headers: str) -> Iterator[ClientConnection]:
    given = {name.replace("_", "-"): value for name, value in {**client.headers, **headers}.items()}
    options = {"additional_headers": given, "open_timeout": TIMEOUT_SECONDS, "compression": None, "proxy": None}
    if isinstance(client.address, str):
        options.pop("proxy")
        opened = unix_connect(client.address, f"ws://localhost{path}", **options)
    else:
        opened = connect(f"ws://{client.address[0]}:{client.address[1]}{path}", **options)
    with opened as socket:
        yield socket


def _until(socket: ClientConnection, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        frame = socket.recv(TIMEOUT_SECONDS)
        assert isinstance(frame, bytes), frame
        got += frame
    return got


def test_a_terminal(client: Client) -> None:
    """A terminal carries bytes both ways, can be resized, and reports its end."""
    with client.box() as box, attached(client, f"{box}/terminal?rows=30&cols=90") as socket:
        socket.send(b"stty size; tty\n")
        assert b"30 90" in _until(socket, b"/dev/")
        socket.send(json.dumps({"rows": 41, "cols": 123}))
        socket.send(b"until [ \"$(stty size)\" = '41 123' ]; do sleep 0.02; done; echo re''sized\n")
        _until(socket, b"resized")
        socket.send(b"exit 5\n")
        end = None
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                frame = socket.recv(TIMEOUT_SECONDS)
                end = frame if isinstance(frame, str) else end
        assert json.loads(end or "null") == {"exit_code": 5, "signal": None}
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


def test_closing_a_terminal_hangs_up(client: Client) -> None:
    """No shell stays behind, however stubborn."""
    with client.box() as box:
        with attached(client, f"{box}/terminal") as socket:
            socket.send(b"trap '' HUP TERM; echo re''ady\n")
            _until(socket, b"ready")
            assert len(client.good("GET", f"{box}/jobs")["jobs"]) == 1
        until(lambda: client.good("GET", f"{box}/jobs")["jobs"] == [])


def test_the_relay_frames_lines(server: Server) -> None:
    """Each line is one frame, however it was written; the job outlives its client (B29, lesson 36)."""
    client = server.tcp(server.key("user", "relay"))
    with client.box() as box:
        command = 'printf "fir"; sleep 0.05; printf "st\\nsecond\\n"; while read -r x; do printf "<%s>\\n" "$x"; done'
        job = f"{box}/jobs/{client.good('POST', f'{box}/jobs', {'command': command})['id']}"
        with attached(client, f"{job}/ws") as socket:
            assert [socket.recv(TIMEOUT_SECONDS), socket.recv(TIMEOUT_SECONDS)] == ["first", "second"]
            socket.send('{"jsonrpc": "2.0", "text": "ü"}')
            assert socket.recv(TIMEOUT_SECONDS) == '<{"jsonrpc": "2.0", "text": "ü"}>'
            long = "x" * 300_000
            socket.send(long)
            assert socket.recv(TIMEOUT_SECONDS) == f"<{long}>"
        assert client.good("GET", job)["state"] == "running"
        seen = client.good("GET", job)["stdout_total"]
        with attached(client, f"{job}/ws?cursor={seen}") as socket:
            socket.send("again")
            assert socket.recv(TIMEOUT_SECONDS) == "<again>", "nothing of before is told twice"
            client.good("POST", f"{job}/stdin?close=true", b"")
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(TIMEOUT_SECONDS)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "ended: ok")


def test_a_frame_of_two_lines_is_refused(client: Client) -> None:
    with client.box() as box:
        job = f"{box}/jobs/{client.good('POST', f'{box}/jobs', {'command': 'cat'})['id']}"
        with attached(client, f"{job}/ws") as socket:
            socket.send("one\ntwo")
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(TIMEOUT_SECONDS)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008


def test_sockets_ask_at_the_same_door(server: Server) -> None:
    """Keys, roles, owners, leases and origins are checked for WebSockets too, and a refusal has a status."""
    user, observer = (server.tcp(server.key(role, "ws")) for role in ("user", "observer"))
    stranger = server.tcp(server.key("user", "ws-stranger"))
    with user.box() as box:
        path = f"{box}/terminal"
        for client, headers, status in (
            (server.tcp(), {}, 401),
            (observer, {}, 403),
            (stranger, {}, 404),
            (user, {"hutch_session": "another"}, 409),
            (user, {"origin": "https://evil.example"}, 403),
        ):
            with pytest.raises(InvalidStatus) as refused:
                with attached(client, path, **headers):
                    pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body or b"")["code"]
        with pytest.raises(InvalidStatus) as refused:
            with attached(user, f"{box}/jobs/none/ws"):
                pass
        assert refused.value.response.status_code == 404
        assert user.good("GET", f"{box}/jobs")["jobs"] == []
