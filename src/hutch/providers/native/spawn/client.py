"""The keeper's end of its spawners: starting them when they are first needed, asking them, noticing their death."""

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


class Begun:
    """A box on its way: `facts` when its process exists, `failure` if it does not become a guest; an error ends both.

    That it has become one is heard from the guest itself. Whoever was answered by this closes it.
    """

    __slots__ = ("_all", "_number", "facts", "failure")

    def __init__(self, number: int, others: "dict[int, Begun]", loop: asyncio.AbstractEventLoop) -> None:
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
        """No more is awaited from the spawner."""
        self._all.pop(self._number, None)


class Spawner:
    """One spawner process."""

    def __init__(self, options: dict[str, Any], controllers: frozenset[str]) -> None:
        """`controllers`: the control groups that the grades of its boxes promise."""
        self._options = options
        self._controllers = controllers
        self._process: launch.Launched | None = None
        self._sock: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun: dict[int, Begun] = {}
        self._number = 0
        self._started: asyncio.Future[wire.Message] | None = None

    @property
    def load(self) -> int:
        return len(self._begun)

    @property
    def dead(self) -> bool:
        return self._started is not None and self._sock is None

    def begin(self) -> None:
        """Tell it what it needs to know, and do not wait until it is ready."""
        if self._started is None:
            self._launch()

    async def start(self) -> wire.Message:
        """What it found out about its own rights; started once, however many ask."""
        self.begin()
        assert self._started is not None
        if not self._started.done():
            async with asyncio.timeout(_START_TIMEOUT):
                await asyncio.shield(self._started)
        answer = self._started.result()
        if "error" in answer:
            self._end()
            if "remedy" in answer:
                raise Unavailable(answer["error"], op="create", remedy=answer["remedy"])
            log("native").error("a spawner did not start", why=answer["error"])
            reason = answer["error"].strip().rpartition("\n")[2]  # the last line of what may be a traceback
            raise EngineError(f"the spawner did not start: {reason}", op="create", remedy="run `hutch doctor`")
        if missing := self._controllers.difference(answer["controllers"]):
            self._end()
            raise _limitless(missing, answer["reason"])
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

    async def create(self, message: wire.Message, fds: list[int]) -> Begun:
        """Ask for a box, with descriptors of its guest's options and of its keeper's end. Sent when this returns."""
        return await self._ask({"op": "create", **message}, fds)

    async def enter(self, message: wire.Message, options: int) -> wire.Message:
        """Ask for a deputy in a box."""
        return await self._answered({"op": "enter", **message}, [options])

    async def show(self, message: wire.Message) -> wire.Message:
        """Ask for a mount in a box that lives."""
        return await self._answered({"op": "show", **message}, [])

    async def _answered(self, message: wire.Message, fds: list[int]) -> wire.Message:
        begun = await self._ask(message, fds)
        try:
            return await asyncio.shield(begun.facts)
        finally:
            begun.close()

    async def _ask(self, message: wire.Message, fds: list[int]) -> Begun:
        await self.start()
        assert self._loop is not None
        self._number += 1
        begun = Begun(self._number, self._begun, self._loop)
        try:
            await self._send({"n": self._number, **message}, fds)
        except BaseException:
            begun.close()
            raise
        return begun

    async def _send(self, message: wire.Message, fds: list[int]) -> None:
        while True:
            if self._sock is None:
                raise _gone()
            try:
                return wire.send(self._sock, message, fds)
            except BlockingIOError:
                await asyncio.sleep(0.001)  # a full queue: hundreds of requests are on their way
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    raise EngineError(f"the order is too large: {error}", op="create") from error
                if error.errno == errno.ETOOMANYREFS:
                    return self._send_past_soft_limit(message, fds)
                self._end()

    def _send_past_soft_limit(self, message: wire.Message, fds: list[int]) -> None:
        """The user has more descriptors in flight between processes than this one may have open, which is all that the
        kernel asks (unix(7)): boxes of an ordinary user count for him too. They have less than the hard limit."""
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
                    return self._end()
                self._take(received[0])
        except BlockingIOError:
            return None
        except OSError:
            return self._end()

    def _take(self, message: wire.Message) -> None:
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
        if begun := self._begun.get(number):
            begun.take(message)

    def _end(self) -> None:
        """It is gone, or of no use: whoever waits is told, its boxes live on."""
        if self._sock is None:
            return
        self.close()
        died = {"step": "spawner", "error": "the spawner process has ended", "errno": ""}
        if self._started is not None and not self._started.done():
            self._started.set_result(died)
        for begun in self._begun.values():
            begun.take(died)
        if self._loop is not None:
            self._loop.run_in_executor(None, self.wait)

    def close(self) -> None:
        """End of file ends the spawner; it removes its stems and goes."""
        if self._sock is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None

    def wait(self, timeout: float = 5.0) -> None:
        """Blocks until the process has ended and is reaped."""
        if self._process is not None:
            self._process.wait(timeout)


def _gone() -> Unavailable:
    return Unavailable("the spawner process has ended", op="create", remedy="try again: a new one is started")


def _limitless(missing: frozenset[str], reason: str) -> EngineError:
    """It looks for control groups itself, and may have found less than its keeper did."""
    return EngineError(
        f"boxes would have no limits: their spawner may not use {', '.join(sorted(missing))}: {reason}",
        op="create",
        remedy="try again: a new one looks anew; if it finds the same, start Hutch anew, and its grades will tell",
    )


class Spawners:
    """As many as there are processors, two at most; the second is started when the first has much to do."""

    def __init__(self, options: dict[str, Any], controllers: frozenset[str]) -> None:
        self._options = options
        self._controllers = controllers
        self._spawners: list[Spawner] = []
        # An uplink takes processes of its own and a share of the machine's addresses: one is enough.
        self._most = 1 if options["network"] else min(2, len(os.sched_getaffinity(0)))
        self.lost_one = False
        """Whether one has ended before it was told to: something of it may be left."""

    def begin(self) -> None:
        """Have one ready soon, for a box that will be asked for."""
        self._pick().begin()

    async def create(self, message: wire.Message, fds: list[int]) -> Begun:
        return await self._pick().create(message, fds)

    async def enter(self, message: wire.Message, options: int) -> wire.Message:
        return await self._pick().enter(message, options)

    async def show(self, message: wire.Message) -> wire.Message:
        return await self._pick().show(message)

    def _pick(self) -> Spawner:
        self._bury()
        best = min(self._spawners, key=lambda spawner: spawner.load, default=None)
        if best is None or (best.load >= 2 and len(self._spawners) < self._most):
            best = Spawner(self._options, self._controllers)
            self._spawners.append(best)
        return best

    def _bury(self) -> None:
        living = [spawner for spawner in self._spawners if not spawner.dead]
        self.lost_one |= len(living) < len(self._spawners)
        self._spawners = living

    async def close(self) -> None:
        self._bury()
        spawners, self._spawners = self._spawners, []
        for spawner in spawners:
            spawner.close()
        for spawner in spawners:
            await asyncio.to_thread(spawner.wait)
