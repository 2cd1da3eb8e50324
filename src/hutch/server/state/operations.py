"""Idempotent operations: a client names each one, and may retry it under that name after its connection broke.

A name belongs to its caller. The work continues for a while after the client disconnected, and its answer is kept for a
while after it was sent. A retry under a name that is no longer operation starts nothing.
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from hutch.errors import Conflict, HutchError, Invalid
from hutch.providers.guest_client.allowance import LARGE, allowed
from hutch.server.state.budget import Account, Budget
from hutch.server.wire import StreamedResult

if TYPE_CHECKING:
    from hutch.server.request import Call, Reply

RECONNECT_SECONDS = 45.0
"""Seconds that a client may be disconnected before its work is cancelled."""
MAX_KEPT = 1024
MAX_KEPT_BYTES = 64 << 20
MAX_KEPT_BYTES_PER_KEY = 16 << 20
"""A limit per key, so that one key's answers do not evict all others."""


class Operation:
    """One operation: a task while it runs, then only its answer, because an ended task still references its call."""

    __slots__ = ("account", "answer", "expiry", "key", "task", "waiting")

    def __init__(self, task: "asyncio.Task[Reply]", key: str, account: Account) -> None:
        self.key = key
        self.account = account
        """Counts the bytes of the work and its answer, which may outlive the request that started them."""
        self.task: asyncio.Task[Reply] | None = task
        self.answer: Reply | HutchError | None = None
        self.waiting = 0
        self.expiry: asyncio.TimerHandle | None = None

    async def result(self) -> "Reply":
        """Wait for the answer; cancelling one waiter does not cancel the work."""
        if self.task is not None:
            return await asyncio.shield(self.task)
        if isinstance(self.answer, HutchError):
            raise _without_traceback(self.answer)
        assert self.answer is not None
        return self.answer

    def ended(self, task: "asyncio.Task[Reply]") -> None:
        error = task.exception()
        if error is None:
            self.answer = task.result()
        else:
            self.answer = _without_traceback(error) if isinstance(error, HutchError) else HutchError("internal error")
        self.task = None

    def size(self) -> int:
        body = None if self.answer is None or isinstance(self.answer, HutchError) else self.answer.body
        if isinstance(body, bytes):
            return len(body)
        return body.size if isinstance(body, StreamedResult) else 1024


class Operations:
    """The running operations, and the answers that were sent recently."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._known: dict[tuple[str, str], Operation] = {}
        self._bytes_by_key: dict[str, int] = {}
        """Bytes of the kept answers, by key."""
        self._total_bytes = 0

    async def run_once(self, call: "Call", work: "Coroutine[Any, Any, Reply]") -> "Reply":
        """The answer of `work`, which is started once for each name; unnamed work is cancelled with its caller."""
        name = call.header("hutch-operation")
        if not name:
            return await work
        try:
            operation = self._find_or_start(call, name, work)
        except BaseException:
            work.close()
            raise
        operation.waiting += 1
        if operation.expiry is not None and operation.task is not None:
            operation.expiry.cancel()
            operation.expiry = None
        try:
            return await operation.result()
        finally:
            operation.waiting -= 1
            if not operation.waiting and operation.task is not None and not operation.task.done():
                loop = asyncio.get_running_loop()
                operation.expiry = loop.call_later(RECONNECT_SECONDS, operation.task.cancel)

    def _find_or_start(self, call: "Call", name: str, work: "Coroutine[Any, Any, Reply]") -> Operation:
        if len(name) > 64 or not name.isalnum():
            raise Invalid("Hutch-Operation is at most 64 letters and digits")
        name_key = (_namespace(call), name)
        operation = self._known.get(name_key)
        if operation is not None:
            work.close()
            return operation
        if call.header("hutch-again"):
            raise Conflict(
                "the server does not know this operation any more: whether it was done cannot be said",
                details={"operation": "unknown"},
                remedy="check what it was to change, then send it under a new name",
            )
        key = call.caller.key_id
        account = self._budget.account(key)
        with allowed(account):
            task = asyncio.ensure_future(work)
        task.add_done_callback(lambda task: self._ended(name_key, task))
        operation = self._known[name_key] = Operation(task, key, account)
        return operation

    def _ended(self, name_key: tuple[str, str], task: "asyncio.Task[Reply]") -> None:
        operation = self._known[name_key]
        if task.cancelled():
            del self._known[name_key]
            operation.account.close()
            return
        operation.ended(task)
        size = operation.size()
        if size > LARGE:
            self._keep_briefly(name_key, operation)
            return
        self._bytes_by_key[operation.key] = self._bytes_by_key.get(operation.key, 0) + size
        self._total_bytes += size
        operation.account.close()  # From now on it is counted here.
        self._evict(operation.key)

    def _keep_briefly(self, name_key: tuple[str, str], operation: Operation) -> None:
        """Keep a large answer, which counts against its key, until it was read or its client is away too long."""
        answer, loop = operation.answer, asyncio.get_running_loop()
        assert answer is not None and not isinstance(answer, HutchError)

        def expire() -> None:
            if answer.readers:
                operation.expiry = loop.call_later(RECONNECT_SECONDS, expire)
            else:
                self._forget(name_key)

        operation.expiry = loop.call_later(RECONNECT_SECONDS, expire)
        answer.on_sent = lambda: self._forget(name_key)

    def _evict(self, key: str) -> None:
        while self._bytes_by_key.get(key, 0) > MAX_KEPT_BYTES_PER_KEY and self._drop_oldest(key):
            pass
        while (len(self._known) > MAX_KEPT or self._total_bytes > MAX_KEPT_BYTES) and self._drop_oldest():
            pass

    def _drop_oldest(self, key: str | None = None) -> bool:
        """Forget the oldest small answer; False if all others still run or are about to be read."""
        for name_key, operation in self._known.items():
            if operation.task is None and key in (None, operation.key) and operation.size() <= LARGE:
                self._forget(name_key)
                return True
        return False

    def _forget(self, name_key: tuple[str, str]) -> None:
        operation = self._known.pop(name_key, None)
        if operation is None:
            return
        operation.account.close()
        if operation.expiry is not None:
            operation.expiry.cancel()
        if (size := operation.size()) > LARGE:
            return
        self._total_bytes -= size
        left = self._bytes_by_key.pop(operation.key) - size
        if left:
            self._bytes_by_key[operation.key] = left

    async def cancel(self, call: "Call", name: str) -> None:
        """Cancel the operation if it still runs."""
        operation = self._known.get((_namespace(call), name))
        if operation is not None and operation.task is not None:
            operation.task.cancel()
            await asyncio.wait({operation.task})

    async def finish(self) -> None:
        """Cancel every running operation, because the server stops."""
        running = [operation.task for operation in self._known.values() if operation.task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


def _namespace(call: "Call") -> str:
    """The caller and box to which the name belongs, so that nobody gets another's answer by guessing its name."""
    caller = call.caller
    return "\0".join((caller.key_id, str(caller.over_all), caller.owner, caller.session, call.params["box"]))


def _without_traceback(error: HutchError) -> HutchError:
    """The same error without its traceback, whose frames reference the whole call."""
    return HutchError.of(error.to_wire())
