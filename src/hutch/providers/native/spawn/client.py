"""The keeper's clients of its spawner processes: starting them on first use, sending requests, noticing their end."""

import asyncio
import errno
import os
import resource
import socket
from typing import Any

from hutch.errors import EngineError, Unavailable
from hutch.logs import log
from hutch.providers.native.spawn import launch, wire

_START_TIMEOUT = 20.0


class PendingRequest:
    """A request to a spawner. `facts` is set when the box's process exists, `failure` if it does not become a guest.

    An error sets both. The guest itself reports that it has started. The caller closes the request.
    """

    __slots__ = ("_all", "_number", "facts", "failure")

    def __init__(self, number: int, others: "dict[int, PendingRequest]", loop: asyncio.AbstractEventLoop) -> None:
        self.facts: asyncio.Future[wire.Message] = loop.create_future()
        self.failure: asyncio.Future[wire.Message] = loop.create_future()
        self._number = number
        self._all = others
        others[number] = self

    def take(self, message: wire.Message) -> None:
        if not self.facts.done():
            self.facts.set_result(message)
        if "box" not in message and not self.failure.done():
            self.failure.set_result(message)

    def close(self) -> None:
        """Ignore further answers of the spawner to this request."""
        self._all.pop(self._number, None)


class SpawnerClient:
    """The connection to one spawner process."""

    def __init__(self, options: dict[str, Any], controllers: frozenset[str]) -> None:
        """`controllers` are the cgroup controllers that the grades of its boxes promise."""
        self._options = options
        self._controllers = controllers
        self._process: launch.SpawnerProcess | None = None
        self._sock: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: dict[int, PendingRequest] = {}
        self._number = 0
        self._started: asyncio.Future[wire.Message] | None = None

    @property
    def load(self) -> int:
        return len(self._pending)

    @property
    def has_ended(self) -> bool:
        return self._started is not None and self._sock is None

    def begin(self) -> None:
        """Start the process and send its options, without waiting until it is ready."""
        if self._started is None:
            self._launch()

    async def start(self) -> wire.Message:
        """Start the process unless it runs, and return its first message, which says what it may use."""
        self.begin()
        assert self._started is not None
        if not self._started.done():
            async with asyncio.timeout(_START_TIMEOUT):
                await asyncio.shield(self._started)
        answer = self._started.result()
        if "error" in answer:
            self._handle_end()
            if "remedy" in answer:
                raise Unavailable(answer["error"], op="create", remedy=answer["remedy"])
            log("native").error("a spawner did not start", why=answer["error"])
            reason = answer["error"].strip().rpartition("\n")[2]  # the last line of what may be a traceback
            raise EngineError(f"the spawner did not start: {reason}", op="create", remedy="run `hutch doctor`")
        if missing := self._controllers.difference(answer["controllers"]):
            self._handle_end()
            raise _missing_limits(missing, answer["reason"])
        return answer

    def _launch(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.create_future()
        self._process = launch.launch()
        ours = self._process.sock
        wire.send(ours, self._options)
        ours.setblocking(False)
        self._sock = ours
        self._loop.add_reader(ours.fileno(), self._read)

    async def create(self, message: wire.Message, fds: list[int]) -> PendingRequest:
        """Ask for a box, with descriptors of its guest's options and of its connection. Returns when it is sent."""
        return await self._ask({"op": "create", **message}, fds)

    async def enter(self, message: wire.Message, options: int) -> wire.Message:
        """Ask for a root guest in a box (`spawn.enter`)."""
        return await self._request({"op": "enter", **message}, [options])

    async def show(self, message: wire.Message) -> wire.Message:
        """Ask for a mount in a running box."""
        return await self._request({"op": "show", **message}, [])

    async def layers(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Ask for work on the layers of a box's files (`layers.entry`). The worker answers without the spawner."""
        ours, theirs = wire.pair()
        try:
            with theirs:
                pending = await self._ask({"op": "layers", **message}, [*fds, theirs.fileno()])
            loop = asyncio.get_running_loop()
            loop.add_reader(ours.fileno(), _take_answer, ours, pending)
            try:
                return await asyncio.shield(pending.facts)
            finally:
                loop.remove_reader(ours.fileno())
                pending.close()
        finally:
            ours.close()

    async def _request(self, message: wire.Message, fds: list[int]) -> wire.Message:
        pending = await self._ask(message, fds)
        try:
            return await asyncio.shield(pending.facts)
        finally:
            pending.close()

    async def _ask(self, message: wire.Message, fds: list[int]) -> PendingRequest:
        await self.start()
        assert self._loop is not None
        self._number += 1
        pending = PendingRequest(self._number, self._pending, self._loop)
        try:
            await self._send({"n": self._number, **message}, fds)
        except BaseException:
            pending.close()
            raise
        return pending

    async def _send(self, message: wire.Message, fds: list[int]) -> None:
        while True:
            if self._sock is None:
                raise _spawner_ended()
            try:
                return wire.send(self._sock, message, fds)
            except BlockingIOError:
                await asyncio.sleep(0.001)  # the queue is full of requests
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    raise EngineError(f"the request is too large: {error}", op="create") from error
                if error.errno == errno.ETOOMANYREFS:
                    return self._send_past_soft_limit(message, fds)
                self._handle_end()

    def _send_past_soft_limit(self, message: wire.Message, fds: list[int]) -> None:
        """Send although the user has more descriptors in flight than this process may have open (unix(7)).

        The boxes of an ordinary user count too, but their limit is below our hard limit, which is used for this call.
        """
        assert self._sock is not None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            wire.send(self._sock, message, fds)
        except OSError as error:
            raise Unavailable(
                f"this user's processes have too many descriptors on their way to each other: {error}",
                op="create",
                remedy="try again; end the box that sends them, or raise the hard limit of open files (`ulimit -Hn`)",
                retryable=True,
            ) from error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def _read(self) -> None:
        assert self._sock is not None
        try:
            while True:
                received = wire.receive(self._sock)
                if received is None:
                    return self._handle_end()
                self._handle(*received)
        except BlockingIOError:
            return None
        except OSError:
            return self._handle_end()

    def _handle(self, message: wire.Message, fds: list[int]) -> None:
        number = message["n"]
        if number == 0:
            if self._started is not None and not self._started.done():
                self._started.set_result(message)
            elif "trouble" in message:
                log("native").warning("a spawner has trouble", why=message["trouble"])
            else:
                reason = message.get("ending") or message.get("error")
                log("native").warning("a spawner ends, its boxes go on", why=reason)
            return
        if pending := self._pending.get(number):
            pending.take({**message, "fds": fds} if fds else message)
            return
        for fd in fds:
            os.close(fd)  # nobody waits for this answer any more

    def _handle_end(self) -> None:
        """Fail all pending requests, because the process has ended or is of no use. Its boxes go on running."""
        if self._sock is None:
            return
        self.close()
        died = {"step": "spawner", "error": "the spawner process has ended", "errno": ""}
        if self._started is not None and not self._started.done():
            self._started.set_result(died)
        for pending in self._pending.values():
            pending.take(died)
        if self._loop is not None:
            self._loop.run_in_executor(None, self.wait)

    def close(self) -> None:
        """Close the connection. End of file makes the spawner remove its prestarted children and end."""
        if self._sock is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None

    def wait(self, timeout: float = 5.0) -> None:
        """Block until the process has ended and is reaped."""
        if self._process is not None:
            self._process.wait(timeout)


def _take_answer(sock: socket.socket, pending: PendingRequest) -> None:
    try:
        received = wire.receive(sock)
    except OSError:
        received = None
    if received is None:
        pending.take({"step": "enter", "error": "the process that entered the box died", "errno": ""})
        return
    message, fds = received
    if pending.facts.done():  # it has been read, or the spawner has ended
        for fd in fds:
            os.close(fd)
    else:
        pending.take({**message, "fds": fds} if fds else message)


def _spawner_ended() -> Unavailable:
    return Unavailable("the spawner process has ended", op="create", remedy="try again: a new one is started")


def _missing_limits(missing: frozenset[str], reason: str) -> EngineError:
    """The spawner detects control groups itself, and may have found fewer than its keeper."""
    return EngineError(
        f"boxes would have no limits: their spawner may not use {', '.join(sorted(missing))}: {reason}",
        op="create",
        remedy="try again: a new spawner looks again; if it fails too, restart Hutch, whose grades then show it",
    )


class SpawnerPool:
    """Up to two spawners, and no more than processors. The second is started when the first is busy."""

    def __init__(self, options: dict[str, Any], controllers: frozenset[str]) -> None:
        self._options = options
        self._controllers = controllers
        self._spawners: list[SpawnerClient] = []
        # A spawner with a network also takes helper processes and a share of the machine's addresses: one is enough.
        self._max_spawners = 1 if options["network"] else min(2, len(os.sched_getaffinity(0)))
        self.lost_spawner = False
        """Whether a spawner has ended unasked, and may have left something behind."""

    def begin(self) -> None:
        """Start a spawner early, for a box that will be asked for."""
        self._pick().begin()

    async def create(self, message: wire.Message, fds: list[int]) -> PendingRequest:
        return await self._pick().create(message, fds)

    async def enter(self, message: wire.Message, options: int) -> wire.Message:
        return await self._pick().enter(message, options)

    async def show(self, message: wire.Message) -> wire.Message:
        return await self._pick().show(message)

    async def layers(self, message: wire.Message, fds: list[int]) -> wire.Message:
        return await self._pick().layers(message, fds)

    def _pick(self) -> SpawnerClient:
        self._drop_ended()
        best = min(self._spawners, key=lambda spawner: spawner.load, default=None)
        if best is None or (best.load >= 2 and len(self._spawners) < self._max_spawners):
            best = SpawnerClient(self._options, self._controllers)
            self._spawners.append(best)
        return best

    def _drop_ended(self) -> None:
        living = [spawner for spawner in self._spawners if not spawner.has_ended]
        self.lost_spawner |= len(living) < len(self._spawners)
        self._spawners = living

    async def close(self) -> None:
        self._drop_ended()
        spawners, self._spawners = self._spawners, []
        for spawner in spawners:
            spawner.close()
        for spawner in spawners:
            await asyncio.to_thread(spawner.wait)
