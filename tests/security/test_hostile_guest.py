"""A captured guest: whatever it says, its keeper stays whole, the caller gets an error, and the box can be destroyed.

The guest runs beside user code and is not trusted once that has run. Here it is replaced by one that lies, floods or is
silent, at the very socket that the keeper talks to. Links alone are tried in tests/providers/guest_client/test_link.py.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.security.attacks import Arena, outcome, outcome_outside, python

from hutch import Hutch
from hutch.errors import BoxBroken, HutchError
from hutch.guest.protocol import (
    CREDIT,
    CREDIT_SIZE,
    DATA,
    ERR,
    ERROR,
    EVENT,
    HEADER,
    HEADER_SIZE,
    HELLO,
    MAX_PAYLOAD,
    OUT,
    REPLY,
    VERSION,
    frame,
)
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes import health
from hutch.model.boxes import State
from hutch.providers.guest_client import instance

TIMEOUT = 60.0
KEEPER_MAY_GROW = 96 << 20


class Captured:
    """One connection as the captured guest sees it."""

    def __init__(self, box_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.box_id = box_id
        self._reader = reader
        self._writer = writer

    async def greet(self, **changes: Any) -> None:
        hello = {"version": VERSION, "box_id": self.box_id, "pid": 1, "boot": "abcdef123456", "jobs": 0}
        await self.say(frame(HELLO, 0, json.dumps(hello | changes).encode()))

    async def asked(self) -> int:
        """The channel of the next request."""
        length, _, channel = HEADER.unpack(await self._reader.readexactly(HEADER_SIZE))
        await self._reader.readexactly(length)
        return int(channel)

    async def say(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def flood(self, data: bytes) -> None:
        """Until the keeper hangs up."""
        while True:
            await self.say(data)
            await asyncio.sleep(0)


Lie = Callable[[Captured], Awaitable[None]]
END = {
    "job": "abcdef-1", "ended": True, "exit_code": 0, "signal": None, "timed_out": False, "cancelled": False,
    "lingering": False, "shared": False, "wall": 0.1, "usage": [0.0, 0.0, 1], "stdout_total": 0, "stderr_total": 0,
    "dropped": 0,
}  # fmt: skip


def at_once(data: bytes) -> Lie:
    """Endless nonsense before any greeting."""
    return lambda guest: guest.flood(data)


def greeting(**changes: Any) -> Lie:
    async def lie(guest: Captured) -> None:
        await guest.greet(**changes)
        await asyncio.sleep(TIMEOUT)

    return lie


def answering(kind: int, payload: bytes) -> Lie:
    """One answer that makes no sense."""

    async def lie(guest: Captured) -> None:
        await guest.greet()
        while True:
            await guest.say(frame(kind, await guest.asked(), payload))

    return lie


def flooding(kind: int, payload: bytes) -> Lie:
    """The same frame without end, on a channel that is open."""

    async def lie(guest: Captured) -> None:
        await guest.greet()
        await guest.flood(frame(kind, await guest.asked(), payload))

    return lie


def ended(**changes: Any) -> bytes:
    return json.dumps(END | changes).encode()


async def cut_short(guest: Captured) -> None:
    """Announces a frame and sends half of it, for ever."""
    await guest.greet()
    await guest.say(HEADER.pack(1 << 20, REPLY, await guest.asked()) + b"{" * 1000)
    await asyncio.sleep(TIMEOUT)


async def out_of_order(guest: Captured) -> None:
    await guest.greet()
    channel = await guest.asked()
    await guest.flood(frame(OUT, channel + 1, b"x"))


async def greeting_twice(guest: Captured) -> None:
    await guest.greet()
    await guest.asked()
    await guest.greet()
    await asyncio.sleep(TIMEOUT)


async def silent(guest: Captured) -> None:
    await guest.greet()
    await asyncio.sleep(TIMEOUT)


async def hanging_up(guest: Captured) -> None:
    await guest.greet()
    await guest.asked()


LIES: dict[str, Lie] = {
    "bytes that are no frames": at_once(b"\xff" * 65536),
    "zeros": at_once(bytes(65536)),
    "an endless greeting": at_once(frame(HELLO, 0, b"[" * 65536)),
    "a frame larger than any": at_once(HEADER.pack(0xFFFFFFFF, HELLO, 0) + bytes(65536)),
    "another version": greeting(version=VERSION + 1),
    "no version": greeting(version=None),
    "another box": greeting(box_id="another"),
    "greeting twice": greeting_twice,
    "frames of a channel that is not open": out_of_order,
    "deep JSON": answering(REPLY, b'{"a":' + b"[" * 900_000 + b"]" * 900_000 + b"}"),
    "wide JSON": answering(REPLY, b'{"a":[' + b"0," * 4_000_000 + b"0]}"),
    "an answer that is no object": answering(REPLY, b"[]"),
    "an answer without facts": answering(REPLY, b"{}"),
    "an exit code that is none": answering(REPLY, ended(exit_code="0")),
    "numbers that are none": answering(REPLY, ended(usage=["NaN", None, -1])),
    "a flood of output": flooding(OUT, bytes(MAX_PAYLOAD)),
    "a flood of empty output": flooding(ERR, b""),
    "a flood of data nobody asked for": flooding(DATA, bytes(65536)),
    "a flood of events": flooding(EVENT, b'{"a":1}'),
    "a flood of credit": flooding(CREDIT, CREDIT_SIZE.pack(1 << 30)),
    "a flood of no credit": flooding(CREDIT, CREDIT_SIZE.pack(0)),
    "answers without end": flooding(REPLY, b"{}"),
    "half an answer": cut_short,
    "silence": silent,
    "hanging up": hanging_up,
    "an error of the keeper's own": answering(ERROR, b'{"code":"gone","message":"the box is gone"}'),
}


@asynccontextmanager
async def captured(box: BoxHandle, run: Path, lie: Lie) -> AsyncIterator[None]:
    """Put a captured guest in the place of the box's own, and cut the keeper's connection to the true one."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await lie(Captured(box.id, reader, writer))
        writer.close()

    door = run / box.id / "guest"
    door.unlink()
    server = await asyncio.start_unix_server(talk, door)
    live = box._live.running
    assert isinstance(live, instance.GuestInstance)
    (await live.link()).close()
    try:
        yield
    finally:
        server.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("name", LIES)
