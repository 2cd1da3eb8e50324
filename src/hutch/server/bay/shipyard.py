"""The older Shipyard API below `/shipyard`, for AstrBot's booter `shipyard`.

Each session id has a ship of its own, and a ship is a box. Its id follows from owner and session, and its time to live
is the box's idle clock, because every operation renews it. So there is nothing to keep beside the box.
"""

import re
import shlex
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

import msgspec

import hutch
from hutch.errors import HutchError, Invalid, NotFound, Refused
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.live import Live
from hutch.logs import redact
from hutch.model.boxes import State
from hutch.model.files import FileKind
from hutch.model.limits import LimitsAsked
from hutch.model.record import encode_json
from hutch.model.spec import Spec
from hutch.server.auth import Authenticator
from hutch.server.bay.executions import run_python, run_shell
from hutch.server.bay.http import HttpDoor, InvalidPath, Route, read_whole, receive_upload, workspace_path
from hutch.server.bay.records import time_of
from hutch.server.error_status import status_of
from hutch.server.keyed_boxes import KeyedBoxes, bots_profile
from hutch.server.request import BYTES, Call, Reply
from hutch.server.service import Service

RUNNING, STOPPED = 1, 0
"""What a ship's `status` says: AstrBot uses a running one, and asks for another instead of any other."""
_MEMORY = re.compile(r"(\d{1,9})\s*([kmg]?)i?b?", re.IGNORECASE)
_MEGABYTES = {"": 1 / (1 << 20), "k": 1 / 1024, "m": 1.0, "g": 1024.0}
_ENCODINGS = frozenset({
    "ascii", "big5", "cp1251", "cp1252", "euc-jp", "euc-kr", "gb18030", "gb2312", "gbk", "iso-8859-1", "latin-1",
    "shift-jis", "utf-16", "utf-32", "utf-8", "utf-8-sig",
})  # fmt: skip
_SHIPS = uuid.UUID("a2c2a3cb-3c59-4f0f-8f4a-6f0b6f1f3d2e")

Ttl = Annotated[int, msgspec.Meta(ge=1, le=365 * 86400)]


class ShipSpec(msgspec.Struct, frozen=True, kw_only=True):
    cpus: Annotated[float, msgspec.Meta(gt=0)] | None = None
    memory: str | None = None


class CreateShip(msgspec.Struct, frozen=True, kw_only=True):
    ttl: Ttl = 3600
    max_session_num: int = 1
    spec: ShipSpec | None = None


class ExtendShip(msgspec.Struct, frozen=True, kw_only=True):
    ttl: Ttl


