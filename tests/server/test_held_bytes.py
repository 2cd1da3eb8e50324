"""What a server holds for its callers: large answers come in pieces and whole, what nobody reads is cut, work that
nobody waits for ends, and connections that ask nothing keep nobody out (lesson 46)."""

import base64
import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Client, Server, serving, until

MB = 1 << 20
END = b"0\r\n\r\n"
"""The end of a chunked answer."""
READ_TIMEOUT = 2
SMALL = {"memory_mb": 256, "disk_mb": 64}


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    """A server that holds 32 MB for a key, and closes connections that are not read for two seconds."""
    with serving(HUTCH_SERVER_HELD_MB_PER_KEY="32", HUTCH_SERVER_READ_TIMEOUT_SEC=str(READ_TIMEOUT)) as server:
        yield server


def memory_mb(server: Server) -> float:
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["RssAnon"].split()[0]) / 1024


def held(server: Server, when: str = "now") -> int:
    lines = server.unix().call("GET", "/metrics").body.decode().splitlines()
    line = next(line for line in lines if line.startswith(f'hutch_held_bytes{{when="{when}"}}'))
    return int(float(line.split()[-1]))


def cut_connections(server: Server) -> int:
    return server.log.read_text().count("cut: the answer is not read")


def unread(client: Client, method: str, path: str, body: Any = None, *, window: int = 4096) -> socket.socket:
    """Send a request whose answer nobody reads; `window` is the size of the receive buffer."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    raw.connect(client.address)  # type: ignore[arg-type]
    data = json.dumps(body).encode() if body is not None else b""
    key = client.headers["authorization"]
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\nContent-Length: {len(data)}\r\n\r\n"
    raw.sendall(head.encode() + data)
    return raw


@pytest.mark.parametrize(
    "shown", ["head -c 3000000 /dev/zero", "yes täglich | head -c 3000001", "head -c 3000000 /dev/urandom"],
    ids=["control characters", "text that is cut inside a character", "bytes"],
)  # fmt: skip
def test_a_large_answer_is_what_a_small_one_would_be(narrow: Server, shown: str) -> None:
    """Written in pieces, it is the same JSON: text, and base64 where the text would lose bytes."""
    client = narrow.unix()
    with client.box(**SMALL) as box:
        got = client.good(
            "POST", f"{box}/exec", {"command": f"{shown} | tee kept; cat kept >&2", "keep_output": 4 * MB}
        )
        whole = client.call("GET", f"{box}/files/content?path=kept").body
    for stream in ("stdout", "stderr"):
        assert got[stream] == whole.decode(errors="replace")
        if (lost := got.get(f"{stream}_base64")) is not None:
            assert base64.b64decode(lost) == whole
        assert (lost is None) == (whole.decode(errors="replace").encode() == whole)
        assert (got[f"{stream}_total"], got[f"{stream}_truncated"]) == (len(whole), False)


def test_one_answer_is_cut_to_what_the_server_holds(narrow: Server) -> None:
    """Head and tail of 8 MB, although 64 MB were asked for, and a note says so. Before, 24 MB of zeros became an answer
    of 144 MB and far more memory."""
    client = narrow.tcp(narrow.key("user", "cut"))
    with client.box(**SMALL) as box:
        client.good("POST", f"{box}/exec", {"command": "head -c 1000000 /dev/zero"})
        before = memory_mb(narrow)
        got = client.good("POST", f"{box}/exec", {"command": f"head -c {24 * MB} /dev/zero", "keep_output": 64 * MB})
        assert len(got["stdout"]) == 8 * MB and got["stdout_truncated"] and got["stdout_total"] == 24 * MB
        assert any("keep_output" in note for note in got["notes"])
    assert memory_mb(narrow) < before + 32
    assert held(narrow) == 0


def test_unread_answers_are_cut(narrow: Server) -> None:
    """Connections whose answers are not read are closed, and their bytes are free for the next request."""
    client = narrow.tcp(narrow.key("user", "unread"))
    before = cut_connections(narrow)
    with client.box(**SMALL) as box:
        command = {"command": f"head -c {6 * MB} /dev/zero", "keep_output": 6 * MB}
        waiting = [unread(client, "POST", f"{box}/exec", command) for _ in range(4)]
        until(lambda: cut_connections(narrow) == before + len(waiting))
        until(lambda: held(narrow) == 0)
        for each in waiting:
            got = bytearray()
            with contextlib.suppress(ConnectionResetError):
                while part := each.recv(1 << 20):
                    got += part
            assert not got.endswith(END), "the answer came whole"
            each.close()


def test_what_is_read_slowly_is_not_cut(narrow: Server) -> None:
    """A client that takes longer than the timeout for its answer, but reads steadily, gets all of it."""
    client = narrow.tcp(narrow.key("user", "slow"))
    with client.box(**SMALL) as box:
        body = {"command": "head -c 2000000 /dev/zero", "keep_output": 4 * MB}
        # With a larger window than that of `unread`, the first bytes after the pause take a few calls, also under load.
        slow = unread(client, "POST", f"{box}/exec", body, window=256 << 10)
        got, read_at_pause = bytearray(), 0
        while not got.endswith(END):
            part = slow.recv(1 << 18)
            assert part, "it was cut although it was read"
            got += part
            if (
                len(got) - read_at_pause > 3 * MB
            ):  # More than a third of the kernel's buffer, so the server writes again.
                read_at_pause = len(got)
                time.sleep(0.75 * READ_TIMEOUT)  # The second such pause is longer than the timeout in total.
        assert got.count(b"\\u0000") > 1_990_000  # A chunk may end inside a character.
        slow.close()


def test_more_than_a_keys_part_is_refused_and_others_have_theirs(narrow: Server) -> None:
    """Answers that are not read use up the key's budget; another key's large answer comes all the same."""
    first, second = (narrow.tcp(narrow.key("user", name)) for name in ("full", "other"))
    with first.box(**SMALL) as box, second.box(**SMALL) as other:
        command = {"command": "head -c 2000000 /dev/zero", "keep_output": 2 * MB}
        waiting = [unread(first, "POST", f"{box}/exec", command) for _ in range(16)]
        until(lambda: held(narrow) > 10 * MB)
        got = second.good("POST", f"{other}/exec", {"command": f"head -c {3 * MB} /dev/zero", "keep_output": 4 * MB})
        assert len(got["stdout"]) == 3 * MB
        for each in waiting:
            each.close()
        until(lambda: held(narrow) == 0)
    assert held(narrow, "most") <= 2 * 32 * MB


def test_lists_are_written_as_they_come(narrow: Server) -> None:
    """Four lists of 20,000 entries at once cost no more than one: before, each was whole in memory three times."""
    client = narrow.tcp(narrow.key("user", "lists"))
    with client.box(memory_mb=256, disk_mb=128) as box:
        client.good("POST", f"{box}/exec", {"command": "mkdir many && cd many && seq 20000 | xargs touch"})
        files = client.good("GET", f"{box}/files?path=many")["files"]
        assert [each["path"] for each in files] == sorted(f"many/{number}" for number in range(1, 20_001))
        before = memory_mb(narrow)
        waiting = [unread(client, "GET", f"{box}/files?path=many") for _ in range(8)]
        until(lambda: memory_mb(narrow) <= before + 32)
        assert client.call("GET", f"{box}/files?path=nowhere").status == 404
        assert len(client.good("POST", f"{box}/files/glob", {"pattern": "many/1*", "limit": 20_000})["paths"]) == 11_111
        for each in waiting:
            each.close()


def test_work_ends_when_its_client_leaves(narrow: Server) -> None:
    """A digest of 100 GB of nothing would keep the box's guest busy for minutes after its client has gone."""
    client = narrow.tcp(narrow.key("user", "leaver"))

    def spent() -> int:
        """Ticks of the guest, which is the box's first process."""
        stat = client.good("POST", f"{box}/exec", {"command": "cat /proc/1/stat"})["stdout"]
        fields = stat.rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    with client.box(**SMALL) as box:
        client.good("POST", f"{box}/exec", {"command": "truncate -s 100G hollow"})
        raw = unread(client, "POST", f"{box}/files/digest", {"path": "hollow"})
        before = spent()
        until(lambda: spent() > before + 10)
        raw.close()

        def rests() -> bool:
            first = spent()
            time.sleep(0.3)
            return spent() - first < 5

        until(rests)


