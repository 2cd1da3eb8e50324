"""Runs the server, as a process of its own (`serve`) or inside a process that embeds Hutch (`EmbeddedServer`)."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from hutch import logs, telemetry
from hutch.config import Config, announcement, directories
from hutch.errors import ConfigError
from hutch.keeper.keeper import Keeper
from hutch.keeper.keys import Role
from hutch.keeper.store.open_store import open_ledger, open_store
from hutch.logs import log
from hutch.model.record import Record
from hutch.model.spec import Isolation
from hutch.server import discovery
from hutch.server.app import App
from hutch.server.auth import Authenticator
from hutch.server.dashboard.handlers import link_path
from hutch.server.dashboard.sign_ins import LOCAL
from hutch.server.doors import open_doors
from hutch.server.handlers.mcp_endpoint import Mounts, OwnTools
from hutch.server.handlers.mcp_hosting import HostedMount, Hostings
from hutch.server.http import tls
from hutch.server.http.connections import raise_limit
from hutch.server.http.server import HttpServer, tcp_server, unix_server
from hutch.server.routes import May
from hutch.server.service import Service
from hutch.server.state.budget import configure_allocator

ORPHAN_GRACE_SECONDS = 900.0
"""Seconds that boxes outlive their server by default: time to restart or upgrade it."""
MCP_CLOSE_SECONDS = 1.0
"""Idle MCP sessions are closed within this time, while they can still reach the API."""

Report = Callable[[str], None]
"""Shows one line to the person who started the server."""


class Ready(Record, frozen=True, kw_only=True):
    """The state of a server that accepts requests, for the program that started it."""

    pid: int
    socket: str
    url: str
    """Empty if the server does not listen on TCP."""
    first_key: str
    """The file with the first admin key, if this start created one."""
    enabled: bool
    provider: str
    isolation: Isolation
    usable: bool
    """Whether boxes can be created; if not, `reason` and `remedy` say more."""
    reason: str
    remedy: str
    receipts: str
    taken_over: int
    """The number of boxes taken over from an earlier server."""


def prepared(config: Config) -> Config:
    """The configuration with the defaults of a server."""
    if config.origin("orphan_grace_sec") == "default":
        config = config.but(orphan_grace_sec=ORPHAN_GRACE_SECONDS)
    if config.origin("mount_roots") == "default":
        # Holders of a key must not get to mount the directory in which the server happens to be started.
        config = config.but(mount_roots=())
    return config


async def serve(
    config: Config, report: Report, *, private: bool = False, ready: Callable[[Ready], None] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, finish running requests, and leave the boxes running.

    `report` gets lines for a person at the start; `ready` is called once the server accepts requests. A private server
    belongs to one process: it also ends when its standard input does, and its boxes end with it.
    """
    configure_allocator()
    logs.take_over()
    raise_limit()
    if destination := telemetry.set_up():
        report(destination)
    for directory in (config.state_dir, config.run_dir):
        directories.make(directory)
    lock = discovery.Lock(config.state_dir)
    try:
        store, liveness = open_store(config)
        keeper = Keeper(config, store, liveness=liveness, ledger=open_ledger(config, store))
        try:
            await keeper.start()
            await _serve(keeper, report, ready, _on_signals(until_eof=private))
        finally:
            await (keeper.close() if private else keeper.detach())
    finally:
        lock.release()
        await asyncio.to_thread(telemetry.off)


