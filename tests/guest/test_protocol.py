"""The guest against keepers that connect, disconnect, reconnect, or send nonsense."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guest.guest_process import TIMEOUT, GuestProcess, running_guest, until

from hutch.errors import HutchError, Invalid, NotFound, Unsupported
from hutch.guest import protocol
from hutch.guest.protocol import (
    CANCEL,
    CREDIT,
    DATA,
    END,
    HEADER,
    HEADER_SIZE,
    REQUEST,
    VERSION,
    WINDOW,
    decode,
    encode,
    frame,
)


@pytest.fixture(scope="module")
def guest() -> Iterator[GuestProcess]:
    with running_guest() as one:
        yield one


def raw(guest: GuestProcess) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT)
    connection.connect(str(guest.path))
    return connection


def read_frame(connection: socket.socket) -> tuple[int, int, bytes]:
    head = connection.recv(HEADER_SIZE, socket.MSG_WAITALL)
    length, kind, channel = HEADER.unpack(head)
    return kind, channel, connection.recv(length, socket.MSG_WAITALL) if length else b""


def is_closed(connection: socket.socket) -> bool:
    """Read up to the end of the connection; if the guest keeps it open, the socket's timeout fails the test."""
    try:
        while connection.recv(1 << 16):
            continue
    except ConnectionResetError:
        return True
    return True


def request(channel: int, **fields: object) -> bytes:
    return frame(REQUEST, channel, json.dumps(fields).encode())


def test_hello_comes_first_and_names_box_and_version(guest: GuestProcess) -> None:
    with raw(guest) as connection:
        kind, channel, payload = read_frame(connection)
    hello = json.loads(payload)
    assert (kind, channel) == (protocol.HELLO, 0)
    assert hello["version"] == VERSION
    assert hello["box_id"] == "box"
    assert hello["pid"] == guest.pid
    assert len(hello["boot"]) == 12


NONSENSE = {
    "unknown kind": HEADER.pack(0, 99, 1),
    "a kind only guests send": frame(protocol.OUT, 1, b"x"),
    "longer than any frame": HEADER.pack(0xFFFFFFFF, REQUEST, 1),
    "data longer than a payload": HEADER.pack(protocol.MAX_PAYLOAD + 1, DATA, 1),
    "no JSON": frame(REQUEST, 1, b"{"),
    "no object": frame(REQUEST, 1, b"[1]"),
    "no operation": frame(REQUEST, 1, b"{}"),
    "not UTF-8": frame(REQUEST, 1, b'{"op":"\xff\xfe"}'),
    "too deep": frame(REQUEST, 1, b'{"op":' + b"[" * 200_000),
    "channel 0": request(0, op="ping"),
    "a channel that is open": request(1, op="wait_for_it", job="x") + request(2, op="run", command="sleep 1000") * 2,
    "credit of a wrong size": request(1, op="run", command="sleep 1000") + frame(CREDIT, 1, b"\x01"),
}


