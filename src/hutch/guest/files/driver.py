"""File operations on the loop: drives their steps, sends what they yield under credit, feeds what they consume."""

from __future__ import annotations

import time
from types import GeneratorType
from typing import TYPE_CHECKING

from hutch.guest.channels import Channel, Fields
from hutch.guest.channels import Operation as ChannelOperation
from hutch.guest.files import basic, search, watch, write
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
}


def _served(operation: Operation) -> ChannelOperation:
    def serve(guest: Guest, channel: Channel, fields: Fields) -> None:
        work = operation(fields, guest.options.workdir)
        if isinstance(work, dict):
            channel.reply(work)
        elif isinstance(work, GeneratorType):
            _Driver(guest.loop, channel, work).go_on()
        else:
            _Feeder(guest.loop, channel, work)  # type: ignore[arg-type]

    return serve


SERVED: dict[str, ChannelOperation] = {name: _served(operation) for name, operation in OPERATIONS.items()}
"""Every file operation, as the connection's table wants it."""


def _reported(error: BaseException) -> Failure:
    """A failure has a code; anything else is a defect of ours, which must not take the guest along."""
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
        channel.on_room = self._room
        channel.on_gone = self._gone

    def go_on(self) -> None:
        """Steps until the operation waits for something, or has had its time."""
        self._scheduled = False
        pause = time.monotonic() + STEP_SECONDS
        while self._channel.open:
            if not self._send():
                return  # on_room goes on
            if time.monotonic() >= pause:
                self._later()
                return
            try:
                step = next(self._steps)
            except StopIteration as end:
                self._channel.reply(end.value)
                return
            except Exception as error:
                self._channel.fail(_reported(error))
                return
            if isinstance(step, Readable):
                self._wait(step)
                return
            if step is not None:
                self._unsent = memoryview(step)

    def _send(self) -> bool:
        """False while something is left over."""
        while self._unsent:
            size = min(len(self._unsent), self._channel.room, MAX_PAYLOAD)
            if size <= 0:
                return False
            self._channel.send(DATA, self._unsent[:size])
            self._unsent = self._unsent[size:]
        return True

    def _later(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.soon(self.go_on)

    def _room(self) -> None:
        # Only a send that was stuck waits for room; a wait for a descriptor or a turn goes on by itself.
        if self._unsent and not self._scheduled:
            self.go_on()

    def _wait(self, step: Readable) -> None:
        self._waiting_for = step.descriptor
        self._loop.watch(step.descriptor, READ, self._woken)
        if step.until is not None:
            self._timer = self._loop.at(step.until, self._woken)

    def _woken(self, _events: int = 0) -> None:
        self._stop_waiting()
        self.go_on()

    def _stop_waiting(self) -> None:
        if self._waiting_for is not None:
            self._loop.unwatch(self._waiting_for)
            self._waiting_for = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _gone(self) -> None:
        self._stop_waiting()
        try:
            self._steps.close()
        except Exception as error:
            self._channel.fail(_reported(error))
            return
        self._channel.fail(Failure("cancelled", "the caller gave up"))


class _Feeder:
    """Gives a consumer what the host sends, and grants as much again once it is taken."""

    def __init__(self, loop: Loop, channel: Channel, consumer: Consumer) -> None:
        self._loop = loop
        self._channel = channel
        self._consumer = consumer
        channel.on_data = self._data
        channel.on_end = self._end
        channel.on_gone = self._gone

    def _data(self, content: bytes) -> None:
        try:
            self._consumer.data(content)
        except Exception as error:
            self._abort(_reported(error))
            return
        self._channel.grant(len(content))

    def _end(self) -> None:
        self._channel.on_data = self._channel.on_end = None
        try:
            work: Reply | Steps = self._consumer.end()
        except Exception as error:
            self._channel.fail(_reported(error))
            return
        if isinstance(work, dict):
            self._channel.reply(work)
            return
        _Driver(self._loop, self._channel, work).go_on()

    def _gone(self) -> None:
        self._abort(Failure("cancelled", "the caller gave up"))

    def _abort(self, failure: Failure) -> None:
        try:
            self._consumer.abort()
        finally:
            self._channel.fail(failure)