async def _serve(
    keeper: Keeper, report: Report, ready: Callable[[Ready], None] | None, stop_requested: asyncio.Event
) -> None:
    config = keeper.config
    service = Service(keeper)
    service.stop_requested = stop_requested
    await asyncio.to_thread(service.spool.clear)
    first_key = await _create_first_key(service, report)
    await _report_default_rights(service, report)
    path = Path(config.server.socket) if config.server.socket else config.run_dir / announcement.SOCKET
    table = config.server
    mounts = Mounts()
    mounts.mount("/mcp", lambda: OwnTools(service, path))
    hostings = service.hostings = Hostings(service)
    mounts.mount("/mcp/gateway", lambda: HostedMount(hostings, service), May.CHANGE)
    mounts.mount("/mcp/servers/{name}", lambda: HostedMount(hostings, service), May.CHANGE)
    apps = [_app(service, mounts, unix=True)]
    servers = [(unix_server(apps[0], table, service.connections), discovery.unix_socket(path))]
    url = ""
    try:
        if table.host:
            tcp = discovery.tcp_socket(table.host, table.port)
            apps.append(_app(service, mounts, unix=False))
            servers.append((_tcp_server(apps[1], service), tcp))
            url = _url(table.host, tcp.getsockname()[1], tls=bool(table.tls_cert))
            service.previews.listen(url)
        service.metrics.connections = lambda: {
            name: server.open_connections for name, (server, _) in zip(("unix", "tcp"), servers, strict=False)
        }
        state = await _ready_state(service, str(path), url, first_key)
        _report_state(state, report)
        if url:
            report(f"dashboard: {_dashboard_link(service, announcement.browser_url(url))}")
        running = [asyncio.ensure_future(server.serve([listening])) for server, listening in servers]
        for server, _ in servers:
            await server.ready.wait()
        discovery.announce(config.state_dir, socket_path=path, url=url)
        log("server").info("ready", socket=str(path), url=url)
        discovery.notify(ready="1", status=f"listening on {path}" + (f" and {url}" if url else ""))
        if ready is not None:
            ready(state)
        # Protocols that only TCP serves load their records once.
        starting = asyncio.gather(hostings.start(), *(app.doors.start() for app in apps[1:]))
        recording = asyncio.ensure_future(service.history.record())
        stopping = asyncio.ensure_future(stop_requested.wait())
        await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        log("server").info("draining", seconds=table.drain_sec)
        discovery.notify(stopping="1", status="finishing what runs")
        starting.cancel()
        recording.cancel()
        service.drain()
        draining = asyncio.gather(mounts.drain(table.drain_sec), *(app.doors.drain(table.drain_sec) for app in apps))
        await asyncio.wait({draining}, timeout=MCP_CLOSE_SECONDS)
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*running, draining)
        # Commands are being killed in these requests, which uvicorn does not wait for.
        if unfinished := [task for server, _ in servers for task in server.unfinished_requests]:
            await asyncio.wait(unfinished, timeout=table.drain_sec)
        await hostings.close()
        await service.keeper.creations.finish(table.drain_sec)
        await service.operations.finish()
    finally:
        for _, listening in servers:
            listening.close()
        discovery.withdraw(config.state_dir, path)
    log("server").info("ended")


