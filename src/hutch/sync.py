"""The same API without `await`: `from hutch.sync import Hutch`.

One background thread runs the event loop; every call hands its coroutine over and waits. Signatures are those of the
protocols in `hutch.api`, taken from there, so that the two forms cannot drift apart.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from hutch import api
from hutch.keeper.embedded import Hutch as AsyncHutch
from hutch.model.boxes import BoxInfo, Event
from hutch.model.capabilities import Capabilities
from hutch.model.results import Result
from hutch.model.spec import Adjustment, EffectiveSpec

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hutch-sync", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result; an interrupt (Ctrl-C) cancels the work and waits for its cleanup."""
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


class _Wrapper(Protocol):
    _portal: Portal
    _inner: Any


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Wrapper, P], T]:
    """The method of that name on the wrapped object, waited for."""
    name = method.__name__

    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._portal.run(getattr(self._inner, name)(*args, **kwargs))
        return result

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def _streaming(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Wrapper, P], Iterator[T]]:
    """The asynchronous iterator of that name, as an ordinary one."""
    name = method.__name__

    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._portal.iterate(getattr(self._inner, name)(*args, **kwargs))

    call.__name__, call.__doc__ = name, method.__doc__
    return call


class Files:
    """Files of a box; see `hutch.api.Files`."""

    def __init__(self, portal: Portal, inner: api.Files) -> None:
        self._portal = portal
        self._inner = inner

    read = _blocking(api.Files.read)
    read_text = _blocking(api.Files.read_text)
    read_lines = _blocking(api.Files.read_lines)
    open = _streaming(api.Files.open)
    write = _blocking(api.Files.write)
    edit = _blocking(api.Files.edit)
    digest = _blocking(api.Files.digest)
    stat = _blocking(api.Files.stat)
    exists = _blocking(api.Files.exists)
    list = _blocking(api.Files.list)
    mkdir = _blocking(api.Files.mkdir)
    move = _blocking(api.Files.move)
    remove = _blocking(api.Files.remove)
    glob = _blocking(api.Files.glob)
    grep = _blocking(api.Files.grep)
    watch = _streaming(api.Files.watch)
    copy_in = _blocking(api.Files.copy_in)
    copy_out = _blocking(api.Files.copy_out)


class Job:
    """A process as a resource; see `hutch.api.Job`."""

    def __init__(self, portal: Portal, inner: api.Job) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def id(self) -> str:
        return self._inner.id

    info = _blocking(api.Job.info)
    read = _blocking(api.Job.read)
    follow = _streaming(api.Job.follow)
    write = _blocking(api.Job.write)
    close_stdin = _blocking(api.Job.close_stdin)
    signal = _blocking(api.Job.signal)
    resize = _blocking(api.Job.resize)
    wait = _blocking(api.Job.wait)


class Stream:
    """A command read while it runs: iterate, then look at `result`."""

    def __init__(self, portal: Portal, inner: api.Stream) -> None:
        self._portal = portal
        self._inner = inner

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return self._portal.iterate(aiter(self._inner))

    @property
    def result(self) -> Result:
        return self._inner.result


class Box:
    """A handle on one box; see `hutch.api.Box`."""

    def __init__(self, portal: Portal, inner: api.Box) -> None:
        self._portal = portal
        self._inner = inner
        self.files = Files(portal, inner.files)

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def spec(self) -> EffectiveSpec:
        return self._inner.spec

    @property
    def adjustments(self) -> tuple[Adjustment, ...]:
        return self._inner.adjustments

    exec = _blocking(api.Box.exec)
    jobs = _blocking(api.Box.jobs)
    usage = _blocking(api.Box.usage)
    state = _blocking(api.Box.state)
    pause = _blocking(api.Box.pause)
    resume = _blocking(api.Box.resume)
    destroy = _blocking(api.Box.destroy)

    def stream(self, command: str | Sequence[str], **options: Any) -> Stream:
        return Stream(self._portal, self._inner.stream(command, **options))

    def start(self, command: str | Sequence[str], **options: Any) -> Job:
        return Job(self._portal, self._portal.run(self._inner.start(command, **options)))

    def job(self, job_id: str) -> Job:
        return Job(self._portal, self._portal.run(self._inner.job(job_id)))


class Hutch:
    """`with Hutch() as hutch: with hutch.box() as box: ...`"""

    def __init__(self, **configuration: Any) -> None:
        self._portal = Portal()
        self._inner = AsyncHutch(**configuration)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def box(self, **spec: Any) -> Iterator[Box]:
        """A new box, destroyed at exit."""
        box = self.create(**spec)
        try:
            yield box
        finally:
            box.destroy()

    def create(self, **spec: Any) -> Box:
        return Box(self._portal, self._portal.run(self._inner.create(**spec)))

    def attach(self, box_id: str, *, takeover: bool = False) -> Box:
        return Box(self._portal, self._portal.run(self._inner.attach(box_id, takeover=takeover)))

    def destroy(self, box_id: str, *, force: bool = False) -> None:
        self._portal.run(self._inner.destroy(box_id, force=force))

    def boxes(self) -> tuple[BoxInfo, ...]:
        return self._portal.run(self._inner.boxes())

    def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        return self._portal.run(self._inner.events(after, limit))

    def providers(self) -> tuple[Capabilities, ...]:
        return self._portal.run(self._inner.providers())

    def close(self) -> None:
        self._portal.run(self._inner.close())
        self._portal.close()
