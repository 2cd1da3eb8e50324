"""`Hutch` without `await`."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, ParamSpec, Self, TypeVar

from hutch import api
from hutch.api.race import Race
from hutch.front import Hutch as AsyncHutch
from hutch.model.boxes import Event
from hutch.sync.boxes import Box
from hutch.sync.portal import Portal, Wrapper, blocking, wrapping
from hutch.sync.resources import App, Apps, McpServers, Questions, Receipts, Skills, Volumes

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
W = TypeVar("W")


class Hutch(Wrapper[AsyncHutch]):
    """`with Hutch() as hutch: with hutch.box() as box: ...`, with the arguments of `hutch.Hutch`."""

    def __init__(self, url: str = "", **options: Any) -> None:
        self._set(Portal(), AsyncHutch(url, **options))

    @classmethod
    def launch(cls, *args: Any, **options: Any) -> Self:
        """Make a client of a private server, which is a child of this process; see `hutch.Hutch.launch`."""
        hutch = cls.__new__(cls)
        hutch._set(Portal(), AsyncHutch.launch(*args, **options))
        return hutch

    def _set(self, portal: Portal, inner: AsyncHutch, *, borrowed: bool = False) -> None:
        super().__init__(portal, inner)
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

    def race(
        self, box: Box, count: int, task: Callable[[Box, int], Any], score: Callable[[Box, Any], float | None]
    ) -> Race:
        """Run a task in `count` forks of a box at once, each in a thread of its own; see `hutch.Hutch.race`."""

        async def run(fork: api.Box, number: int) -> Any:
            return await asyncio.to_thread(task, Box(self._portal, fork), number)

        async def rate(fork: api.Box, result: Any) -> float | None:
            return await asyncio.to_thread(score, Box(self._portal, fork), result)

        return self._portal.run(self._inner.race(box._inner, count, run, rate))

    app = wrapping(App, AsyncHutch.app)
    create = wrapping(Box, api.Hutch.create)
    plan = blocking(api.Hutch.plan)
    import_box = wrapping(Box, api.Hutch.import_box)
    attach = wrapping(Box, api.Hutch.attach)
    observe = wrapping(Box, api.Hutch.observe)
    administer = wrapping(Box, api.Hutch.administer)
    find = blocking(api.Hutch.find)
    boxes = blocking(api.Hutch.boxes)
    destroy = blocking(api.Hutch.destroy)
    current = blocking(api.Hutch.current)
    switch = wrapping(Box, api.Hutch.switch)
    working = wrapping(Box, api.Hutch.working)
    leave = blocking(api.Hutch.leave)
    default = blocking(api.Hutch.default)
    set_default = blocking(api.Hutch.set_default)
    events = blocking(api.Hutch.events)
    providers = blocking(api.Hutch.providers)
    status = blocking(api.Hutch.status)
    metrics = blocking(api.Hutch.metrics)
    shutdown = blocking(api.Hutch.shutdown)

    def on_created(self, hook: Callable[[Box], None]) -> None:
        """Run `hook` in a thread with each new box; see `hutch.api.Hutch.on_created`."""

        async def run(box: api.Box) -> None:
            await asyncio.to_thread(hook, Box(self._portal, box))

        self._portal.run(self._inner.on_created(run))

    def on_destroyed(self, hook: Callable[[Event], None]) -> None:
        """Run `hook` in a thread with the event of each box that is gone; see `hutch.api.Hutch.on_destroyed`."""

        async def run(event: Event) -> None:
            await asyncio.to_thread(hook, event)

        self._portal.run(self._inner.on_destroyed(run))

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

    @property
    def apps(self) -> Apps:
        return Apps(self._portal, self._inner.apps)

    @property
    def mcp_servers(self) -> McpServers:
        return McpServers(self._portal, self._inner.mcp_servers)

    def close(self) -> None:
        if not self._borrowed and not self._portal.forked:  # a fork leaves its parent's boxes alone
            self._portal.run(self._inner.close())
            self._portal.close()


async def _enter(found: AbstractAsyncContextManager[T]) -> T:
    return await found.__aenter__()


async def _leave(found: AbstractAsyncContextManager[T]) -> None:
    await found.__aexit__(None, None, None)
