"""A box, its files, jobs and streams without `await`."""

from collections.abc import Iterator
from functools import cached_property
from typing import ParamSpec, Self, TypeVar

from hutch import api
from hutch.model.files import Change
from hutch.model.results import Result
from hutch.model.spec import Adjustment, EffectiveSpec
from hutch.sync.portal import Wrapper, blocking, streaming, wrapping, wrapping_now

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
W = TypeVar("W")


class Watch(Wrapper[api.Watch]):
    """Changes of files: `with box.files.watch() as changes: for change in changes: ...`"""

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.run(self._inner.aclose())

    def __iter__(self) -> Iterator[Change]:
        return self._portal.iterate(self._inner)


class Files(Wrapper[api.Files]):
    """Files of a box; see `hutch.api.Files`."""

    read = blocking(api.Files.read)
    read_text = blocking(api.Files.read_text)
    read_lines = blocking(api.Files.read_lines)
    open = streaming(api.Files.open)
    write = blocking(api.Files.write)
    edit = blocking(api.Files.edit)
    digest = blocking(api.Files.digest)
    stat = blocking(api.Files.stat)
    exists = blocking(api.Files.exists)
    list = blocking(api.Files.list)
    mkdir = blocking(api.Files.mkdir)
    move = blocking(api.Files.move)
    remove = blocking(api.Files.remove)
    glob = blocking(api.Files.glob)
    grep = blocking(api.Files.grep)
    watch = wrapping_now(Watch, api.Files.watch)
    copy_in = blocking(api.Files.copy_in)
    copy_out = blocking(api.Files.copy_out)


class Job(Wrapper[api.Job]):
    """A command that runs in a box; see `hutch.api.Job`."""

    @property
    def id(self) -> str:
        return self._inner.id

    info = blocking(api.Job.info)
    read = blocking(api.Job.read)
    follow = streaming(api.Job.follow)
    write = blocking(api.Job.write)
    close_stdin = blocking(api.Job.close_stdin)
    signal = blocking(api.Job.signal)
    resize = blocking(api.Job.resize)
    wait = blocking(api.Job.wait)


class Stream(Wrapper[api.Stream]):
    """A command read while it runs: iterate, then look at `result`."""

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return self._portal.iterate(aiter(self._inner))

    @property
    def result(self) -> Result:
        return self._inner.result


class PortConnection(Wrapper[api.PortConnection]):
    """A TCP connection to a port of a box; see `hutch.api.PortConnection`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    receive = blocking(api.PortConnection.receive)
    send = blocking(api.PortConnection.send)
    end = blocking(api.PortConnection.end)
    close = blocking(api.PortConnection.close)


class Kernels(Wrapper[api.Kernels]):
    """The code interpreters of a box; see `hutch.api.Kernels`."""

    start = blocking(api.Kernels.start)
    all = blocking(api.Kernels.all)
    run = blocking(api.Kernels.run)
    stream = streaming(api.Kernels.stream)
    interrupt = blocking(api.Kernels.interrupt)
    restart = blocking(api.Kernels.restart)
    remove = blocking(api.Kernels.remove)


class Box(Wrapper[api.Box]):
    """A handle on one box; see `hutch.api.Box`."""

    @cached_property
    def files(self) -> Files:
        return Files(self._portal, self._inner.files)

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(self._portal, self._inner.kernels)

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

    exec = blocking(api.Box.exec)
    stream = wrapping_now(Stream, api.Box.stream)
    start = wrapping(Job, api.Box.start)
    jobs = blocking(api.Box.jobs)
    job = wrapping(Job, api.Box.job)
    forget = blocking(api.Box.forget)
    checkpoint = blocking(api.Box.checkpoint)
    checkpoints = blocking(api.Box.checkpoints)
    delete_checkpoint = blocking(api.Box.delete_checkpoint)
    rollback = blocking(api.Box.rollback)
    undo = blocking(api.Box.undo)
    diff = blocking(api.Box.diff)

    def fork(self, count: int = 1, *, checkpoint: str = "", kernel: bool = False) -> "tuple[Box, ...]":
        made = self._portal.run(self._inner.fork(count, checkpoint=checkpoint, kernel=kernel))
        return tuple(Box(self._portal, fork) for fork in made)

    merge = blocking(api.Box.merge)
    attempt = blocking(api.Box.attempt)
    connect = wrapping(PortConnection, api.Box.connect)
    ports = blocking(api.Box.ports)
    url = blocking(api.Box.url)
    previews = blocking(api.Box.previews)
    revoke = blocking(api.Box.revoke)
    python = blocking(api.Box.python)
    code = blocking(api.Box.code)
    usage = blocking(api.Box.usage)
    info = blocking(api.Box.info)
    ready = blocking(api.Box.ready)
    state = blocking(api.Box.state)
    pause = blocking(api.Box.pause)
    resume = blocking(api.Box.resume)
    stop = blocking(api.Box.stop)
    rename = blocking(api.Box.rename)
    change = blocking(api.Box.change)
    move_to = blocking(api.Box.move_to)
    renew = blocking(api.Box.renew)
    release = blocking(api.Box.release)
    export = blocking(api.Box.export)
    destroy = blocking(api.Box.destroy)
