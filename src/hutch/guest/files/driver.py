"""Runs file operations on the loop: drives their steps, sends what they yield within credit, feeds them content."""

from __future__ import annotations

import time
from types import GeneratorType
from typing import TYPE_CHECKING

from hutch.guest.channels import Channel, Fields
from hutch.guest.channels import Operation as ChannelOperation
from hutch.guest.files import basic, entries, search, watch, write
from hutch.guest.loop import READ, Loop, Timer
from hutch.guest.operations import STEP_SECONDS, Consumer, Failure, Operation, Readable, Reply, Steps
from hutch.guest.protocol import DATA, MAX_PAYLOAD

if TYPE_CHECKING:
    from hutch.guest.main import Guest

OPERATIONS: dict[str, Operation] = {
    **basic.OPERATIONS,
    **write.OPERATIONS,
    **search.OPERATIONS,
    **watch.OPERATIONS,
    **entries.OPERATIONS,
}


def _on_channel(operation: Operation) -> ChannelOperation:
    def serve(guest: Guest, channel: Channel, fields: Fields) -> None:
        work = operation(fields, guest.options.workdir)
        if isinstance(work, dict):
            channel.reply(work)
        elif isinstance(work, GeneratorType):
            _Driver(guest.loop, channel, work).run()
        else:
            _Feeder(guest.loop, channel, work)  # type: ignore[arg-type]

    return serve


CHANNEL_OPERATIONS: dict[str, ChannelOperation] = {
    name: _on_channel(operation) for name, operation in OPERATIONS.items()
}
"""Every file operation, in the form of the connection's table."""


def _as_failure(error: BaseException) -> Failure:
    """A failure has a code; any other exception is a defect, which must not end the guest."""
    return error if isinstance(error, Failure) else Failure("internal", f"{type(error).__name__}: {error}")


class _Driver:
    """Runs one generator of steps to its end."""

    def __init__(self, loop: Loop, channel: Channel, steps: Steps) -> None:
        self._loop = loop
        self._channel = channel
        self._steps = steps
        self._unsent = memoryview(b"")
        self._waiting_for: int | None = None
        self._timer: Timer | None = None
        self._scheduled = False
        channel.on_writable = self._on_writable
        channel.on_cancel = self._on_cancel

    def run(self) -> None:
        """Run steps until the operation waits for something or has used its time."""
        self._scheduled = False
        pause = time.monotonic() + STEP_SECONDS
        while self._channel.open:
            if not self._send():
                return  # on_writable continues
            if time.monotonic() >= pause:
                self._schedule()
                return
            try:
                step = next(self._steps)
            except StopIteration as end:
                self._channel.reply(end.value)
                return
            except Exception as error:
                self._channel.fail(_as_failure(error))
                return
            if isinstance(step, Readable):
                self._wait(step)
                return
            if step is not None:
                self._unsent = memoryview(step)

    def _send(self) -> bool:
        """Return False while something is left to send."""
        while self._unsent:
            size = min(len(self._unsent), self._channel.writable, MAX_PAYLOAD)
            if size <= 0:
                return False
            self._channel.send(DATA, self._unsent[:size])
            self._unsent = self._unsent[size:]
        return True

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def _on_writable(self) -> None:
        # Only a blocked send waits for credit; waiting for a descriptor or for the next round continues by itself.
        if self._unsent and not self._scheduled:
            self.run()

    def _wait(self, step: Readable) -> None:
        self._waiting_for = step.descriptor
        self._loop.watch(step.descriptor, READ, self._on_ready)
        if step.until is not None:
            self._timer = self._loop.call_at(step.until, self._on_ready)

    def _on_ready(self, _events: int = 0) -> None:
        self._stop_waiting()
        self.run()

    def _stop_waiting(self) -> None:
        if self._waiting_for is not None:
            self._loop.unwatch(self._waiting_for)
            self._waiting_for = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_cancel(self) -> None:
        self._stop_waiting()
        try:
            self._steps.close()
        except Exception as error:
            self._channel.fail(_as_failure(error))
            return
        self._channel.fail(Failure("cancelled", "the caller gave up"))


class _Feeder:
    """Passes content from the host to a consumer, and grants new credit for what it has consumed."""

    def __init__(self, loop: Loop, channel: Channel, consumer: Consumer) -> None:
        self._loop = loop
        self._channel = channel
        self._consumer = consumer
        channel.on_data = self._data
        channel.on_end = self._end
        channel.on_cancel = self._on_cancel

    def _data(self, content: bytes) -> None:
        try:
            self._consumer.data(content)
        except Exception as error:
            self._abort(_as_failure(error))
            return
        self._channel.grant(len(content))

    def _end(self) -> None:
        self._channel.on_data = self._channel.on_end = None
        try:
            work: Reply | Steps = self._consumer.end()
        except Exception as error:
            self._channel.fail(_as_failure(error))
            return
        if isinstance(work, dict):
            self._channel.reply(work)
            return
        _Driver(self._loop, self._channel, work).run()

    def _on_cancel(self) -> None:
        self._abort(Failure("cancelled", "the caller gave up"))

    def _abort(self, failure: Failure) -> None:
        try:
            self._consumer.abort()
        finally:
            self._channel.fail(failure)
