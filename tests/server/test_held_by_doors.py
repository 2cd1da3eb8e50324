"""What a server holds for callers of its doors and its WebSockets counts like answers and bodies do: messages that have
not ended, requests that wait, lists, events and displays that nobody has fetched (lesson 46)."""

import base64
import json
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection

from hutch.server.http.connections import SMALL_MESSAGE
from tests.server.serving import TIMEOUT_SECONDS, Answer, Client, Server, serving, until
from tests.server.test_held_bytes import MB, held, unread
from tests.server.test_websockets import attached

PART_MB = 8
"""What a key may have in either of the two pools."""


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    with serving(HUTCH_SERVER_HELD_MB_PER_KEY=str(2 * PART_MB)) as server:
        yield server


def member(server: Server, owner: str) -> Client:
    return server.tcp(server.key("user", owner))


def send_part(socket: ClientConnection, data: bytes, opcode: Opcode, *, fin: bool = False) -> None:
    """Send one frame of a message, which the library would only send as a whole."""
    frame = Frame(opcode, data, fin)
    socket.socket.sendall(frame.serialize(mask=True))


def test_messages_that_do_not_end_are_counted(narrow: Server) -> None:
    """Several WebSockets of one owner, each with most of a message: the one that exceeds the limit is closed, with the
    code to try again later. Another owner's are not, nor are many tiny parts of one message."""
    client, other = member(narrow, "parts"), member(narrow, "whole")
    with client.box() as box, other.box() as control, ExitStack() as stack:
        job = client.good("POST", f"{box}/jobs", {"command": "cat"})["id"]
        sockets = [stack.enter_context(attached(client, f"{box}/jobs/{job}/ws")) for _ in range(3)]
        for socket in sockets[:2]:
            send_part(socket, bytes(PART_MB * MB // 2 - SMALL_MESSAGE // 4), Opcode.TEXT)
            assert socket.ping().wait(TIMEOUT_SECONDS), "what came before was read"
        theirs = other.good("POST", f"{control}/jobs", {"command": "wc -c"})["id"]
        free = stack.enter_context(attached(other, f"{control}/jobs/{theirs}/ws"))
        send_part(free, b"x", Opcode.TEXT)
        for _ in range(2000):
            send_part(free, b"", Opcode.CONT)
        send_part(free, b"y" * MB, Opcode.CONT, fin=True)
        with pytest.raises(ConnectionClosed) as closed:
            send_part(sockets[2], bytes(SMALL_MESSAGE), Opcode.TEXT)
            sockets[2].recv(TIMEOUT_SECONDS)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013, closed.value
        sent = other.good("GET", f"{control}/jobs/{theirs}")
        assert sent["state"] == "running"
        other.good("POST", f"{control}/jobs/{theirs}/stdin?close=true")
        assert json.loads(free.recv(TIMEOUT_SECONDS)) == MB + 2, "the parts were one line"


def test_requests_of_langbot_that_run_are_counted(narrow: Server) -> None:
    """A hundred actions of 16 MB each could wait on one connection. What has ended counts no longer."""
    client = member(narrow, "bots")
    headers = {
        "x_langbot_instance_id": "i",
        "x_langbot_box_control_token": client.headers["authorization"].split()[1],
    }
    tcp = narrow.tcp()
    context = {"instance_uuid": "i", "workspace_uuid": "w"}

    def sent(number: int, command: str, padding: int = 0) -> str:
        data = {"session_id": "s", "cmd": f"{command}\n#" + "x" * padding, "timeout_sec": 60}
        return json.dumps({"seq_id": number, "action": "box_exec", "data": data, "context": context})

    waits = "while [ ! -e go ]; do sleep 0.1; done"
    with attached(tcp, "/rpc/ws", **headers) as socket:
        socket.send(sent(0, "true"))
        first = json.loads(socket.recv(60))
        assert first["code"] == 0, first
        for number in (1, 2, 3):
            socket.send(sent(number, waits, 3 * MB))
        refused = json.loads(socket.recv(60))
        assert (refused["seq_id"], refused["code"]) == (3, 1), refused
        assert refused["message"].startswith("BoxCapacityExceededError: unread answers hold"), refused
        socket.send(sent(4, "touch go"))
        assert {json.loads(socket.recv(60))["seq_id"] for _ in range(3)} == {1, 2, 4}
        socket.send(sent(5, "true", 3 * MB))
        again = json.loads(socket.recv(60))
        assert (again["seq_id"], again["code"]) == (5, 0), again
    until(lambda: held(narrow) == 0)


def test_files_that_astrbot_reads_as_text_are_small(narrow: Server) -> None:
    """In JSON a byte can take six: a file of 60 MB was an answer of 360. One of more than 4 MB is downloaded."""
    client = member(narrow, "texts")
    made = client.good("POST", "/bay/v1/sandboxes", {})
    ship = client.good("POST", "/shipyard/ship", {}, x_session_id="s")
    bay, at = f"/bay/v1/sandboxes/{made['id']}", f"/shipyard/ship/{ship['id']}"
    for megabytes in (1, 5):
        command = f"head -c {megabytes * MB} /dev/zero >zeros"
        client.good("POST", f"{bay}/shell/exec", {"command": command})
        client.good("POST", f"{at}/exec", {"type": "shell/exec", "payload": {"command": command}}, x_session_id="s")
        read = {"type": "fs/read_file", "payload": {"path": "zeros"}}
        for answer in (
            client.call("GET", f"{bay}/filesystem/files?path=zeros"),
            client.call("POST", f"{at}/exec", read, x_session_id="s"),
        ):
            assert answer.status == (200 if megabytes == 1 else 400), answer.body[:300]
            assert megabytes == 1 or b"download it" in answer.body
    assert len(client.call("GET", f"{bay}/filesystem/download?path=zeros").body) == 5 * MB
    client.good("DELETE", bay)
    client.good("DELETE", at, x_session_id="s")
    until(lambda: held(narrow) == 0)


# --- E2B ----------------------------------------------------------------------------------------------------------


class Sandbox:
    """A sandbox, as a client sees it that writes the protocol by hand."""

    def __init__(self, client: Client) -> None:
        key = client.headers["authorization"].split()[1]
        made = client.call("POST", "/sandboxes", {"templateID": "base", "timeout": 600}, x_api_key=key)
        assert made.status == 201, made
        described = made.json()
        self.client = client
        self.key = key
        self.id: str = described["sandboxID"]
        self.headers = {"e2b_sandbox_id": self.id, "x_access_token": described["envdAccessToken"]}

    def call(self, path: str, body: Any, **headers: str) -> Answer:
        return self.client.call("POST", path, body, **{**self.headers, **headers})

    def run(self, command: str) -> None:
        message = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", command]}}).encode()
        body = struct.pack(">BI", 0, len(message)) + message
        done = self.call("/process.Process/Start", body, content_type="application/connect+json")
        assert b'"exitCode":0' in done.body, done

    def kill(self) -> None:
        self.client.call("DELETE", f"/sandboxes/{self.id}", x_api_key=self.key)


@pytest.fixture
def sandbox(narrow: Server) -> Iterator[Sandbox]:
    made = Sandbox(member(narrow, f"e2b-{os.urandom(3).hex()}"))
    yield made
    made.kill()


def test_a_list_of_many_files_is_refused_at_its_callers_part(narrow: Server, sandbox: Sandbox) -> None:
    """`ListDir` held every entry of a directory as several objects; a box can have as many as it likes."""
    sandbox.run("mkdir -p /home/user/many /home/user/few; cd /home/user/many; seq -f %0200.0f 9000 | xargs touch; "
                "touch ../few/one")  # fmt: skip
    few = sandbox.call("/filesystem.Filesystem/ListDir", {"path": "/home/user/few"})
    assert [each["name"] for each in few.json()["entries"]] == ["one"], few
    many = sandbox.call("/filesystem.Filesystem/ListDir", {"path": "/home/user/many"})
    assert (many.status, many.json()["code"]) == (413, "resource_exhausted"), many.body[:300]
    assert held(narrow) == 0


def test_a_stream_of_input_that_stands_still_is_counted(narrow: Server, sandbox: Sandbox) -> None:
    """Each call may send a message of 16 MB. Its beginning is held until the rest comes, or its client leaves."""
    size = 6 * MB
    raw = unread_upload(sandbox, struct.pack(">BI", 0, size) + bytes(size - MB), size + 5)
    until(lambda: held(narrow) >= size - MB)
    second = sandbox.call("/process.Process/StreamInput", struct.pack(">BI", 0, size) + bytes(size),
                          content_type="application/connect+json")  # fmt: skip
    assert b"resource_exhausted" in second.body, second.body[:300]
    raw.close()
    until(lambda: held(narrow) == 0)


def unread_upload(sandbox: Sandbox, sent: bytes, promised: int) -> Any:
    """Send the beginning of a stream of input."""
    raw = unread(sandbox.client, "GET", "/healthz", window=65536)
    raw.recv(65536)
    lines = [
        "POST /process.Process/StreamInput HTTP/1.1", "Host: localhost", f"Content-Length: {promised}",
        "Content-Type: application/connect+json", f"E2b-Sandbox-Id: {sandbox.id}",
        f"X-Access-Token: {sandbox.headers['x_access_token']}", "", "",
    ]  # fmt: skip
    raw.sendall("\r\n".join(lines).encode() + sent)
    return raw


def test_unfetched_events_are_counted_and_the_oldest_are_dropped(narrow: Server, sandbox: Sandbox) -> None:
    """A sandbox may have a hundred watchers, with ten thousand events each and long names: 4 GB. The newest stay."""
    watch = "/filesystem.Filesystem/CreateWatcher"
    sandbox.run("mkdir -p /home/user/w")
    names = [sandbox.call(watch, {"path": "/home/user/w"}).json()["watcherId"] for _ in range(6)]
    sandbox.run("cd /home/user/w; for n in $(seq -f %0230.0f 4000); do : >$n; done; : >last")

    def last(name: str) -> bool:
        events = sandbox.call("/filesystem.Filesystem/GetWatcherEvents", {"watcherId": name}).json()["events"]
        return any(event["name"] == "last" for event in events)

    assert held(narrow, "most") <= 2 * PART_MB * MB
    until(lambda: held(narrow) > 2 * MB)
    for name in names:
        until(lambda name=name: last(name))  # type: ignore[misc]
        sandbox.call("/filesystem.Filesystem/RemoveWatcher", {"watcherId": name})
    until(lambda: held(narrow) == 0)


def test_hostile_numbers_of_a_box_are_no_defects(narrow: Server, sandbox: Sandbox) -> None:
    """`df` and `cat` are programs of the box, and print what its code likes. So does code that calls anything JSON."""
    sandbox.run("mkdir -p ~/.local/bin; printf '#!/bin/sh\\necho x; echo x \\302\\262 \\302\\262 9\\n' "
                ">~/.local/bin/df; chmod 755 ~/.local/bin/df")  # fmt: skip
    measured = sandbox.client.call("GET", "/metrics", **sandbox.headers)
    assert measured.status == 200, measured
    deep = "class J:\n def _repr_mimebundle_(self, **_): return {'application/json': '[' * 100000}\nJ()"
    nothing = "class J:\n def _repr_json_(self): return float('nan')\nJ()"
    for code in (deep, nothing):
        done = sandbox.call("/execute", {"code": code}, e2b_sandbox_port="49999")
        assert done.body.endswith(b'{"type":"end_of_execution"}\n'), done.body[-300:]
    assert "defect" not in narrow.log.read_text()


def test_what_a_token_opens_is_looked_for_at_a_bounded_rate() -> None:
    """A token without a sandbox's name is compared with all of them, so strangers may only try so often."""
    with serving(HUTCH_SERVER_RATE_PER_SEC="1") as server:
        stranger = server.tcp()
        tried = [
            stranger.call("POST", "/process.Process/List", {}, x_access_token=f"k.{base64.b16encode(bytes([n]))!r}")
            for n in range(40)
        ]
        assert {each.status for each in tried} == {401, 429}, tried
