"""The event loop behind `hutch.sync`, and how a method of the asynchronous API becomes one that waits."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from hutch.errors import Conflict

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
W = TypeVar("W")


class Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hutch-sync", daemon=True)
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that has the thread."""
        return os.getpid() != self._process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; an interrupt (Ctrl-C) cancels it."""
        if self.forked:
            work.close()
            raise Conflict(
                f"this Hutch belongs to process {self._process}: a fork has none of its threads, and no call could end",
                details={"process": self._process},
                remedy="make a Hutch in each process, after the fork (gunicorn: in post_fork, or without --preload)",
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def step() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        async def finish() -> None:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

        try:
            while True:
                more, item = self.run(step())
                if not more:
                    return
                yield item
        finally:
            self.run(finish())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Wrapper(Generic[A]):
    """An object of the asynchronous API, with methods that wait."""

    def __init__(self, portal: Portal, inner: A) -> None:
        self._portal = portal
        self._inner = inner


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Wrapper[Any], P], T]:
    """Call the method of that name on the wrapped object, and wait for it."""
    name = method.__name__

    def call(self: Wrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._portal.run(getattr(self._inner, name)(*args, **kwargs))
        return result

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def wrapping(
    wrapper: Callable[[Portal, Any], W], method: Callable[Concatenate[A, P], Coroutine[Any, Any, Any]]
) -> Callable[Concatenate[Wrapper[Any], P], W]:
    """Do the same for a method whose result has to be wrapped too."""
    name = method.__name__

    def call(self: Wrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrapper(self._portal, self._portal.run(getattr(self._inner, name)(*args, **kwargs)))

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def wrapping_now(
    wrapper: Callable[[Portal, Any], W], method: Callable[Concatenate[A, P], Any]
) -> Callable[Concatenate[Wrapper[Any], P], W]:
    """Wrap the result of a method that does not wait."""
    name = method.__name__

    def call(self: Wrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrapper(self._portal, getattr(self._inner, name)(*args, **kwargs))

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def streaming(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[Wrapper[Any], P], Iterator[T]]:
    """Turn the asynchronous iterator of that name to an ordinary one."""
    name = method.__name__

    def call(self: Wrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._portal.iterate(getattr(self._inner, name)(*args, **kwargs))

    call.__name__, call.__doc__ = name, method.__doc__
    return call