@pytest.mark.parametrize("sent", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_ends_its_connection_and_nothing_else(guest: GuestProcess, sent: bytes) -> None:
    with raw(guest) as other, raw(guest) as connection:
        read_frame(other)
        connection.sendall(sent)
        assert is_closed(connection)
        other.sendall(request(1, op="ping"))
        assert read_frame(other)[0] == protocol.REPLY


def test_more_data_than_was_granted_ends_the_connection(guest: GuestProcess) -> None:
    with raw(guest) as connection:
        connection.sendall(request(1, op="run", command="sleep 1000", stdin=True))
        piece = frame(DATA, 1, bytes(protocol.MAX_PAYLOAD))
        try:
            for _ in range(WINDOW // protocol.MAX_PAYLOAD + 2):
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            return
        assert is_closed(connection)


FIELDS = st.dictionaries(
    st.sampled_from(["op", "job", "command", "cwd", "env", "stream", "cursor", "keep", "pty", "path"]),
    st.one_of(
        st.sampled_from(["run", "start", "read", "follow", "wait", "write", "signal", "files.stat"]),
        st.none(),
        st.integers(),
        st.text(max_size=8),
        st.lists(st.text(max_size=3), max_size=3),
    ),
)
FRAMES = st.builds(
    frame,
    st.sampled_from([REQUEST, DATA, END, CREDIT, CANCEL, 0, 16, 20, 255]),
    st.integers(0, 5),
    st.one_of(st.binary(max_size=64), FIELDS.map(lambda fields: json.dumps(fields).encode())),
)


@settings(max_examples=40)
@given(st.lists(st.one_of(st.binary(max_size=200), FRAMES), max_size=12))
def test_the_guest_survives_anything(guest: GuestProcess, sent: list[bytes]) -> None:
    with raw(guest) as connection:
        try:
            connection.sendall(b"".join(sent))
            connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        is_closed(connection)
    with raw(guest) as connection:
        read_frame(connection)
        connection.sendall(request(1, op="ping"))
        assert read_frame(connection) == (protocol.REPLY, 1, b"{}")
    assert guest.process.poll() is None


async def test_frames_in_pieces_are_put_together(guest: GuestProcess) -> None:
    with raw(guest) as connection:
        read_frame(connection)
        for byte in request(7, op="ping") + request(8, op="ping"):
            connection.sendall(bytes([byte]))
        assert read_frame(connection)[:2] == (protocol.REPLY, 7)
        assert read_frame(connection)[:2] == (protocol.REPLY, 8)


async def test_unknown_operations_jobs_and_commands_are_errors(guest: GuestProcess) -> None:
    async with guest.link() as link:
        with pytest.raises(Unsupported):
            await link.request("levitate")
        with pytest.raises(NotFound):
            await link.request("wait", job="nobody")
        with pytest.raises(Invalid):
            await link.request("run")
        with pytest.raises(Invalid):
            await link.request("run", command=[])
        with pytest.raises(HutchError):
            await link.request("run", command=[1, 2])
        assert await link.request("ping") == {}


async def test_a_cancelled_request_is_answered_once_and_its_channel_is_free(guest: GuestProcess) -> None:
    async with guest.link() as link:
        started = await link.request("start", command="exec sleep 1000")
        for op in ("wait", "follow", "write"):
            channel = link.open(op, job=started["job"])
            await link.request("ping")
            channel.abandon()
        while link.channels:
            await link.request("ping")
        await link.request("signal", job=started["job"], number=9)
        await link.request("wait", job=started["job"])


async def test_space_names_what_is_free(guest: GuestProcess) -> None:
    async with guest.link() as link:
        space = (await link.request("space"))["space"]
    assert space["/tmp"]["size"] == os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize
    assert str(guest.workdir) in space


async def test_nobody_connected_ends_the_box_after_its_grace() -> None:
    """The orphan timer runs only while no keeper is connected, and kills the jobs."""
    with running_guest() as guest:
        async with guest.link() as link:
            await link.request("clock", orphan_grace=0.2)
            await link.request("start", command="echo $$ > pid; exec sleep 1000")
            await until((guest.workdir / "pid").exists)
            await asyncio.sleep(0.5)
            await link.request("ping")
        assert await asyncio.to_thread(guest.process.wait, TIMEOUT) == 0


async def test_the_keeper_pushes_its_clocks() -> None:
    with running_guest() as guest:
        async with guest.link() as link:
            await link.request("clock", ttl=3600)
            await link.request("clock", ttl=0, orphan_grace=0)
            await link.request("clock", ttl=0.05)
            assert await asyncio.to_thread(guest.process.wait, TIMEOUT) == 0


def test_a_ttl_ends_a_box_that_nobody_ever_came_for() -> None:
    with running_guest(ttl_deadline=time.monotonic() + 0.5) as guest:
        assert guest.process.wait(TIMEOUT) == 0


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(_VALUES)
def test_what_is_encoded_is_the_json_of_the_standard_library(value: object) -> None:
    assert json.loads(encode(value)) == value
    assert decode(encode(value)) == value
    assert decode(json.dumps(value).encode()) == value
    assert decode(json.dumps(value, ensure_ascii=False, indent=1).encode()) == value


@pytest.mark.parametrize("nonsense", [b"", b" ", b"{", b"nope", b'{"a":1}{"b":2}', b'{"a":1} x', b"\xff", b'"\n"'])
def test_nonsense_is_a_value_error(nonsense: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(nonsense)


def test_a_nest_too_deep_for_the_interpreter_is_no_crash() -> None:
    with pytest.raises(RecursionError):
        decode(b"[" * 200_000)


def test_what_json_has_no_form_for_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        encode({"a": b"bytes"})
