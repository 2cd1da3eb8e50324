"""Watching directories: as a stream (`WatchDir`), or by a watcher whose events a client fetches."""

import asyncio
import posixpath
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec

from hutch.errors import FileMissing, Invalid, NotFound, QuotaExceeded
from hutch.keeper.access.files import GuardedFiles
from hutch.model.files import Change, FileKind
from hutch.server.e2b.agent.connect import Message
from hutch.server.e2b.agent.filesystem import ATTRIBUTES, described, resolved
from hutch.server.e2b.requests import Request

KEEPALIVE: Message = {"keepalive": {}}
MAX_WATCHERS = 100
"""How many watchers a sandbox may have."""
MAX_EVENTS = 10_000
"""How many events a watcher keeps until they are fetched. The oldest are dropped first."""
_TYPES = {
    "created": "EVENT_TYPE_CREATE", "moved_to": "EVENT_TYPE_CREATE", "modified": "EVENT_TYPE_WRITE",
    "attributes": "EVENT_TYPE_CHMOD", "deleted": "EVENT_TYPE_REMOVE", "moved_from": "EVENT_TYPE_RENAME",
}  # fmt: skip
_WITH_ENTRY = frozenset({"created", "modified", "attributes"})


class WatchMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    path: str = ""
    recursive: bool = False
    include_entry: bool = False
    allow_network_mounts: bool = False
    """Boxes have no network mounts, so nothing is refused for being on one."""


class WatcherMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    watcher_id: str


async def watch_dir(request: Request, message: WatchMessage) -> AsyncGenerator[Message, None]:
    """Stream the changes of a directory."""
    path = request.resolve(message.path)
    async with request.files() as files:
        await _check_directory(files, path)
        async with files.watch(path, recursive=message.recursive, attributes=True) as changes:
            yield {"start": {}}
            async for change in changes:
                if (event := await _event(files, path, change, entries=message.include_entry)) is not None:
                    yield {"filesystem": event}


async def _check_directory(files: GuardedFiles, path: str) -> None:
    if (await resolved(files, path)).kind is not FileKind.DIRECTORY:
        raise Invalid(f"path {path} is not a directory")


async def _event(files: GuardedFiles, top: str, change: Change, *, entries: bool) -> Message | None:
    """Return a change as an event of the protocol; None if the protocol has no event for it."""
    kind = _TYPES.get(change.kind)
    name = posixpath.relpath(change.path, top)
    if kind is None or name == ".":
        return None
    event: Message = {"name": name, "type": kind}
    if entries and change.kind in _WITH_ENTRY:
        with suppress(FileMissing):  # It is gone again.
            event["entry"] = described(await files.entry(change.path, ATTRIBUTES))
    return event


class Watcher:
    """Collects the events of one directory until it is removed, or its sandbox ends or pauses."""

    def __init__(self, request: Request, message: WatchMessage) -> None:
        self._request = request
        self._message = message
        self._path = request.resolve(message.path)
        self._changes: deque[Change] = deque()
        # They are held between requests, so no request's account can count them.
        self._account = request.call.service.budget.account(request.call.caller.key_id)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(request.sandboxes.streams.run(request.sandbox, self._collect()))
        self._task.add_done_callback(self._ended)

    async def _collect(self) -> None:
        async with self._request.files() as files:
            await _check_directory(files, self._path)
            async with files.watch(self._path, recursive=self._message.recursive, attributes=True) as changes:
                self._ready.set_result(None)
                async for change in changes:
                    self._keep(change)

    def _keep(self, change: Change) -> None:
        """Add a change. The oldest go while there are too many, or more bytes than the key may have held for it."""
        while len(self._changes) >= MAX_EVENTS:
            self._account.give(_size(self._changes.popleft()))
        while True:
            try:
                self._account.take(_size(change))
            except QuotaExceeded:
                if not self._changes:
                    return
                self._account.give(_size(self._changes.popleft()))
            else:
                self._changes.append(change)
                return

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._account.close()
        error = None if task.cancelled() else task.exception()
        if not self._ready.done():
            self._ready.set_exception(error or NotFound("the watcher was removed"))

    async def ready(self) -> None:
        """Wait until the directory is watched. Raises the error if it cannot be."""
        await self._ready

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def take(self) -> list[Message]:
        """Return the events of every change up to now, and forget them."""
        # The guest handles everything that is ready in one turn of its loop. So after two answers it has sent the
        # changes that happened before the first question, and they came before the second answer.
        async with self._request.files() as files:
            for _ in range(2):
                await files.exists("/")
            await asyncio.sleep(0)
            changes = tuple(self._changes)
            self._changes.clear()
            self._account.give(sum(map(_size, changes)))
            events = [await _event(files, self._path, each, entries=self._message.include_entry) for each in changes]
        return [event for event in events if event is not None]

    def close(self) -> None:
        self._task.cancel()


def _size(change: Change) -> int:
    return 200 + len(change.path)


class Watchers:
    """The watchers of all sandboxes. They are connections: a restart of the server ends them."""

    def __init__(self) -> None:
        self._by_sandbox: dict[str, dict[str, Watcher]] = {}

    def _of(self, sandbox: str) -> dict[str, Watcher]:
        """Return the live watchers of a sandbox, and forget the ended ones of all."""
        for name, watchers in tuple(self._by_sandbox.items()):
            live = {key: watcher for key, watcher in watchers.items() if not watcher.ended}
            if live:
                self._by_sandbox[name] = live
            else:
                del self._by_sandbox[name]
        return self._by_sandbox.setdefault(sandbox, {})

    async def create(self, request: Request, message: WatchMessage) -> Message:
        """Begin to collect the events of a directory."""
        if len(self._of(request.sandbox)) >= MAX_WATCHERS:
            raise QuotaExceeded(f"a sandbox has at most {MAX_WATCHERS} watchers", remedy="remove some")
        watcher = Watcher(request, message)
        try:
            await watcher.ready()
        except BaseException:
            watcher.close()
            raise
        name = secrets.token_hex(8)
        self._of(request.sandbox)[name] = watcher  # Another request may have forgotten an empty collection meanwhile.
        return {"watcherId": name}

    async def events(self, request: Request, message: WatcherMessage) -> Message:
        """Return the events since the last call."""
        return {"events": await self._find(request, message).take()}

    async def remove(self, request: Request, message: WatcherMessage) -> Message:
        """End a watcher."""
        self._find(request, message).close()
        del self._by_sandbox[request.sandbox][message.watcher_id]
        return {}

    def _find(self, request: Request, message: WatcherMessage) -> Watcher:
        watcher = self._of(request.sandbox).get(message.watcher_id)
        if watcher is None:
            raise NotFound(f"watcher with id {message.watcher_id[:40]} not found")
        return watcher
