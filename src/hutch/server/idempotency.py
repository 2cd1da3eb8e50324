"""Operations that must not happen twice: a client names each, and may ask for it again after its connection broke.

The name belongs to its caller. Work goes on for a while after the client has left, and its answer is kept for a while
after it was given; asking again for a name that is not known begins nothing.
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from hutch.errors import Conflict, HutchError, Invalid
from hutch.providers.guest_client.allowance import LARGE, allowed
from hutch.server.budget import Account, Budget
from hutch.server.views import WrittenResult

if TYPE_CHECKING:
    from hutch.server.request import Call, Reply

RETURN_SECONDS = 45.0
"""How long a client may be away before its work is given up."""
KEPT = 1024
KEPT_BYTES = 64 << 20
KEPT_BYTES_OF_KEY = 16 << 20
"""One key's answers do not drive out those of all others."""


class Operation:
    """One of them: while it runs a task, then only its answer, because a task that has ended still holds on to all of
    its call."""

    __slots__ = ("account", "answer", "giving_up", "key", "task", "waiting")

    def __init__(self, task: "asyncio.Task[Reply]", key: str, account: Account) -> None:
        self.key = key
        self.account = account
        """What the work and its answer hold: they may outlive the request that began them."""
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
        if isinstance(body, bytes):
            return len(body)
        return body.size if isinstance(body, WrittenResult) else 1024


class Operations:
    """Those that run, and the answers that were given lately."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._known: dict[tuple[str, str], Operation] = {}
        self._bytes: dict[str, int] = {}
        """Of the answers that are kept, by key."""
        self._all_bytes = 0

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
        if operation.giving_up is not None and operation.task is not None:
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
        key = call.caller.key_id
        account = self._budget.account(key)
        with allowed(account):
            task = asyncio.ensure_future(work)
        task.add_done_callback(lambda task: self._ended(full, task))
        operation = self._known[full] = Operation(task, key, account)
        return operation

    def _ended(self, full: tuple[str, str], task: "asyncio.Task[Reply]") -> None:
        operation = self._known[full]
        if task.cancelled():
            del self._known[full]
            operation.account.close()
            return
        operation.ended(task)
        size = operation.size()
        if size > LARGE:
            self._keep_briefly(full, operation)
            return
        self._bytes[operation.key] = self._bytes.get(operation.key, 0) + size
        self._all_bytes += size
        operation.account.close()  # from here on it is counted here
        self._make_room(operation.key)

    def _keep_briefly(self, full: tuple[str, str], operation: Operation) -> None:
        """A large answer counts against its key until it was read: once, or by nobody for as long as a client may be
        away."""
        answer, loop = operation.answer, asyncio.get_running_loop()
        assert answer is not None and not isinstance(answer, HutchError)

        def give_up() -> None:
            if answer.readers:
                operation.giving_up = loop.call_later(RETURN_SECONDS, give_up)
            else:
                self._forget(full)

        operation.giving_up = loop.call_later(RETURN_SECONDS, give_up)
        answer.sent = lambda: self._forget(full)

    def _make_room(self, key: str) -> None:
        while self._bytes.get(key, 0) > KEPT_BYTES_OF_KEY and self._drop_oldest(key):
            pass
        while (len(self._known) > KEPT or self._all_bytes > KEPT_BYTES) and self._drop_oldest():
            pass

    def _drop_oldest(self, key: str | None = None) -> bool:
        """False: everything that is left still runs, or is about to be read."""
        for full, known in self._known.items():
            if known.task is None and key in (None, known.key) and known.size() <= LARGE:
                self._forget(full)
                return True
        return False

    def _forget(self, full: tuple[str, str]) -> None:
        known = self._known.pop(full, None)
        if known is None:
            return
        known.account.close()
        if known.giving_up is not None:
            known.giving_up.cancel()
        if (size := known.size()) > LARGE:
            return
        self._all_bytes -= size
        left = self._bytes.pop(known.key) - size
        if left:
            self._bytes[known.key] = left

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