class EmbeddedServer:
    """Serves the keeper of an embedding process to other processes on the same state directory.

    It listens on any number of Unix sockets, to which only this user and root may connect, and never on TCP.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._service = Service(keeper)
        self._service.hostings = Hostings(self._service)
        self._running: list[tuple[asyncio.Task[None], asyncio.Event]] = []

    def listen(self, listening: socket.socket) -> None:
        """Serve a bound and listening socket, which is closed with the server."""
        stop_requested = asyncio.Event()
        task = asyncio.create_task(self._serve(listening, stop_requested), name="hutch-embedded-server")
        self._running.append((task, stop_requested))

    async def _serve(self, listening: socket.socket, stop_requested: asyncio.Event) -> None:
        app = _app(self._service, Mounts(), unix=True)
        server = unix_server(app, self._service.config.server, self._service.connections)
        serving = asyncio.create_task(server.serve([listening]))
        stopping = asyncio.create_task(stop_requested.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            await serving
        except Exception as error:  # The task's boundary: other processes lose their server, this one goes on.
            log("server").error("the server for other processes ended", error=error)
        finally:
            stopping.cancel()

    async def close(self) -> None:
        """Let running requests finish, then close every socket."""
        self._service.drain()
        for _, stop_requested in self._running:
            stop_requested.set()
        await asyncio.gather(*(task for task, _ in self._running))
        await self._service.keeper.creations.finish(self._service.config.server.drain_sec)
        await self._service.operations.finish()


def _tcp_server(app: App, service: Service) -> HttpServer:
    table = service.config.server
    try:
        context = tls.server_context(table.tls_cert, table.tls_key) if table.tls_cert else None
    except OSError as error:  # ssl.SSLError is a subclass.
        raise ConfigError(
            f"certificate {table.tls_cert} and key {table.tls_key} cannot be used: {error}",
            remedy="check server.tls_cert and server.tls_key",
        ) from error
    return tcp_server(app, table, service.connections, context)


def _app(service: Service, mounts: Mounts, *, unix: bool) -> App:
    auth = Authenticator(service.keys, service.sign_ins, service.config.server, service.rights_of_key, unix=unix)
    return App(service, auth, mounts, open_doors(service, auth))


def _on_signals(*, until_eof: bool) -> asyncio.Event:
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    if until_eof:
        os.set_blocking(0, False)
        loop.add_reader(0, _check_stdin, stop_requested)
    return stop_requested


def _check_stdin(stop_requested: asyncio.Event) -> None:
    """Stop when standard input ends, because the process at its other end is gone; its data is ignored."""
    try:
        if os.read(0, 4096):
            return
    except BlockingIOError:
        return
    asyncio.get_running_loop().remove_reader(0)
    stop_requested.set()


def _dashboard_link(service: Service, url: str) -> str:
    """Return a link that signs in, for a person at this machine; a log, which others may read, gets none."""
    if not sys.stderr.isatty():
        return f"{url} (`hutch dashboard` opens it, signed in)"
    return f"{url}{link_path(service.sign_ins.create_link(LOCAL).code)} (signs in once, within 10 minutes)"


async def _create_first_key(service: Service, report: Report) -> str:
    """Create the first admin key on the first start; returns the private file in which it was written."""
    # Keys of other roles may exist already, but without an admin key nobody could create more of them remotely.
    if any(key.role is Role.ADMIN for key in await service.keys.all()):
        return ""
    key, text = await service.keys.create(Role.ADMIN, name="first")
    path = service.config.state_dir / discovery.FIRST_KEY
    discovery.write_private(path, text + "\n")
    report(f"first admin key {key.id} written to {path}")
    return str(path)


async def _report_default_rights(service: Service, report: Report) -> None:
    """Report the default rights of user keys: an operator may have given keys out when they could do more."""
    if service.config.rights:
        return
    if any(key.role is Role.USER and key.revoked_at is None for key in await service.keys.all()):
        report(
            "keys of role user get no root and no private ranges beyond their profile, and no image pulled: "
            "[rights] changes that"
        )


async def _ready_state(service: Service, path: str, url: str, first_key: str) -> Ready:
    config, keeper = service.config, service.keeper
    state = await keeper.views.status((), service.started_at)
    isolation = (
        (await keeper.engines.current_capabilities(state.provider)).isolation if config.enabled else Isolation.NONE
    )
    return Ready(
        pid=os.getpid(), socket=path, url=url, first_key=first_key, enabled=config.enabled, provider=state.provider,
        isolation=isolation, usable=state.available, reason=state.reason, remedy=state.remedy,
        receipts=config.receipts, taken_over=keeper.taken_over,
    )  # fmt: skip


def _report_state(state: Ready, report: Report) -> None:
    """Report what works, and what does not work and why."""
    if not state.enabled:
        report("boxes are switched off: enabled = false")
    elif state.usable:
        report(f"boxes by {state.provider} ({state.isolation})" + (f": {state.reason}" if state.reason else ""))
    else:
        report(f"no boxes: {state.provider} cannot be used: {state.reason} (fix: {state.remedy})")
    if state.receipts != "on":
        report("receipts are strict: answers wait for them" if state.receipts == "strict" else "no receipts are kept")
    report(f"listening on {state.socket}" + (f" and {state.url}" if state.url else ""))
    if state.taken_over:
        report(f"{state.taken_over} box{'es' if state.taken_over > 1 else ''} taken over")


def _url(host: str, port: int, *, tls: bool) -> str:
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