async def test_a_captured_guest_cannot_harm_other_boxes(
    name: str, hutch_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typed error in bounded time and memory; the neighbour answers meanwhile; nothing is left after `destroy`."""
    # The keeper's patience with silence, shortened: 15 and 5 seconds otherwise.
    monkeypatch.setattr(instance, "ANSWER_GRACE", 0.5)
    monkeypatch.setattr(health, "CHECK_SECONDS", 1.0)
    async with Hutch(provider="native") as hutch, hutch.box() as neighbour:
        box = await hutch.create()
        assert (await box.exec("echo true")).stdout == "true\n"
        before = resident()
        async with asyncio.timeout(TIMEOUT), captured(box, hutch_directories / "r", LIES[name]):
            call = asyncio.create_task(box.exec("echo lies", timeout=0.5))
            for number in range(3):
                assert (await neighbour.exec(f"echo {number}")).stdout == f"{number}\n"
            with pytest.raises(HutchError) as caught:
                await call
            assert caught.value.code in ("box_broken", "unavailable", "internal")
            assert len(str(caught.value)) < 10_000
            assert resident() - before < KEEPER_MAY_GROW
            if caught.value.code != "internal":
                assert await box.state() in (State.ERROR, State.UNKNOWN)
                with pytest.raises(HutchError):
                    await box.exec("echo again", timeout=0.5)
            assert (await neighbour.exec("echo still")).stdout == "still\n"
            await box.destroy()
        assert not (hutch_directories / "r" / box.id).exists()


async def test_a_guest_that_answers_lies_is_believed_about_itself_only(hutch_directories: Path) -> None:
    """What a captured guest says of a command is that command's result; but an answer has a shape and a size."""
    lie = answering(REPLY, ended(stdout_total=1 << 60, unknown="x" * 100_000))
    async with Hutch(provider="native") as hutch:
        box = await hutch.create()
        await box.exec("true")
        async with asyncio.timeout(TIMEOUT), captured(box, hutch_directories / "r", lie):
            result = await box.exec("echo lies")
            assert result.exit_code == 0
            assert result.stdout == ""
            assert len(str(result)) < 10_000
            with pytest.raises(BoxBroken):
                await box.files.stat(".")
            assert await box.state() is State.ERROR
            await box.destroy()


async def test_a_guest_that_is_gone(hutch_directories: Path) -> None:
    """Nobody listens any more: the box is broken, said so, and can be destroyed."""
    async with Hutch(provider="native") as hutch:
        box = await hutch.create()
        await box.exec("true")
        async with captured(box, hutch_directories / "r", silent):
            (hutch_directories / "r" / box.id / "guest").unlink()
            with pytest.raises(BoxBroken):
                await box.exec("echo lost")
            assert await box.state() is State.ERROR
            await box.destroy()
        assert not (hutch_directories / "r" / box.id).exists()


# --- user code against its own guest -------------------------------------------------------------------------------


SOCKETS = """
found = []
for top, directories, names in os.walk("/"):
    directories[:] = [name for name in directories if os.path.join(top, name) not in ("/proc", "/usr")]
    paths = [os.path.join(top, name) for name in names]
    found += [path for path in paths if stat.S_ISSOCK(os.lstat(path).st_mode)]
listed = [line.split(None, 7)[7:] for line in open("/proc/net/unix").read().splitlines()[1:]]
tell([found, [name for names in listed for name in names]])
"""


def test_the_guests_socket_has_no_path_in_the_box(arena: Arena, scratch: Path) -> None:
    """Threat: who can connect to the guest can do what the keeper does, and read what other commands wrote."""
    with arena.box() as box:
        assert outcome(box, SOCKETS) == [[], []]
    # Control: the walk finds a socket that is there, and in the host's network namespace the guest's own is listed.
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(scratch / "door"))
        with arena.box("network namespace", mounts=[f"{scratch}:/mnt:ro"]) as control:
            found, listed = outcome(control, SOCKETS)
    assert found == ["/mnt/door"]
    assert any(name.startswith(f"{arena.place}/") and name.endswith("/guest") for name in listed), listed