@pytest.mark.parametrize("name", ["Host", "Authorization", "Hutch-Key", "Origin"])
def test_a_header_that_decides_stands_once(server: Server, name: str) -> None:
    """Two readers of the same request must not each believe another one."""
    for client in (server.tcp(), server.unix()):
        raw = client.connect()
        if raw.sock is None:
            raw.connect()
        lines = {"Host": "localhost", "Authorization": "Bearer x", "Hutch-Key": "x", "Origin": "http://localhost"}
        head = "GET /healthz HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        raw.sock.sendall(f"{head}{name}: other.example\r\n\r\n".encode())
        assert raw.sock.recv(4096).startswith(b"HTTP/1.1 400 ")
        raw.close()


class Cramped(Server):
    """A server that may have 400 descriptors, of which it is given 200 at its start."""

    program = (
        "-c",
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400));"
        "from hutch.cli.main import main; sys.exit(main())",
    )


def test_half_open_connections_do_not_keep_others_out() -> None:
    """Class: descriptors that a stranger can use up. More connections than the server has descriptors, each in the
    middle of its first request: a caller with a key makes boxes and is answered."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 800, "this test opens 500 connections itself"
    server = Cramped()
    try:
        server.start()
        key = server.key("user", "good")
        limits = Path(f"/proc/{server.pid}/limits").read_text().splitlines()
        assert next(line for line in limits if line.startswith("Max open files")).split()[3:5] == ["400", "400"]
        opened = []
        for _ in range(500):
            raw = socket.create_connection(server.tcp().address)  # type: ignore[arg-type]
            raw.sendall(b"GET /v1/boxes HTTP/1.1\r\nHost: localhost\r\nX-Never: ")
            opened.append(raw)
        client = server.tcp(key)
        for _ in range(3):
            with client.box(memory_mb=64, disk_mb=8) as box:
                assert client.good("POST", f"{box}/exec", {"command": ["true"]})["exit_code"] == 0
        assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < 300
        # The same from those who have a key: the oldest that nothing happens on make room.
        idle = []
        for _ in range(400):
            connection = client.connect()
            connection.request("GET", "/v1/session/current", headers=client.headers)
            connection.getresponse().read()
            idle.append(connection)
        with client.box(memory_mb=64, disk_mb=8) as box:
            assert client.good("POST", f"{box}/exec", {"command": ["true"]})["exit_code"] == 0
        for each in (*opened, *idle):
            each.close()
    finally:
        server.close()


def test_streams_of_one_owner_do_not_keep_others_out() -> None:
    """Class: descriptors that a caller can use up. Streams are in use, so none of them makes room: an owner has half of
    the places, with however many keys, and the next is refused with that reason. Before, the 282nd stream shut out
    everybody else."""
    server = Cramped()
    opened = []
    try:
        server.start()
        greedy, again, other = (server.tcp(server.key("user", owner)) for owner in ("greedy", "greedy", "other"))
        for number in range(150):
            key = (greedy, again)[number % 2].headers["authorization"]
            opened.append(raw := socket.create_connection(server.tcp().address, timeout=60))  # type: ignore[arg-type]
            head = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n"
            raw.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
        for client in (greedy, again):
            more = client.call("GET", "/v1/boxes")
            assert (more.status, more.json()["details"]) == (429, {"connections": 150}), more
        with other.box(memory_mb=64, disk_mb=8) as box:
            assert other.good("POST", f"{box}/exec", {"command": ["true"]})["exit_code"] == 0
        opened.pop().close()
        until(lambda: greedy.call("GET", "/v1/boxes").status == 200)
    finally:
        for each in opened:
            each.close()
        server.close()


def test_rows_in_pieces_are_whole(narrow: Server) -> None:
    """Lines, globs and greps in pieces are whole, also when a line is longer than a piece."""
    client = narrow.unix()
    with client.box(**SMALL) as box:
        long = "ä\x01" * 200_000
        content = f"first\n{long}\n\nlast".encode()
        client.good("PUT", f"{box}/files/content?path=text", content)
        got = client.good("GET", f"{box}/files/lines?path=text")
        assert got == {"lines": ["first", long, "", "last"], "end": True}
        assert client.good("GET", f"{box}/files/lines?path=text&start=3&count=1") == {"lines": [""], "end": False}
        found = client.good("POST", f"{box}/files/grep", {"pattern": "^(first|last)$"})
        assert [(hit["line"], hit["text"]) for hit in found["hits"]] == [(1, "first"), (4, "last")]
        assert found["complete"] and found["files_searched"] == 1