class Execute(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    payload: dict[str, Any] = msgspec.field(default_factory=dict)


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    file_path: str


class ShellPayload(msgspec.Struct, frozen=True, kw_only=True):
    command: Annotated[str, msgspec.Meta(min_length=1)]
    cwd: str | None = None
    env: dict[str, str] | None = None
    timeout: float | None = 30
    shell: bool = True
    background: bool = False


class PythonPayload(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    kernel_id: str | None = None
    timeout: float | None = 30
    silent: bool = False


class FilePayload(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of every file operation; each uses what it needs."""

    path: str = "."
    content: str = ""
    mode: int | str | None = None
    encoding: str = "utf-8"
    offset: int | None = None
    limit: int | None = None
    old_string: str = ""
    new_string: str = ""
    replace_all: bool = False
    show_hidden: bool = False


class ShipyardDoor(HttpDoor):
    name = "shipyard"
    prefix = "/shipyard"

    def __init__(self, service: Service, auth: Authenticator) -> None:
        super().__init__(service, auth, (
            Route("GET", "/", self._health, anonymous=True),
            Route("GET", "/health", self._health, anonymous=True),
            Route("GET", "/stat", self._health, anonymous=True),
            Route("POST", "/ship", self._create, body=CreateShip),
            Route("GET", "/ships", self._list),
            Route("GET", "/ship/{ship}", self._get),
            Route("DELETE", "/ship/{ship}", self._delete),
            Route("POST", "/ship/{ship}/extend-ttl", self._extend, body=ExtendShip),
            Route("GET", "/ship/logs/{ship}", self._logs),
            Route("POST", "/ship/{ship}/exec", self._execute, body=Execute),
            Route("POST", "/ship/{ship}/upload", self._upload, uploads=True),
            Route("GET", "/ship/{ship}/download", self._download, query=FileQuery),
        ))  # fmt: skip
        self._boxes = KeyedBoxes(service.keeper)

    def render(self, error: HutchError) -> Reply:
        """A refusal is only a text; what a caller can repair is 400."""
        status = status_of(error.code) if error.code not in ("invalid_path", "no_match") else 400
        status = {409: 400, 410: 404, 413: 400, 422: 400}.get(status, status)
        return Reply(encode_json({"detail": redact(str(error))}), status=status)

    async def _health(self, call: Call) -> Reply:
        return Reply({"status": "healthy", "service": "hutch", "version": hutch.__version__})

    # --- ships ----------------------------------------------------------------------------------------------

    async def _create(self, call: Call, body: CreateShip) -> Reply:
        """Create the session's ship, or return the one it has, with its files."""
        session = call.header("x-session-id")
        if not session or len(session) > 200 or not session.isprintable():
            raise Invalid("X-SESSION-ID is needed, with at most 200 printable characters")
        ship = _ship_of(call.caller.owner, session)
        live = await self._boxes.find_usable(call.caller.owner, _key(ship))
        if live is None:
            asked = body.spec or ShipSpec()
            spec = Spec(
                profile=bots_profile(self.service.config),
                limits=LimitsAsked(cpus=asked.cpus, memory_mb=_megabytes(asked.memory)),
                idle_timeout_sec=float(body.ttl),
                labels={"shipyard.ship": ship, "shipyard.sessions": str(body.max_session_num)},
            )
            live = await self._boxes.create(call.caller, _key(ship), spec)
        return Reply(encode_json(_shown(live)), status=201)

    async def _list(self, call: Call) -> Reply:
        boxes = await self.service.keeper.views.boxes(call.caller.owner)
        # A fork of a ship has its label too, and is none.
        labelled = [box.spec.labels["shipyard.ship"] for box in boxes if "shipyard.ship" in box.spec.labels]
        # A fork of a ship has its label too, and is none.
        lives = [await self._boxes.find(call.caller.owner, _key(ship)) for ship in dict.fromkeys(labelled)]
        return Reply(encode_json([_shown(live) for live in lives if live is not None]))

    async def _get(self, call: Call) -> Reply:
        return Reply(encode_json(_shown(await self._ship(call))))

    async def _delete(self, call: Call) -> Reply:
        async with self._boxes.use(call.caller, await self._ship(call)) as box:
            await box.destroy()
        return Reply(status=204)

    async def _extend(self, call: Call, body: ExtendShip) -> Reply:
        live = await self._ship(call)
        async with self._boxes.use(call.caller, live) as box:
            await box.change(idle_timeout_sec=float(body.ttl))
        return Reply(encode_json(_shown(live)))

    async def _logs(self, call: Call) -> Reply:
        await self._ship(call)
        return Reply({"logs": ""})  # A box has no console; what its commands print is in their answers.

    # --- operations -----------------------------------------------------------------------------------------

    async def _execute(self, call: Call, body: Execute) -> Reply:
        async with await self._use(call) as box:
            if body.type == "shell/exec":
                data = await _shell(box, _payload(body, ShellPayload))
            elif body.type == "ipython/exec":
                data = await _python(box, _payload(body, PythonPayload))
            elif (operation := _FILE_OPERATIONS.get(body.type)) is not None:
                try:
                    data = await operation(box, _payload(body, FilePayload))
                except OSError as error:  # Hutch's errors of files are also the builtin ones.
                    raise Invalid(getattr(error, "message", str(error))) from error
            else:
                raise Invalid(f"Unknown operation type: {body.type[:100]}")
        return Reply({"success": True, "data": data, "error": None})

    async def _upload(self, call: Call) -> Reply:
        async with await self._use(call) as box:
            given, _, _ = await receive_upload(call, box, "file_path", _confined)
        return Reply({"success": True, "message": "File uploaded", "file_path": given, "error": None})

    async def _download(self, call: Call, query: FileQuery) -> Reply:
        place = _confined(query.file_path)

        async def pieces() -> AsyncGenerator[bytes, None]:
            async with await self._use(call) as box:
                async for piece in box.files.open(place):
                    yield piece

        return Reply(pieces(), type=BYTES)

    # --- parts ----------------------------------------------------------------------------------------------

    async def _ship(self, call: Call) -> Live:
        live = await self._boxes.find(call.caller.owner, _key(call.params["ship"]))
        if live is None:
            raise NotFound("Ship not found")
        return live

    async def _use(self, call: Call) -> AbstractAsyncContextManager[BoxHandle]:
        """Use the ship, if the session of the request is its own."""
        if call.params["ship"] != _ship_of(call.caller.owner, call.header("x-session-id")):
            raise Refused("this session has no access to this ship")
        return self._boxes.use(call.caller, await self._ship(call))


async def _shell(box: BoxHandle, asked: ShellPayload) -> dict[str, Any]:
    cwd = workspace_path(asked.cwd) if asked.cwd else workspace_path(".")
    command: str | list[str] = asked.command if asked.shell else _words(asked.command)
    if asked.background:
        job = await box.start(command, cwd=cwd, env=asked.env, name="shipyard")
        await job.close_stdin()
        pid = (await job.info()).pid
        return {"success": True, "return_code": 0, "stdout": "", "stderr": "", "pid": pid, "error": None}
    done = await run_shell(box, command, cwd=cwd, env=asked.env, timeout=asked.timeout or 30)
    return {
        "success": done.success, "return_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr,
        "pid": None, "error": None if done.success else done.stderr or f"exit code {done.exit_code}",
    }  # fmt: skip


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Invalid(f"the command cannot be split into words: {error}") from error


async def _python(box: BoxHandle, asked: PythonPayload) -> dict[str, Any]:
    done = await run_python(box, asked.code, timeout=asked.timeout or 30)
    output = {"text": "", "images": []} if asked.silent else {"text": done.text, "images": done.images}
    return {
        "success": done.success, "execution_count": done.count, "output": output, "error": done.error,
        "kernel_id": asked.kernel_id or "default",
    }  # fmt: skip


async def _write(box: BoxHandle, asked: FilePayload) -> dict[str, Any]:
    place = workspace_path(asked.path)
    mode = asked.mode if isinstance(asked.mode, int) else None
    written = await box.files.write(place, _encoded(asked.content, asked), append=asked.mode == "a", mode=mode)
    return {"success": True, "message": "File written", "path": asked.path, "size": written.size}


async def _read(box: BoxHandle, asked: FilePayload) -> dict[str, Any]:
    place = workspace_path(asked.path)
    data = await read_whole(box, place)
    text = data.decode(_encoding(asked), "replace")
    if asked.offset is not None or asked.limit is not None:
        first = max(0, (asked.offset or 1) - 1)
        lines = text.splitlines(keepends=True)
        text = "".join(lines[first : None if asked.limit is None else first + max(0, asked.limit)])
    return {"content": text, "path": asked.path, "size": len(data)}


async def _edit(box: BoxHandle, asked: FilePayload) -> dict[str, Any]:
    place = workspace_path(asked.path)
    old, new = _encoded(asked.old_string, asked), _encoded(asked.new_string, asked)
    edited = await box.files.edit(place, old, new, replace_all=asked.replace_all)
    return {
        "success": True, "message": "File edited", "path": asked.path, "replacements": edited.replaced,
        "size": edited.size,
    }  # fmt: skip


async def _delete(box: BoxHandle, asked: FilePayload) -> dict[str, Any]:
    place = workspace_path(asked.path)
    if place == workspace_path("."):
        raise Invalid("the workspace itself cannot be deleted")
    await box.files.remove(place, recursive=True)
    return {"success": True, "message": "File deleted", "path": asked.path}


async def _list_directory(box: BoxHandle, asked: FilePayload) -> dict[str, Any]:
    place = workspace_path(asked.path)
    files = []
    for found in await box.files.list(place):
        name = found.path.rpartition("/")[2]
        if asked.show_hidden or not name.startswith("."):
            files.append({
                "name": name, "path": f"{place}/{name}", "is_file": found.kind is FileKind.FILE,
                "is_dir": found.kind is FileKind.DIRECTORY, "size": found.size, "modified_time": found.mtime,
            })  # fmt: skip
    return {"files": files, "current_path": place}


_FILE_OPERATIONS = {
    "fs/create_file": _write, "fs/write_file": _write, "fs/read_file": _read, "fs/edit_file": _edit,
    "fs/delete_file": _delete, "fs/list_dir": _list_directory,
}  # fmt: skip


def _payload(body: Execute, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(body.payload, type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"payload: {error}") from error


def _encoded(text: str, asked: FilePayload) -> bytes:
    try:
        return text.encode(_encoding(asked))
    except UnicodeEncodeError as error:
        raise Invalid(f"the text cannot be encoded as {asked.encoding[:40]}") from error


def _encoding(asked: FilePayload) -> str:
    """Return the encoding if it is one of texts; others of Python's are slow, or no encodings of texts at all."""
    plain = asked.encoding.lower().replace("_", "-")
    if plain not in _ENCODINGS:
        raise Invalid(f"encoding {asked.encoding[:40]!r} is none of {', '.join(sorted(_ENCODINGS))}")
    return plain


def _confined(path: str) -> str:
    """Return the place of an uploaded or downloaded file; leaving the workspace is forbidden."""
    try:
        return workspace_path(path)
    except InvalidPath as error:
        raise Refused(error.message) from error


def _ship_of(owner: str, session: str) -> str:
    return str(uuid.uuid5(_SHIPS, f"{owner}\0{session}"))


def _key(ship: str) -> str:
    return f"shipyard:{ship}"


def _megabytes(text: str | None) -> int | None:
    if text is None:
        return None
    matched = _MEMORY.fullmatch(text.strip())
    if matched is None:
        raise Invalid(f"memory {text[:40]!r} is no size, such as 512m")
    return max(1, round(int(matched[1]) * _MEGABYTES[matched[2].lower()]))


def _shown(live: Live) -> dict[str, Any]:
    record = live.record
    since = 0.0 if live.pins else time.monotonic() - live.last_used
    used_at = time.time() - since
    return {
        "id": record.spec.labels["shipyard.ship"], "status": STOPPED if record.state is State.ERROR else RUNNING,
        "created_at": time_of(record.created_at),
        "updated_at": time_of(used_at), "container_id": record.id, "ip_address": "",
        "ttl": round(record.spec.idle_timeout_sec), "max_session_num": int(record.spec.labels["shipyard.sessions"]),
        "current_session_num": 1, "expires_at": time_of(used_at + record.spec.idle_timeout_sec),
    }  # fmt: skip