CGROUPS = """
mounts = [line.split()[2] for line in open("/proc/self/mounts") if line.split()[2].startswith("cgroup")]
paths = {line.strip().split(":", 2)[2] for line in open("/proc/self/cgroup")}
tell([mounts, sorted(os.listdir("/sys/fs/cgroup")) if os.path.exists("/sys/fs/cgroup") else [], sorted(paths)])
"""


def test_no_control_group_can_be_reached(arena: Arena) -> None:
    """Threat: a box that renames, leaves or edits its control group is free of its limits."""
    with arena.box() as box:
        # The group's own namespace shows it as the root; its name on the host is not shown.
        assert outcome(box, CGROUPS) == [[], [], ["/"]]


def test_control_groups_are_found_without_a_namespace(arena: Arena) -> None:
    """Without a namespace of their own, groups have the names of the host; outside of any box they are mounted."""
    mounts, shown, outside = outcome_outside(CGROUPS)
    if not mounts:
        pytest.skip("needs control groups: none are mounted on this machine")
    assert shown
    with arena.box("cgroup namespace") as control:
        mounts, shown, paths = outcome(control, CGROUPS)
    assert not mounts and not shown, "what is not mounted is another wall"
    if paths == outside == ["/"]:
        pytest.skip("this user's boxes have no group, and the machine's own processes are in none but the root")
    assert paths != ["/"]


def test_a_guest_made_slow_still_answers(arena: Arena) -> None:
    """Threat: user code has the guest's id and may lower its priority, and keeps the processor busy beside it."""
    code = """
        answers = [tried(os.setpriority, os.PRIO_PROCESS, 1, 19)]
        answers.append(tried(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0)))
        answers.append(tried(os.sched_setaffinity, 1, [sorted(os.sched_getaffinity(0))[0]]))
        tell(answers)
    """
    with arena.box() as box:
        outcome(box, code)
        box.start("for i in 1 2 3 4; do (while :; do :; done) & done; wait")
        assert box.exec("echo alive", timeout=50).stdout == "alive\n"


def test_a_storm_of_signals_to_the_guest(arena: Arena) -> None:
    """Threat: SIGCHLD has a handler in the guest, so that PID 1 gets it from its own box; it costs the box only."""
    code = """
        until = time.monotonic() + 1
        while time.monotonic() < until:
            for _ in range(1000):
                os.kill(1, signal.SIGCHLD)
        tell("ok")
    """
    with arena.box() as box, arena.box() as neighbour:
        job = box.start(python(code))
        for number in range(20):
            assert box.exec(f"echo {number}", timeout=50).stdout == f"{number}\n"
            assert neighbour.exec(f"echo {number}", timeout=50).stdout == f"{number}\n"
        assert job.wait(60).ok
