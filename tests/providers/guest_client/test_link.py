"""Links to guests that lie, flood, stall and vanish: a typed error, bounded memory, and nobody waits for ever."""

import asyncio
import contextlib
import json
import os
import socket
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guest.guest_process import TIMEOUT, running_guest

from hutch.errors import BoxBroken, FileMissing, HutchError, Timeout, Unavailable
from hutch.guest import protocol
from hutch.guest.protocol import CREDIT, DATA, ERROR, EVENT, HEADER, HELLO, MAX_CONTROL, OUT, REPLY, WINDOW, frame
from hutch.providers.guest_client.link import MAX_ITEMS, Link

GREETING = frame(HELLO, 0, json.dumps({"version": 1, "box_id": "box", "boot": "abcdef123456"}).encode())


@contextlib.asynccontextmanager
async def hostile(greeting: bytes = GREETING) -> AsyncIterator[tuple[Link, socket.socket]]:
    """A link, and the guest's end of it in the test's hands."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        await asyncio.get_running_loop().sock_sendall(theirs, greeting)
        link = await Link.over(ours, timeout=TIMEOUT)
        try:
            yield link, theirs
        finally:
            link.close()


async def say(theirs: socket.socket, data: bytes) -> None:
    """Until it is sent, or the link has hung up."""
    with contextlib.suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(theirs, data)


LIES = {
    "unknown kind": HEADER.pack(0, 99, 1),
    "a kind only hosts send": frame(protocol.REQUEST, 1, b"{}"),
    "a channel nobody opened": frame(REPLY, 4711, b"{}"),
    "a second greeting": GREETING,
    "longer than any frame": HEADER.pack(0xFFFFFFFF, REPLY, 1),
    "a payload over the limit": HEADER.pack(protocol.MAX_PAYLOAD + 1, OUT, 1),
    "no JSON": frame(REPLY, 1, b"{"),
    "no object": frame(REPLY, 1, b"[]"),
    "too deep": frame(REPLY, 1, b"[" * 1_000_000),
    "a number without end": frame(REPLY, 1, b'{"a":' + b"9" * 100_000 + b"}"),
    "an error that is no object": frame(ERROR, 1, b"7"),
    "an error with an impossible number": frame(ERROR, 1, b'{"code":"x","retry_after":' + b"9" * 4000 + b"}"),
    "credit of a wrong size": frame(CREDIT, 1, b"x"),
    "end of data": frame(protocol.END, 1),
    "too many values": frame(REPLY, 1, b'{"a":[' + b"[]," * MAX_ITEMS + b"[]]}"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_lie_fails_every_waiter(lie: bytes) -> None:
    async with hostile() as (link, theirs):
        channel, other = link.open("ping"), link.open("ping")
        await say(theirs, lie)
        for waiting in (channel, other):
            with pytest.raises(BoxBroken):
                await asyncio.wait_for(waiting.answer(), TIMEOUT)
        assert not link.usable
        with pytest.raises(BoxBroken):
            await link.request("ping")


@pytest.mark.parametrize("payload", [b"x" * (1 << 16), b"x", b""], ids=["large", "tiny", "empty"])
@pytest.mark.parametrize("collect", [True, False])
async def test_a_flood_is_cut_off_at_its_credit(payload: bytes, collect: bool) -> None:
    """Whatever the size of its frames, a channel that nobody reads holds no more than its window."""
    async with hostile() as (link, theirs):
        channel = link.open("run", collect=collect)
        flood = frame(OUT, channel.number, payload) * (1 + (1 << 20) // (len(payload) + 9))
        tracemalloc.start()
        try:
            while link.usable:
                await say(theirs, flood)
                await asyncio.sleep(0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 * WINDOW
        with pytest.raises(BoxBroken):
            await channel.answer()


async def test_a_flood_on_a_channel_that_was_given_up_is_cut_off_too() -> None:
    async with hostile() as (link, theirs):
        channel = link.open("follow")
        channel.abandon()
        while link.usable:
            await say(theirs, frame(OUT, channel.number, bytes(1 << 16)))
            await asyncio.sleep(0)
        assert isinstance(link.lost, BoxBroken)


async def test_events_count_like_data() -> None:
    async with hostile() as (link, theirs):
        channel = link.open("files.watch")
        while link.usable:
            await say(theirs, frame(EVENT, channel.number, b'{"a":1}') * 1000)
            await asyncio.sleep(0)
        assert isinstance(link.lost, BoxBroken)


async def test_silence_is_the_callers_timeout() -> None:
    async with hostile() as (link, _):
        with pytest.raises(Timeout):
            await link.request("ping", timeout=0.05)
        assert link.usable


@pytest.mark.parametrize("greeting", [b"", GREETING[:5]], ids=["nothing", "half"])
async def test_a_guest_that_sends_no_hello(greeting: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(greeting)
        with pytest.raises(Unavailable):
            await Link.over(ours, timeout=0.1)


async def test_a_guest_of_another_version() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(frame(HELLO, 0, b'{"version": 99}'))
        with pytest.raises(BoxBroken, match="99"):
            await Link.over(ours, timeout=TIMEOUT)


async def test_a_guest_that_sends_frames_before_its_hello() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(frame(REPLY, 1, b"{}"))
        with pytest.raises(BoxBroken):
            await Link.over(ours, timeout=TIMEOUT)


async def test_a_guest_that_vanishes() -> None:
    async with hostile() as (link, theirs):
        channel = link.open("ping")
        theirs.close()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(channel.answer(), TIMEOUT)


async def test_an_error_is_the_class_it_names_but_not_one_about_the_box() -> None:
    async with hostile() as (link, theirs):
        first, second = link.open("files.stat"), link.open("files.stat")
        await say(theirs, frame(ERROR, first.number, b'{"code":"file_not_found","message":"no x"}'))
        await say(theirs, frame(ERROR, second.number, json.dumps({"code": "gone", "message": "m" * 100_000}).encode()))
        with pytest.raises(FileMissing, match="no x"):
            await first.answer()
        with pytest.raises(HutchError) as caught:
            await second.answer()
        assert caught.value.code == "internal"
        assert len(str(caught.value)) < 10_000


async def test_sending_stops_without_credit_and_resumes_with_it() -> None:
    async with hostile() as (link, theirs):
        channel = link.open("write")
        sending = asyncio.create_task(channel.send(bytes(WINDOW + 1000)))
        loop = asyncio.get_running_loop()
        received = 0
        while received < WINDOW:
            received += len(await loop.sock_recv(theirs, 1 << 20))
        await asyncio.sleep(0.05)
        assert not sending.done()
        await say(theirs, frame(CREDIT, channel.number, protocol.CREDIT_SIZE.pack(1000)))
        await asyncio.wait_for(sending, TIMEOUT)


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=100),
            st.builds(frame, st.integers(0, 30), st.integers(0, 4), st.binary(max_size=64)),
            st.builds(
                frame,
                st.sampled_from([REPLY, ERROR, EVENT, DATA, OUT]),
                st.integers(1, 3),
                st.dictionaries(st.text(max_size=4), st.integers()).map(lambda fields: json.dumps(fields).encode()),
            ),
        ),
        max_size=10,
    )
)
def test_any_bytes_give_an_answer_or_an_error(sent: list[bytes]) -> None:
    async def meet() -> None:
        async with hostile() as (link, theirs):
            channels = [link.open("ping"), link.open("ping", collect=True)]
            await say(theirs, b"".join(sent))
            theirs.close()
            for channel in channels:
                with contextlib.suppress(HutchError):
                    await asyncio.wait_for(channel.answer(), TIMEOUT)

    asyncio.run(meet())


@given(
    kind=st.sampled_from(sorted(protocol.TO_HOST)), channel=st.integers(0, 2**32 - 1), payload=st.binary(max_size=99)
)
def test_a_frame_is_what_its_header_says(kind: int, channel: int, payload: bytes) -> None:
    data = frame(kind, channel, payload)
    assert HEADER.unpack_from(data) == (len(payload), kind, channel)
    assert data[protocol.HEADER_SIZE :] == payload


async def test_a_request_larger_than_a_frame_is_refused_here() -> None:
    async with hostile() as (link, _):
        with pytest.raises(HutchError) as caught:
            link.open("run", command="x" * (MAX_CONTROL + 1))
        assert caught.value.code == "too_large"
        assert link.usable


async def test_a_path_longer_than_a_socket_address() -> None:
    """unix(7): 108 bytes; a state directory may be deeper."""
    with running_guest() as guest:
        deep = guest.directory / ("d" * 100) / ("e" * 100)
        deep.mkdir(parents=True)
        os.link(guest.path, deep / "guest")
        link = await Link.connect(deep / "guest")
        assert await link.request("ping") == {}
        link.close()


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        await Link.connect(tmp_path / "guest")
    assert caught.value.details["errno"] == 2
