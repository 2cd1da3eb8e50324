"""Volumes, receipts, questions, MCP servers and skills without `await`."""

from typing import ParamSpec, Self, TypeVar

from hutch import api
from hutch.model.skills import SkillInfo, SkillPlace
from hutch.sync.boxes import Box
from hutch.sync.portal import Portal, Wrapper, blocking, streaming

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
W = TypeVar("W")


class Volumes(Wrapper[api.Volumes]):
    """Named directories that outlive boxes; see `hutch.api.Volumes`."""

    create = blocking(api.Volumes.create)
    all = blocking(api.Volumes.all)
    get = blocking(api.Volumes.get)
    remove = blocking(api.Volumes.remove)


class Receipts(Wrapper[api.Receipts]):
    """The record of what was done to boxes; see `hutch.api.Receipts`."""

    list = blocking(api.Receipts.list)
    chains = blocking(api.Receipts.chains)
    verify = blocking(api.Receipts.verify)
    export = streaming(api.Receipts.export)
    note = blocking(api.Receipts.note)


class Questions(Wrapper[api.Questions]):
    """Questions of agents that a person has to decide; see `hutch.api.Questions`."""

    waiting = blocking(api.Questions.waiting)
    answer = blocking(api.Questions.answer)
    ask = blocking(api.Questions.ask)


class Apps(Wrapper[api.Apps]):
    """Web applications in boxes; see `hutch.api.Apps`."""

    templates = blocking(api.Apps.templates)
    create = blocking(api.Apps.create)
    all = blocking(api.Apps.all)
    get = blocking(api.Apps.get)
    wait = blocking(api.Apps.wait)
    url = blocking(api.Apps.url)
    logs = blocking(api.Apps.logs)
    start = blocking(api.Apps.start)
    stop = blocking(api.Apps.stop)
    remove = blocking(api.Apps.remove)


class App(Wrapper[api.App]):
    """A handle on one app, for use with `with`, which destroys its box at the end; see `hutch.api.App`."""

    def __init__(self, portal: Portal, inner: api.App) -> None:
        super().__init__(portal, inner)
        self.box_id = inner.box_id
        self.name = inner.name
        self.template = inner.template
        self.port = inner.port

    info = blocking(api.App.info)
    wait = blocking(api.App.wait)
    url = blocking(api.App.url)
    logs = blocking(api.App.logs)
    start = blocking(api.App.start)
    stop = blocking(api.App.stop)
    destroy = blocking(api.App.destroy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


class McpServers(Wrapper[api.McpServers]):
    """MCP servers in boxes; see `hutch.api.McpServers`."""

    all = blocking(api.McpServers.all)
    info = blocking(api.McpServers.info)
    add = blocking(api.McpServers.add)
    remove = blocking(api.McpServers.remove)
    start = blocking(api.McpServers.start)
    stop = blocking(api.McpServers.stop)
    restart = blocking(api.McpServers.restart)
    logs = blocking(api.McpServers.logs)
    tools = blocking(api.McpServers.tools)
    call = blocking(api.McpServers.call)


class Skills(Wrapper[api.Skills]):
    """Skill packages; see `hutch.api.Skills`."""

    all = blocking(api.Skills.all)
    get = blocking(api.Skills.get)
    body = blocking(api.Skills.body)
    files = blocking(api.Skills.files)
    read_file = blocking(api.Skills.read_file)
    versions = blocking(api.Skills.versions)
    export = blocking(api.Skills.export)
    scan = blocking(api.Skills.scan)
    preview = blocking(api.Skills.preview)
    install = blocking(api.Skills.install)
    create = blocking(api.Skills.create)
    write_file = blocking(api.Skills.write_file)
    remove_file = blocking(api.Skills.remove_file)
    upgrade = blocking(api.Skills.upgrade)
    rollback = blocking(api.Skills.rollback)
    pin = blocking(api.Skills.pin)
    unpin = blocking(api.Skills.unpin)
    remove = blocking(api.Skills.remove)
    bindings = blocking(api.Skills.bindings)
    bind = blocking(api.Skills.bind)

    def save(self, name: str, box: Box, path: str = "") -> SkillInfo:
        """Make a new version of what was edited in a box."""
        return self._portal.run(self._inner.save(name, box._inner, path))

    def prepare(self, name: str, box: Box) -> SkillPlace:
        """Make a skill ready in a box."""
        return self._portal.run(self._inner.prepare(name, box._inner))
