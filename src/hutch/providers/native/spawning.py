"""The keeper's end of its spawners: starting them when they are first needed, asking them, noticing their death."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from hutch.errors import EngineError, Unavailable
from hutch.providers.native import wire

_SOURCE = str(Path(__file__).resolve().parents[3])
# What can fail while the spawner starts is told on its socket: it has no terminal.
_BOOTSTRAP = """
import sys
sys.path.append(sys.argv[2])
try:
    from hutch.providers.native import spawner
    import json
    spawner.main(int(sys.argv[1]), json.loads(sys.argv[3]))
except Exception:
    import json, socket, traceback
    socket.socket(fileno=int(sys.argv[1])).send(json.dumps({"n": 0, "error": traceback.format_exc(-3)}).encode())
"""
_START_TIMEOUT = 20.0


class Spawner:
    """One spawner process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers: dict[int, asyncio.Future[wire.Message]] = {}
        self._number = 0
        self._started: asyncio.Future[wire.Message] | None = None

    @property
    def load(self) -> int:
        return len(self._answers)

    @property
    def dead(self) -> bool:
        return self._started is not None and self._sock is None

    async def start(self) -> wire.Message:
        """What it found out about its own rights; started once, however many ask."""
        if self._started is None:
            self._launch()
        assert self._started is not None
        async with asyncio.timeout(_START_TIMEOUT):
            answer = await asyncio.shield(self._started)
        if "error" in answer:
            self.close()
            raise EngineError(f"the spawner did not start: {answer['error']}", op="create", remedy="run `hutch doctor`")
        return answer

    def _launch(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = self._answers[0] = self._loop.create_future()
        ours, theirs = wire.pair()
        # The interpreter behind a virtual environment: -I -S would not find that environment's packages anyway.
        interpreter = getattr(sys, "_base_executable", None) or sys.executable
        fd = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [interpreter, "-I", "-S", "-c", _BOOTSTRAP, str(fd), _SOURCE, json.dumps(self._options)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(fd,), env={}, cwd="/", start_new_session=True,
            )  # fmt: skip
        ours.setblocking(False)
        self._sock = ours
        self._loop.add_reader(ours.fileno(), self._read)

    async def ask(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """The answer to one request. The descriptors may be closed as soon as this has been awaited once."""
        await self.start()
        assert self._loop is not None
        self._number += 1
        number = self._number
        answer: asyncio.Future[wire.Message] = self._loop.create_future()
        self._answers[number] = answer
        try:
            await self._send({"n": number, **message}, fds)
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if self._sock is not None and not answer.done():
                await self._cancel(number, answer)
            raise
        finally:
            self._answers.pop(number, None)

    async def _cancel(self, number: int, answer: "asyncio.Future[wire.Message]") -> None:
        """Wait until nothing is left of it: a caller that was cancelled goes on as if it had never asked."""
        await self._send({"n": 0, "op": "cancel", "cancelled": number}, [])
        with contextlib.suppress(TimeoutError, Unavailable):
            await asyncio.wait_for(answer, 10.0)

    async def _send(self, message: wire.Message, fds: list[int]) -> None:
        while True:
            if self._sock is None:
                raise _gone()
            try:
                return wire.send(self._sock, message, fds)
            except BlockingIOError:
                await asyncio.sleep(0.001)  # a full queue: hundreds of requests are on their way
            except OSError as error:
                if error.errno == 90:
                    raise EngineError(f"the order is too large: {error}", op="create") from error
                self._end()

    def _read(self) -> None:
        assert self._sock is not None
        try:
            while True:
                received = wire.receive(self._sock)
                if received is None:
                    return self._end()
                message, _ = received
                answer = self._answers.pop(message["n"], None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except BlockingIOError:
            return None
        except OSError:
            return self._end()

    def _end(self) -> None:
        """It is gone: whoever waits is told, its boxes live on."""
        self.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_gone())
                answer.exception()
        self._answers.clear()

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
        if self._process is None:
            return
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _gone() -> Unavailable:
    return Unavailable("the spawner process has ended", op="create", remedy="try again: a new one is started")


class Spawners:
    """As many as there are processors, two at most; the second is started when the first has much to do."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._spawners: list[Spawner] = []
        self._most = min(2, len(os.sched_getaffinity(0)))

    async def ask(self, message: wire.Message, fds: list[int]) -> wire.Message:
        return await self._pick().ask(message, fds)

    async def start(self) -> wire.Message:
        return await self._pick().start()

    def _pick(self) -> Spawner:
        self._spawners = [spawner for spawner in self._spawners if not spawner.dead]
        best = min(self._spawners, key=lambda spawner: spawner.load, default=None)
        if best is None or (best.load >= 2 and len(self._spawners) < self._most):
            best = Spawner(self._options)
            self._spawners.append(best)
        return best

    async def close(self) -> None:
        spawners, self._spawners = self._spawners, []
        for spawner in spawners:
            spawner.close()
        for spawner in spawners:
            await asyncio.to_thread(spawner.wait)
