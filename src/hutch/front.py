"""The public `Hutch`: embedded, or a client of a server. Which one is chosen here, and nothing else."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from hutch import api
from hutch.config import Config, announcement
from hutch.errors import ConfigError, Invalid

if TYPE_CHECKING:
    from hutch.client.heartbeat import ConnectionListener, Rhythm
    from hutch.client.remote import RemoteHutch
    from hutch.keeper.keeper import Keeper

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


def _passed(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate["Hutch", P], T]:
    """The method of that name on the chosen form, with the signature that `hutch.api` gives it."""
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

    `session` names who holds the leases; `told` is called when a server is lost and when it is back; `keeper` is one
    that the application has made itself. All other keyword arguments are fields of the configuration (`state_dir=`,
    `provider=`, `enabled=`, ...); they win over `hutch.toml` and `HUTCH_*`.
    """

    config: Config
    """Of this process; a server has its own."""

    def __init__(
        self, url: str = "", *, key: str = "", ca: str = "", session: str = "", rhythm: "Rhythm | None" = None,
        told: "ConnectionListener | None" = None, keeper: "Keeper | None" = None, **configuration: Any,
    ) -> None:  # fmt: skip
        self.config = Config.load(**configuration) if keeper is None else keeper.config
        if keeper is None:
            self._inner = _choose(self.config, url, key, ca, session, rhythm, told)
        else:
            self._inner = _embedded(keeper, session)

    @classmethod
    def launch(
        cls, state_dir: str | os.PathLike[str] | None = None, *, session: str = "", rhythm: "Rhythm | None" = None,
        told: "ConnectionListener | None" = None, **configuration: Any,
    ) -> Self:  # fmt: skip
        """A private server as a child of this process, on a Unix socket, and its client (B22).

        The child is started when the object is entered or first used, ends with this process, and is started again if
        it dies. If it cannot be started nothing is raised: `status()` says why. Without `state_dir` its boxes and
        records end with it.
        """
        from hutch.client.disabled import OffHutch
        from hutch.client.launch import LaunchedHutch

        made = cls.__new__(cls)
        config = made.config = Config.load(**configuration)
        if not config.enabled:
            made._inner = OffHutch(config.origin("enabled"))
        else:
            home = Path(state_dir) if state_dir is not None else None
            made._inner = LaunchedHutch(home, configuration, session=session, rhythm=rhythm, on_change=told)
        return made

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    @property
    def session(self) -> str:
        """Who holds the leases that this object acquires."""
        return cast(str, self._inner.session)

    def for_session(self, name: str) -> "Hutch":
        """The same boxes through the eyes of another session. Closing it closes nothing."""
        view = Hutch.__new__(Hutch)
        view.config = self.config
        view._inner = self._inner.for_session(name)
        return view

    box = _passed(api.Hutch.box)
    create = _passed(api.Hutch.create)
    box_for = _passed(api.Hutch.box_for)
    import_box = _passed(api.Hutch.import_box)
    attach = _passed(api.Hutch.attach)
    observe = _passed(api.Hutch.observe)
    find = _passed(api.Hutch.find)
    boxes = _passed(api.Hutch.boxes)
    destroy = _passed(api.Hutch.destroy)
    current = _passed(api.Hutch.current)
    switch = _passed(api.Hutch.switch)
    working = _passed(api.Hutch.working)
    leave = _passed(api.Hutch.leave)
    default = _passed(api.Hutch.default)
    set_default = _passed(api.Hutch.set_default)
    events = _passed(api.Hutch.events)
    providers = _passed(api.Hutch.providers)
    status = _passed(api.Hutch.status)
    close = _passed(api.Hutch.close)

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


def client_of_server(
    config: Config, url: str = "", *, key: str = "", ca: str = "", session: str = "", rhythm: "Rhythm | None" = None,
    told: "ConnectionListener | None" = None,
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
    return RemoteHutch(place, key=key, ca=ca, session=session, rhythm=rhythm, on_change=told, expected=bool(owner))


def _choose(
    config: Config,
    url: str,
    key: str,
    ca: str,
    session: str,
    rhythm: "Rhythm | None",
    told: "ConnectionListener | None",
) -> Any:
    if not config.enabled:
        from hutch.client.disabled import OffHutch

        return OffHutch(config.origin("enabled"))
    client = client_of_server(config, url, key=key, ca=ca, session=session, rhythm=rhythm, told=told)
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
    """From HUTCH_KEY, else from the file that `key_file` names; never from a command line, where others can see it."""
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
