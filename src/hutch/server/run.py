"""Running the server: open both doors, serve until told to end, finish what runs, leave the boxes where they are."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Generator
from pathlib import Path

import uvicorn

from hutch import logs, telemetry
from hutch.config import Config, announcement, directories
from hutch.errors import ConfigError
from hutch.keeper.keeper import Keeper
from hutch.keeper.keys import Role
from hutch.keeper.store.open_store import open_ledger, open_store
from hutch.logs import log
from hutch.model.record import Record
from hutch.model.spec import Isolation
from hutch.server import discovery, memory
from hutch.server.app import App
from hutch.server.auth import Door
from hutch.server.handlers.mcp_endpoint import Mounts, OwnTools
from hutch.server.handlers.mcp_hosting import HostedMount, Hostings
from hutch.server.http import tls
from hutch.server.http.connections import ACCEPTED_AT_ONCE, raise_limit
from hutch.server.http.peers import UnixHttp, UnixWebSocket
from hutch.server.http.protocol import BoundedHttp, BoundedWebSocket, Protocol, bounded
from hutch.server.routes import May
from hutch.server.service import Service

ORPHAN_GRACE_SECONDS = 900.0
"""Boxes outlive their server this long, unless the configuration says otherwise: time to restart or upgrade it."""
LONGEST_FRAME = 16 << 20
WAITING = 2048
"""Connections that the kernel keeps until they are accepted."""
PARTING_SECONDS = 1.0
"""MCP clients that ask for nothing are let go within it, while their desks can still reach the API."""

Told = Callable[[str], None]


class Ready(Record, frozen=True, kw_only=True):
    """A server that takes requests, as a program that started it wants to know it."""

    pid: int
    socket: str
    url: str
    """Empty: it does not listen on TCP."""
    first_key: str
    """The file with the first admin's key, if this start made one."""
    enabled: bool
    provider: str
    isolation: Isolation
    usable: bool
    """Whether boxes can be made; else `reason` and `remedy` say more."""
    reason: str
    remedy: str
    receipts: str
    taken_over: int
    """Boxes of an earlier server that this one keeps now."""


def prepared(config: Config) -> Config:
    """The configuration as a server uses it."""
    if config.origin("orphan_grace_sec") == "default":
        config = config.but(orphan_grace_sec=ORPHAN_GRACE_SECONDS)
    if config.origin("mount_roots") == "default":
        # The directory a server happens to be started in is no gift to everybody who has a key.
        config = config.but(mount_roots=())
    return config


async def serve(
    config: Config, tell: Told, *, private: bool = False, ready: Callable[[Ready], None] | None = None
) -> None:
    """Until SIGTERM or SIGINT. `tell` gets what a person should read at the start, `ready` is called when it serves.

    A private server is one process's own: it also ends when its standard input does, and its boxes end with it.
    """
    memory.keep_flat()
    logs.take_over()
    raise_limit()
    if sent := telemetry.set_up():
        tell(sent)
    for directory in (config.state_dir, config.run_dir):
        directories.make(directory)
    lock = discovery.Lock(config.state_dir)
    try:
        store, liveness = open_store(config)
        keeper = Keeper(config, store, liveness=liveness, ledger=open_ledger(config, store))
        try:
            await keeper.start()
            await _serve(keeper, tell, ready, _on_signals(until_eof=private))
        finally:
            await (keeper.close() if private else keeper.detach())
    finally:
        lock.release()
        await asyncio.to_thread(telemetry.off)


async def _serve(keeper: Keeper, tell: Told, ready: Callable[[Ready], None] | None, ending: asyncio.Event) -> None:
    config = keeper.config
    service = Service(keeper)
    await asyncio.to_thread(service.spool.clear)
    first_key = await _first_key(service, tell)
    await _tell_rights(service, tell)
    path = Path(config.server.socket) if config.server.socket else config.run_dir / announcement.SOCKET
    table = config.server
    mounts = Mounts()
    mounts.mount("/mcp", lambda: OwnTools(service, path))
    hostings = service.hostings = Hostings(service)
    mounts.mount("/mcp/gateway", lambda: HostedMount(hostings, service), May.CHANGE)
    mounts.mount("/mcp/servers/{name}", lambda: HostedMount(hostings, service), May.CHANGE)
    servers = [(unix_server(service, mounts), discovery.unix_socket(path))]
    url = ""
    try:
        if table.host:
            tcp = discovery.tcp_socket(table.host, table.port)
            servers.append((_tcp_server(service, mounts), tcp))
            url = _url(table.host, tcp.getsockname()[1], tls=bool(table.tls_cert))
        service.metrics.connections = lambda: {
            door: len(server.server_state.connections)
            for door, (server, _) in zip(("unix", "tcp"), servers, strict=False)
        }
        found = await _what_is_there(service, str(path), url, first_key)
        _say(found, tell)
        running = [asyncio.ensure_future(server.serve([listening])) for server, listening in servers]
        for server, _ in servers:
            await server.ready.wait()
        discovery.announce(config.state_dir, socket_path=path, url=url)
        log("server").info("ready", socket=str(path), url=url)
        discovery.notify(ready="1", status=f"listening on {path}" + (f" and {url}" if url else ""))
        if ready is not None:
            ready(found)
        starting = asyncio.ensure_future(hostings.start())
        await asyncio.wait([asyncio.ensure_future(ending.wait()), *running], return_when=asyncio.FIRST_COMPLETED)
        log("server").info("draining", seconds=table.drain_sec)
        discovery.notify(stopping="1", status="finishing what runs")
        service.drain()
        parting = asyncio.ensure_future(mounts.drain(table.drain_sec))
        await asyncio.wait({parting}, timeout=PARTING_SECONDS)
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*running, parting)
        # uvicorn cancels those that took too long, and does not wait for them: commands are being killed there.
        if late := [task for server, _ in servers for task in server.server_state.tasks]:
            await asyncio.wait(late, timeout=table.drain_sec)
        starting.cancel()
        await hostings.close()
        await service.creations.finish(table.drain_sec)
        await service.operations.finish()
    finally:
        for _, listening in servers:
            listening.close()
        discovery.withdraw(config.state_dir, path)
    log("server").info("ended")


