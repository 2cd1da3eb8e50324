"""Operations that must not happen twice: a client names each, and may ask for it again after its connection broke.

The name belongs to its caller. Work goes on for a while after the client has left, and its answer is kept for a while
after it was given; asking again for a name that is not known begins nothing.
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from hutch.errors import Conflict, HutchError, Invalid

if TYPE_CHECKING:
    from hutch.server.call import Call, Reply

RETURN_SECONDS = 45.0
"""How long a client may be away before its work is given up."""
KEPT = 1024
KEPT_BYTES = 64 << 20


class Operation:
    """One of them: while it runs a task, then only its answer, because a task that has ended still holds on to all of
    its call."""

    __slots__ = ("answer", "giving_up", "task", "waiting")

    def __init__(self, task: "asyncio.Task[Reply]") -> None:
        self.task: asyncio.Task[Reply] | None = task
        self.answer: Reply | HutchError | None = None
        self.waiting = 0
        self.giving_up: asyncio.TimerHandle | None = None

    async def result(self) -> "Reply":
        """For as many as ask; leaving ends nothing."""
        if self.task is not None:
            return await asyncio.shield(self.task)
        if isinstance(self.answer, HutchError):
            raise _fresh(self.answer)
        assert self.answer is not None
        return self.answer

    def ended(self, task: "asyncio.Task[Reply]") -> None:
        error = task.exception()
        if error is None:
            self.answer = task.result()
        else:
            self.answer = _fresh(error) if isinstance(error, HutchError) else HutchError("internal error")
        self.task = None

    def size(self) -> int:
        body = None if self.answer is None or isinstance(self.answer, HutchError) else self.answer.body
        return len(body) if isinstance(body, bytes) else 1024


class Operations:
    """Those that run, and the answers that were given lately."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Operation] = {}
        self._bytes = 0

    async def do(self, call: "Call", work: "Coroutine[Any, Any, Reply]") -> "Reply":
        """The answer of `work`, which is begun once for each name; without a name it ends with its caller."""
        name = call.header("hutch-operation")
        if not name:
            return await work
        try:
            operation = self._begun(call, name, work)
        except BaseException:
            work.close()
            raise
        operation.waiting += 1
        if operation.giving_up is not None:
            operation.giving_up.cancel()
            operation.giving_up = None
        try:
            return await operation.result()
        finally:
            operation.waiting -= 1
            if not operation.waiting and operation.task is not None and not operation.task.done():
                loop = asyncio.get_running_loop()
                operation.giving_up = loop.call_later(RETURN_SECONDS, operation.task.cancel)

    def _begun(self, call: "Call", name: str, work: "Coroutine[Any, Any, Reply]") -> Operation:
        if len(name) > 64 or not name.isalnum():
            raise Invalid("Hutch-Operation is at most 64 letters and digits")
        full = (_place(call), name)
        operation = self._known.get(full)
        if operation is not None:
            work.close()
            return operation
        if call.header("hutch-again"):
            raise Conflict(
                "the server does not know this operation any more: whether it was done cannot be said",
                details={"operation": "unknown"},
                remedy="look at what it was to change, and ask anew",
            )
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda task: self._ended(full, task))
        operation = self._known[full] = Operation(task)
        return operation

    def _ended(self, full: tuple[str, str], task: "asyncio.Task[Reply]") -> None:
        operation = self._known[full]
        if task.cancelled():
            del self._known[full]
            return
        operation.ended(task)
        self._bytes += operation.size()
        if len(self._known) <= KEPT and self._bytes <= KEPT_BYTES:
            return
        for old, known in list(self._known.items()):
            if len(self._known) <= KEPT and self._bytes <= KEPT_BYTES:
                break
            if known.task is None:
                self._bytes -= known.size()
                del self._known[old]

    async def cancel(self, call: "Call", name: str) -> None:
        """Nobody waits for it any more; one that is not known has ended."""
        operation = self._known.get((_place(call), name))
        if operation is not None and operation.task is not None:
            operation.task.cancel()
            await asyncio.wait({operation.task})

    async def finish(self) -> None:
        """The server ends, and with it what nobody came back for."""
        running = [operation.task for operation in self._known.values() if operation.task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


def _place(call: "Call") -> str:
    """Whose name it is, and of which box: nobody gets at an answer by guessing."""
    caller = call.caller
    return "\0".join((caller.key_id, str(caller.over_all), caller.owner, caller.session, call.params["box"]))


def _fresh(error: HutchError) -> HutchError:
    """The same error without its traceback, whose frames hold all that was in hand when it was raised."""
    return HutchError.of(error.to_wire())
