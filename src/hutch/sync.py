"""The same API without `await`: `from hutch.sync import Hutch`.

One background thread runs the event loop; every call passes its coroutine to it and waits. The signatures are taken
from the protocols in `hutch.api`, so that the two forms cannot differ.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from hutch import api
from hutch.errors import Conflict
from hutch.front import Hutch as AsyncHutch
from hutch.model.files import Change
from hutch.model.results import Result
from hutch.model.skills import SkillInfo, SkillPlace
from hutch.model.spec import Adjustment, EffectiveSpec

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


class _Wrapper(Protocol):
    _portal: Portal
    _inner: Any


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Wrapper, P], T]:
    """Call the method of that name on the wrapped object, and wait for it."""
    name = method.__name__

    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._portal.run(getattr(self._inner, name)(*args, **kwargs))
        return result

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def _wrapping(
    wrapper: Callable[[Portal, Any], W], method: Callable[Concatenate[A, P], Coroutine[Any, Any, Any]]
) -> Callable[Concatenate[_Wrapper, P], W]:
    """Do the same for a method whose result has to be wrapped too."""
    name = method.__name__

    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrapper(self._portal, self._portal.run(getattr(self._inner, name)(*args, **kwargs)))

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def _wrapping_now(
    wrapper: Callable[[Portal, Any], W], method: Callable[Concatenate[A, P], Any]
) -> Callable[Concatenate[_Wrapper, P], W]:
    """Wrap the result of a method that does not wait."""
    name = method.__name__

    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrapper(self._portal, getattr(self._inner, name)(*args, **kwargs))

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def _streaming(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Wrapper, P], Iterator[T]]:
    """Turn the asynchronous iterator of that name to an ordinary one."""
    name = method.__name__

    def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._portal.iterate(getattr(self._inner, name)(*args, **kwargs))

    call.__name__, call.__doc__ = name, method.__doc__
    return call


class Watch:
    """Changes of files: `with box.files.watch() as changes: for change in changes: ...`"""

    def __init__(self, portal: Portal, inner: api.Watch) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.run(self._inner.aclose())

    def __iter__(self) -> Iterator[Change]:
        return self._portal.iterate(self._inner)


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
    watch = _wrapping_now(Watch, api.Files.watch)
    copy_in = _blocking(api.Files.copy_in)
    copy_out = _blocking(api.Files.copy_out)


class Job:
    """A command that runs in a box; see `hutch.api.Job`."""

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

    @property
    def notes(self) -> tuple[str, ...]:
        return self._inner.notes

    exec = _blocking(api.Box.exec)
    stream = _wrapping_now(Stream, api.Box.stream)
    start = _wrapping(Job, api.Box.start)
    jobs = _blocking(api.Box.jobs)
    job = _wrapping(Job, api.Box.job)
    forget = _blocking(api.Box.forget)
    usage = _blocking(api.Box.usage)
    info = _blocking(api.Box.info)
    state = _blocking(api.Box.state)
    pause = _blocking(api.Box.pause)
    resume = _blocking(api.Box.resume)
    stop = _blocking(api.Box.stop)
    rename = _blocking(api.Box.rename)
    change = _blocking(api.Box.change)
    renew = _blocking(api.Box.renew)
    release = _blocking(api.Box.release)
    export = _blocking(api.Box.export)
    destroy = _blocking(api.Box.destroy)


class Volumes:
    """Named directories that outlive boxes; see `hutch.api.Volumes`."""

    def __init__(self, portal: Portal, inner: api.Volumes) -> None:
        self._portal = portal
        self._inner = inner

    create = _blocking(api.Volumes.create)
    all = _blocking(api.Volumes.all)
    get = _blocking(api.Volumes.get)
    remove = _blocking(api.Volumes.remove)


class Receipts:
    """The record of what was done to boxes; see `hutch.api.Receipts`."""

    def __init__(self, portal: Portal, inner: api.Receipts) -> None:
        self._portal = portal
        self._inner = inner

    list = _blocking(api.Receipts.list)
    chains = _blocking(api.Receipts.chains)
    verify = _blocking(api.Receipts.verify)
    export = _streaming(api.Receipts.export)
    note = _blocking(api.Receipts.note)


class Questions:
    """Questions of agents that a person has to decide; see `hutch.api.Questions`."""

    def __init__(self, portal: Portal, inner: api.Questions) -> None:
        self._portal = portal
        self._inner = inner

    waiting = _blocking(api.Questions.waiting)
    answer = _blocking(api.Questions.answer)
    ask = _blocking(api.Questions.ask)


class Skills:
    """Skill packages; see `hutch.api.Skills`."""

    def __init__(self, portal: Portal, inner: api.Skills) -> None:
        self._portal = portal
        self._inner = inner

    all = _blocking(api.Skills.all)
    get = _blocking(api.Skills.get)
    body = _blocking(api.Skills.body)
    files = _blocking(api.Skills.files)
    read_file = _blocking(api.Skills.read_file)
    versions = _blocking(api.Skills.versions)
    export = _blocking(api.Skills.export)
    scan = _blocking(api.Skills.scan)
    preview = _blocking(api.Skills.preview)
    install = _blocking(api.Skills.install)
    create = _blocking(api.Skills.create)
    write_file = _blocking(api.Skills.write_file)
    remove_file = _blocking(api.Skills.remove_file)
    upgrade = _blocking(api.Skills.upgrade)
    rollback = _blocking(api.Skills.rollback)
    pin = _blocking(api.Skills.pin)
    unpin = _blocking(api.Skills.unpin)
    remove = _blocking(api.Skills.remove)
    bindings = _blocking(api.Skills.bindings)
    bind = _blocking(api.Skills.bind)

    def save(self, name: str, box: Box, path: str = "") -> SkillInfo:
        """Make a new version of what was edited in a box."""
        return self._portal.run(self._inner.save(name, box._inner, path))

    def prepare(self, name: str, box: Box) -> SkillPlace:
        """Make a skill ready in a box."""
        return self._portal.run(self._inner.prepare(name, box._inner))


class Hutch:
    """`with Hutch() as hutch: with hutch.box() as box: ...`, with the arguments of `hutch.Hutch`."""

    def __init__(self, url: str = "", **options: Any) -> None:
        self._set(Portal(), AsyncHutch(url, **options), borrowed=False)

    @classmethod
    def launch(cls, *args: Any, **options: Any) -> Self:
        """Make a client of a private server, which is a child of this process; see `hutch.Hutch.launch`."""
        hutch = cls.__new__(cls)
        hutch._set(Portal(), AsyncHutch.launch(*args, **options), borrowed=False)
        return hutch

    def _set(self, portal: Portal, inner: AsyncHutch, *, borrowed: bool) -> None:
        self._portal = portal
        self._inner = inner
        self._borrowed = borrowed
        """Whether this is a view for another session, which closes nothing."""

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def session(self) -> str:
        return self._inner.session

    def for_session(self, name: str) -> "Hutch":
        """Return a view for another session. Closing it closes nothing."""
        view = Hutch.__new__(Hutch)
        view._set(self._portal, self._inner.for_session(name), borrowed=True)
        return view

    @contextmanager
    def box(self, **spec: Any) -> Iterator[Box]:
        """Create a box that is destroyed at exit."""
        box = self.create(**spec)
        try:
            yield box
        finally:
            box.destroy()

    @contextmanager
    def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> Iterator[Box]:
        """Find the box of this conversation, or create it from `spec`. Leaving releases it and does not destroy it."""
        found = self._inner.box_for(template, kind=kind, spec=spec, **values)
        box = self._portal.run(_enter(found))
        try:
            yield Box(self._portal, box)
        finally:
            self._portal.run(_leave(found))

    create = _wrapping(Box, api.Hutch.create)
    import_box = _wrapping(Box, api.Hutch.import_box)
    attach = _wrapping(Box, api.Hutch.attach)
    observe = _wrapping(Box, api.Hutch.observe)
    find = _blocking(api.Hutch.find)
    boxes = _blocking(api.Hutch.boxes)
    destroy = _blocking(api.Hutch.destroy)
    current = _blocking(api.Hutch.current)
    switch = _wrapping(Box, api.Hutch.switch)
    working = _wrapping(Box, api.Hutch.working)
    leave = _blocking(api.Hutch.leave)
    default = _blocking(api.Hutch.default)
    set_default = _blocking(api.Hutch.set_default)
    events = _blocking(api.Hutch.events)
    providers = _blocking(api.Hutch.providers)
    status = _blocking(api.Hutch.status)

    @property
    def volumes(self) -> Volumes:
        return Volumes(self._portal, self._inner.volumes)

    @property
    def receipts(self) -> Receipts:
        return Receipts(self._portal, self._inner.receipts)

    @property
    def questions(self) -> Questions:
        return Questions(self._portal, self._inner.questions)

    @property
    def skills(self) -> Skills:
        return Skills(self._portal, self._inner.skills)

    def close(self) -> None:
        if not self._borrowed and not self._portal.forked:  # a fork leaves its parent's boxes alone
            self._portal.run(self._inner.close())
            self._portal.close()


async def _enter(found: AbstractAsyncContextManager[T]) -> T:
    return await found.__aenter__()


async def _leave(found: AbstractAsyncContextManager[T]) -> None:
    await found.__aexit__(None, None, None)