class _Server(uvicorn.Server):
    """Two of them run in one process: signals are ours to handle."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(WAITING)  # the kernel keeps more of them than are accepted in one turn
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def unix_server(service: Service, mounts: Mounts) -> _Server:
    app = App(service, Door(service.keys, service.config.server, service.rights_of, unix=True), mounts)
    return _Server(_uvicorn(service, app, http=_bounded(service, UnixHttp), ws=_bounded(service, UnixWebSocket)))


def _tcp_server(service: Service, mounts: Mounts) -> _Server:
    table = service.config.server
    app = App(service, Door(service.keys, table, service.rights_of, unix=False), mounts)
    http, ws = _bounded(service, BoundedHttp), _bounded(service, BoundedWebSocket)
    if not table.tls_cert:
        return _Server(_uvicorn(service, app, http=http, ws=ws))
    try:
        context = tls.server_context(table.tls_cert, table.tls_key)
    except OSError as error:  # ssl.SSLError is one too
        raise ConfigError(
            f"certificate {table.tls_cert} and key {table.tls_key} cannot be used: {error}",
            remedy="check server.tls_cert and server.tls_key",
        ) from error
    return _Server(_uvicorn(service, app, http=tls.TlsDoor(http, context), ws=ws))


def _bounded(service: Service, kind: Protocol) -> Protocol:
    table = service.config.server
    return bounded(
        kind, service.connections, head_seconds=table.body_timeout_sec, read_seconds=table.read_timeout_sec
    )  # fmt: skip


def _uvicorn(service: Service, app: App, **options: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        timeout_keep_alive=75,
        log_config=None,
        access_log=False,
        server_header=False,
        # X-Forwarded-For would let a caller choose who the kernel says he is.
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(service.config.server.drain_sec)),
        ws_max_size=LONGEST_FRAME,
        backlog=ACCEPTED_AT_ONCE,
        loop="asyncio",
        **options,  # type: ignore[arg-type]
    )


def _on_signals(*, until_eof: bool) -> asyncio.Event:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    if until_eof:
        os.set_blocking(0, False)
        loop.add_reader(0, _look_for_end, ending)
    return ending


def _look_for_end(ending: asyncio.Event) -> None:
    """What comes through the pipe is nobody's; that it ends, says that its other end is gone."""
    try:
        if os.read(0, 4096):
            return
    except BlockingIOError:
        return
    asyncio.get_running_loop().remove_reader(0)
    ending.set()


async def _first_key(service: Service, tell: Told) -> str:
    """The first admin's key is made on the first start, and shown to nobody but this user's files; which of them."""
    # Keys of other roles may be there before: without an admin's nobody could make more of them from elsewhere.
    if any(key.role is Role.ADMIN for key in await service.keys.all()):
        return ""
    key, text = await service.keys.create(Role.ADMIN, name="first")
    path = service.config.state_dir / discovery.FIRST_KEY
    discovery.write_private(path, text + "\n")
    tell(f"first admin key {key.id} written to {path}")
    return str(path)


async def _tell_rights(service: Service, tell: Told) -> None:
    """What holds for keys without a word of the operator's, who may have given them out when they could do more."""
    if service.config.rights:
        return
    if any(key.role is Role.USER and key.revoked_at is None for key in await service.keys.all()):
        tell(
            "keys of role user get no root and no private ranges beyond their profile, and no image pulled: "
            "[rights] changes that"
        )


async def _what_is_there(service: Service, path: str, url: str, first_key: str) -> Ready:
    config, keeper = service.config, service.keeper
    found = await keeper.views.status((), service.started_at)
    isolation = (
        (await keeper.engines.current_capabilities(found.provider)).isolation if config.enabled else Isolation.NONE
    )
    return Ready(
        pid=os.getpid(), socket=path, url=url, first_key=first_key, enabled=config.enabled, provider=found.provider,
        isolation=isolation, usable=found.available, reason=found.reason, remedy=found.remedy,
        receipts=config.receipts, taken_over=keeper.taken_over,
    )  # fmt: skip


def _say(found: Ready, tell: Told) -> None:
    """B30: the first lines say what works, and why not."""
    if not found.enabled:
        tell("boxes are switched off: enabled = false")
    elif found.usable:
        tell(f"boxes by {found.provider} ({found.isolation})" + (f": {found.reason}" if found.reason else ""))
    else:
        tell(f"no boxes: {found.provider} cannot be used: {found.reason} (fix: {found.remedy})")
    if found.receipts != "on":
        tell("receipts are strict: answers wait for them" if found.receipts == "strict" else "no receipts are kept")
    tell(f"listening on {found.socket}" + (f" and {found.url}" if found.url else ""))
    if found.taken_over:
        tell(f"{found.taken_over} box{'es' if found.taken_over > 1 else ''} taken over")


def _url(host: str, port: int, *, tls: bool) -> str:
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
