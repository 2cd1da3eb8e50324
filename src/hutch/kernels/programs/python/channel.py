"""The kernel's connection to its keeper, and the capture of what the code prints.

Messages are lines of JSON on the descriptors that the process was started with. The code gets pipes instead, so that
what it and its children print arrives as messages, in order with its displays.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

_FLUSH_SECONDS = 0.2
_PIPE_SIZE = 1 << 20
_IDLE_BYTES = 1 << 16  # What threads print between two runs is kept up to here, and reported with the next run.
_F_SETPIPE_SZ = 1031  # It has no name in the standard library before Python 3.10.


class Interrupts:
    """Turns SIGINT into a KeyboardInterrupt, but only while code runs and never in the middle of a message.

    The keeper sends code without waiting for the kernel, so a signal may arrive before the code that it is meant for.
    After each signal the keeper sends a line: whatever code comes before that line is meant.
    """

    def __init__(self) -> None:
        self._running = False
        self._blocked = 0
        self._pending = False
        self._early = False

    def install(self) -> None:
        signal.signal(signal.SIGINT, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Whoever forked a kernel may have blocked it.

    def begin(self) -> None:
        """Code runs from now on; raise KeyboardInterrupt if it was interrupted before it began."""
        self._running = True
        if self._early:
            self._early = False
            raise KeyboardInterrupt

    def end(self) -> None:
        self._running = False

    def forget(self) -> None:
        """Drop a signal that came too late for its code: the keeper's line has arrived, and no code before it."""
        self._early = False

    def _handle(self, _number: int, _frame: object) -> None:
        if not self._running:
            self._early = True
            return
        if self._blocked:
            self._pending = True
            return
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._blocked += 1

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._blocked -= 1
        if self._pending and not self._blocked:
            self._pending = False
            if self._running:
                raise KeyboardInterrupt


class Channel:
    """Sends messages from any thread, and receives requests in the main one."""

    def __init__(self, source: int, target: int, complaints: int | None = None) -> None:
        """`complaints` is where a kernel that cannot go on says why."""
        self.interrupts = Interrupts()
        self._source = source
        self._target = target
        self._complaints = complaints
        self.lock = threading.Lock()
        """Held while a message is written."""
        self._rest = b""

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self._source, self._target, *(() if self._complaints is None else (self._complaints,))

    def move(self) -> None:
        """Go on with the standard streams as the connection, under the numbers of the old one."""
        for stream, number in enumerate(self.descriptors):
            os.dup2(stream, number, inheritable=False)
        self._rest = b""

    def send(self, **message: Any) -> None:
        data = json.dumps(message, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
        with self.interrupts, self.lock:
            view = memoryview(data)
            while view:
                view = view[os.write(self._target, view) :]

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield requests until the keeper closes the input."""
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                yield json.loads(line)
                continue
            piece = os.read(self._source, 1 << 16)
            if not piece:
                return
            self._rest += piece


def _line_writer(number: int) -> TextIO:
    return open(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


class Capture:
    """Replaces descriptors 1 and 2 by pipes and sends what arrives there as messages of the current run."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.lock = threading.Lock()
        """Protects the pipes and decoders: the thread and `drain` read them in turn."""
        self._run = ""
        self._idle = {"stdout": "", "stderr": ""}
        self._pipes: dict[int, str] = {}
        self._decoders: dict[str, Any] = {}
        self.reopen()
        sys.stdout = sys.__stdout__ = _line_writer(1)  # type: ignore[assignment,misc]
        sys.stderr = sys.__stderr__ = _line_writer(2)  # type: ignore[assignment,misc]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(self._pipes)

    def reopen(self) -> None:
        """Make new pipes, and use them as standard output and error."""
        self._pipes.clear()
        for number, name in ((1, "stdout"), (2, "stderr")):
            reader, writer = os.pipe()
            os.dup2(writer, number)
            os.close(writer)
            os.set_blocking(reader, False)
            with suppress(OSError):  # The user's limit for pipes is reached; the small pipe works too.
                fcntl.fcntl(reader, _F_SETPIPE_SZ, _PIPE_SIZE)
            self._pipes[reader] = name
            self._decoders[name] = codecs.getincrementaldecoder("utf-8")("replace")

    def start(self) -> None:
        """Start the thread that sends output while the code runs."""
        threading.Thread(target=self._pump, name="hutch-output", daemon=True).start()

    def begin(self, run: str) -> None:
        """Report output as that of this run; first what threads have printed since the last one."""
        with self.lock:
            self._run = run
            for name, text in self._idle.items():
                if text:
                    self._channel.send(type="stream", run=run, name=name, text=text)
                    self._idle[name] = ""

    def end(self) -> None:
        self.drain()
        with self.lock:
            self._run = ""

    def drain(self) -> None:
        """Send everything that was printed up to now."""
        self._flush()
        with self._channel.interrupts, self.lock:
            for reader in self._pipes:
                while self._read(reader):
                    pass

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # The code has replaced or closed it, or is writing to it right now.
            with suppress(AttributeError, OSError, RuntimeError, ValueError):
                stream.flush()

    def _pump(self) -> None:
        readers = list(self._pipes)
        while True:
            ready, _, _ = select.select(readers, [], [], _FLUSH_SECONDS)
            if not ready and self._run:
                self._flush()
            for reader in ready:
                with self.lock:
                    self._read(reader)

    def _read(self, reader: int) -> bool:
        try:
            data = os.read(reader, 1 << 16)
        except BlockingIOError:
            return False
        name = self._pipes[reader]
        text = self._decoders[name].decode(data)
        if self._run:
            if text:
                self._channel.send(type="stream", run=self._run, name=name, text=text)
        else:
            self._idle[name] = (self._idle[name] + text)[-_IDLE_BYTES:]
        return bool(data)
