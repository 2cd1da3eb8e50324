"""The public `Hutch`, and the decision who keeps the boxes: this process, or a server whose client it then is."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from hutch import api
from hutch.api.apps import ANSWER_SECONDS
from hutch.config import Config, announcement
from hutch.errors import ConfigError, Invalid

if TYPE_CHECKING:
    from hutch.api.race import Race, Score, Task
    from hutch.client.remote import RemoteHutch
    from hutch.client.transport.heartbeat import ConnectionListener, Rhythm
    from hutch.keeper.keeper import Keeper
    from hutch.mcp.hosting.local import LocalMcpServers

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


def _forwarded(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate["Hutch", P], T]:
    """Forward a method to the chosen form, with the signature that `hutch.api` gives it.

    The hop only passes on, but `Hutch` has to be one class for callers and type checkers, whichever form it has chosen.
    """
    name = method.__name__

    def call(self: "Hutch", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, getattr(self._inner, name)(*args, **kwargs))

    call.__name__, call.__doc__ = name, method.__doc__
    return call


class Hutch:
    """`async with Hutch() as hutch: async with hutch.box() as box: ...`

    Without an address this process keeps its own boxes, unless a server owns the state directory: then it becomes that
    server's client, and the server's configuration counts. `Hutch("http://host:7300", key=…)`, `Hutch("https://…",
    key=…, ca=…)` and `Hutch("unix:/path")` are clients, with the same methods.

    `session` names the holder of the leases; `on_connection_change` is called when a server is lost and when it is
    back; `keeper` is a keeper that the application has made itself. All other keyword arguments are fields of the
    configuration (`state_dir=`, `provider=`, `enabled=`, ...); they win over `hutch.toml` and `HUTCH_*`.
    """

    config: Config
    """The configuration of this process; a server has its own."""

    def __init__(
        self, url: str = "", *, key: str = "", ca: str = "", session: str = "", rhythm: "Rhythm | None" = None,
        on_connection_change: "ConnectionListener | None" = None, keeper: "Keeper | None" = None, **configuration: Any,
    ) -> None:  # fmt: skip
        self._mcp_servers: LocalMcpServers | None = None
        self._root = self
        """The object that was opened: views for other sessions share its MCP servers and close nothing."""
        self.config = Config.load(**configuration) if keeper is None else keeper.config
        if keeper is None:
            self._inner = _choose(self.config, url, key, ca, session, rhythm, on_connection_change)
        else:
            self._inner = _embedded(keeper, session)

    @classmethod
    def launch(
        cls, state_dir: str | os.PathLike[str] | None = None, *, session: str = "", rhythm: "Rhythm | None" = None,
        on_connection_change: "ConnectionListener | None" = None, **configuration: Any,
    ) -> Self:  # fmt: skip
        """Make a client of a private server, which is a child of this process on a Unix socket.

        The child is started when the object is entered or first used, ends with this process, and is started again if
        it dies. If it cannot be started nothing is raised: `status()` says why. Without `state_dir` its boxes and
        records end with it.
        """
        from hutch.client.disabled import DisabledHutch
        from hutch.client.launch import LaunchedHutch

        hutch = cls.__new__(cls)
        hutch._mcp_servers, hutch._root = None, hutch
        config = hutch.config = Config.load(**configuration)
        if not config.enabled:
            hutch._inner = DisabledHutch(config.origin("enabled"))
        else:
            home = Path(state_dir) if state_dir is not None else None
            hutch._inner = LaunchedHutch(
                home, configuration, session=session, rhythm=rhythm, on_change=on_connection_change
            )
        return hutch

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_mcp_servers()
        await self._inner.__aexit__(kind, error, trace)

    @property
    def session(self) -> str:
        """The session that holds the leases which this object acquires."""
        return cast(str, self._inner.session)

    def for_session(self, name: str) -> "Hutch":
        """Return a view for another session. Closing it closes nothing."""
        view = Hutch.__new__(Hutch)
        view._mcp_servers, view._root = None, self._root
        view.config = self.config
        view._inner = self._inner.for_session(name)
        return view

    box = _forwarded(api.Hutch.box)

    async def race(self, box: api.Box, count: int, task: "Task", score: "Score") -> "Race":
        """Run a task in `count` forks of a box at once, and merge the fork with the highest score into the box.

        `task(fork, number)` works in a fork; `score(fork, result)` rates it, None is out of the race. Whatever happens,
        the forks are destroyed. Raises: as `Box.fork` and `Box.merge`.
        """
        from hutch.api.race import race

        return await race(box, count, task, score)

    async def app(
        self, template: str, name: str = "", /, *, port: int = 0, wait_sec: float = ANSWER_SECONDS, **spec: Any
    ) -> api.App:
        """Make a web application in a box of its own, and wait until it answers; a `wait_sec` of 0 does not wait.

        `template` is react, vue, next, express, fastapi, flask or static; `spec` is that of its box.
        If it does not come to answer, its box is destroyed. Raises: as `Apps.create` and `Apps.wait`.
        """
        apps = self.apps
        app = api.App(apps, await apps.create(template, name, port=port, **spec))
        try:
            if wait_sec:
                await app.wait(wait_sec)
        except BaseException:
            await app.destroy()
            raise
        return app

    create = _forwarded(api.Hutch.create)
    plan = _forwarded(api.Hutch.plan)
    box_for = _forwarded(api.Hutch.box_for)
    import_box = _forwarded(api.Hutch.import_box)
    attach = _forwarded(api.Hutch.attach)
    observe = _forwarded(api.Hutch.observe)
    administer = _forwarded(api.Hutch.administer)
    find = _forwarded(api.Hutch.find)
    boxes = _forwarded(api.Hutch.boxes)
    destroy = _forwarded(api.Hutch.destroy)
    current = _forwarded(api.Hutch.current)
    switch = _forwarded(api.Hutch.switch)
    working = _forwarded(api.Hutch.working)
    leave = _forwarded(api.Hutch.leave)
    default = _forwarded(api.Hutch.default)
    set_default = _forwarded(api.Hutch.set_default)
    on_created = _forwarded(api.Hutch.on_created)
    on_destroyed = _forwarded(api.Hutch.on_destroyed)
    metrics = _forwarded(api.Hutch.metrics)
    events = _forwarded(api.Hutch.events)
    providers = _forwarded(api.Hutch.providers)
    status = _forwarded(api.Hutch.status)

    async def shutdown(self) -> None:
        """End the server; an embedded Hutch closes."""
        await self._close_mcp_servers()
        await self._inner.shutdown()

    async def close(self) -> None:
        await self._close_mcp_servers()
        await self._inner.close()

    async def _close_mcp_servers(self) -> None:
        if self._mcp_servers is not None:
            await self._mcp_servers.close()

    @property
    def volumes(self) -> api.Volumes:
        return cast(api.Volumes, self._inner.volumes)

    @property
    def receipts(self) -> api.Receipts:
        return cast(api.Receipts, self._inner.receipts)

    @property
    def questions(self) -> api.Questions:
        return cast(api.Questions, self._inner.questions)

    @property
    def skills(self) -> api.Skills:
        return cast(api.Skills, self._inner.skills)

    @property
    def apps(self) -> api.Apps:
        return cast(api.Apps, self._inner.apps)

    @property
    def mcp_servers(self) -> api.McpServers:
        """The MCP servers of the server, or those that this process hosts while it is open."""
        if hasattr(type(self._inner), "mcp_servers"):
            return cast(api.McpServers, self._inner.mcp_servers)
        root = self._root
        if root._mcp_servers is None:
            from hutch.mcp.hosting.local import LocalMcpServers

            root._mcp_servers = LocalMcpServers(root._inner, root.config)
        return root._mcp_servers


def client_of_server(
    config: Config, url: str = "", *, key: str = "", ca: str = "", session: str = "", rhythm: "Rhythm | None" = None,
    on_change: "ConnectionListener | None" = None,
) -> "RemoteHutch | None":  # fmt: skip
    """Decide who keeps the boxes: make a client if that is a server, return None if it is this process.

    A server keeps them if it was named, or if one owns the state directory.
    """
    url = url or config.server_url
    owner = "" if url or config.store == "memory" else announcement.owner_of(config.state_dir)
    if not url and not owner:
        return None
    from hutch.client.remote import RemoteHutch

    key = key or ("" if owner else found_key(config))
    ca = ca or str(config.server_ca or "")
    place = url or f"unix:{owner}"
    return RemoteHutch(place, key=key, ca=ca, session=session, rhythm=rhythm, on_change=on_change, expected=bool(owner))


def _choose(
    config: Config,
    url: str,
    key: str,
    ca: str,
    session: str,
    rhythm: "Rhythm | None",
    on_connection_change: "ConnectionListener | None",
) -> Any:
    if not config.enabled:
        from hutch.client.disabled import DisabledHutch

        return DisabledHutch(config.origin("enabled"))
    client = client_of_server(
        config, url, key=key, ca=ca, session=session, rhythm=rhythm, on_change=on_connection_change
    )
    if client is not None:
        return client
    if key or ca:
        raise Invalid("a key is for a server, and none was named", remedy="give its address: Hutch(url, key=…)")
    from hutch.keeper.embedded import open_process_keeper

    if config.store == "memory" or not hasattr(socket, "AF_UNIX"):
        return _embedded(open_process_keeper(config), session)
    from hutch.shared import SharedHutch

    shared = SharedHutch(keeper=open_process_keeper(config))
    shared.session = session or shared.session
    return shared


def _embedded(keeper: "Keeper", session: str) -> Any:
    from hutch.keeper.embedded import Hutch as EmbeddedHutch

    made = EmbeddedHutch(keeper=keeper)
    made.session = session or made.session
    return made


def found_key(config: Config) -> str:
    """Read the key from HUTCH_KEY or `key_file`; never from a command line, where other users can see it."""
    if key := os.environ.get("HUTCH_KEY", "").strip():
        return key
    if config.key_file is None:
        return ""
    try:
        return config.key_file.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"{config.origin('key_file')}: the key in {config.key_file} cannot be read: {error.strerror}",
            details={"field": "key_file"},
        ) from error
