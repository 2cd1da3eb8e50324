"""The Bay API of Shipyard Neo below `/bay`, by which an unmodified AstrBot (booter `shipyard_neo`) uses Hutch."""

from collections.abc import AsyncGenerator

import hutch
from hutch.errors import HutchError, Invalid, Unsupported
from hutch.logs import log, redact
from hutch.model.files import FileKind
from hutch.model.record import encode_json
from hutch.server.auth import Authenticator
from hutch.server.bay.executions import run_python, run_shell
from hutch.server.bay.history import Filter
from hutch.server.bay.http import WORKSPACE, HttpDoor, Route, read_whole, receive_upload, workspace_path
from hutch.server.bay.idempotency import IdempotentReplies
from hutch.server.bay.records import (
    Annotation,
    CreateCargo,
    CreateSandbox,
    ExtendTtl,
    HistoryQuery,
    ListQuery,
    PathQuery,
    PythonExec,
    ShellExec,
    WriteFile,
    time_of,
)
from hutch.server.bay.sandboxes import CAPABILITIES, IDLE_SECONDS, Sandboxes
from hutch.server.error_status import status_of
from hutch.server.request import BYTES, Call, Reply
from hutch.server.service import Service

_CODES = {
    "invalid": ("validation_error", 400),
    "config": ("validation_error", 400),
    "is_directory": ("validation_error", 400),
    "not_directory": ("validation_error", 400),
    "file_failed": ("validation_error", 400),
    "file_denied": ("forbidden", 403),
    "not_runnable": ("validation_error", 400),
    "too_large": ("validation_error", 400),
    "invalid_path": ("invalid_path", 400),
    "unsupported": ("capability_not_supported", 400),
    "unauthenticated": ("unauthorized", 401),
    "refused": ("forbidden", 403),
    "not_found": ("not_found", 404),
    "gone": ("not_found", 404),
    "file_not_found": ("file_not_found", 404),
    "sandbox_expired": ("sandbox_expired", 409),
    "sandbox_ttl_infinite": ("sandbox_ttl_infinite", 409),
    "quota": ("quota_exceeded", 429),
    "internal": ("internal_error", 500),
    "engine": ("ship_error", 502),
    "box_broken": ("ship_error", 502),
    "unavailable": ("session_not_ready", 503),
    "disabled": ("session_not_ready", 503),
    "timeout": ("timeout", 504),
}
"""Our codes as the SDK names them, with their status; every other conflict is `conflict`."""


class BayDoor(HttpDoor):
    name = "bay"
    prefix = "/bay"

    def __init__(self, service: Service, auth: Authenticator) -> None:
        box = "/v1/sandboxes/{sandbox}"
        super().__init__(service, auth, (
            Route("GET", "/health", self._health, anonymous=True),
            Route("GET", "/v1/profiles", self._profiles, query=dict),
            Route("POST", "/v1/sandboxes", self._create, body=CreateSandbox),
            Route("GET", "/v1/sandboxes", self._list, query=ListQuery),
            Route("GET", box, self._get),
            Route("DELETE", box, self._delete),
            Route("POST", f"{box}/extend_ttl", self._extend, body=ExtendTtl),
            Route("POST", f"{box}/keepalive", self._keep_alive),
            Route("POST", f"{box}/stop", self._stop),
            Route("POST", f"{box}/shell/exec", self._shell, body=ShellExec),
            Route("POST", f"{box}/python/exec", self._python, body=PythonExec),
            Route("GET", f"{box}/filesystem/files", self._read, query=PathQuery),
            Route("PUT", f"{box}/filesystem/files", self._write, body=WriteFile),
            Route("DELETE", f"{box}/filesystem/files", self._remove, query=PathQuery),
            Route("GET", f"{box}/filesystem/directories", self._list_directory, query=PathQuery),
            Route("POST", f"{box}/filesystem/upload", self._upload, uploads=True),
            Route("GET", f"{box}/filesystem/download", self._download, query=PathQuery),
            Route("GET", f"{box}/history", self._history, query=HistoryQuery),
            Route("GET", f"{box}/history/last", self._last, query=HistoryQuery),
            Route("GET", f"{box}/history/{{execution}}", self._execution),
            Route("PATCH", f"{box}/history/{{execution}}", self._annotate, body=Annotation),
            Route("POST", f"{box}/browser/exec", self._no_browser),
            Route("POST", f"{box}/browser/exec_batch", self._no_browser),
            Route("POST", f"{box}/browser/skills/{{skill}}/run", self._no_browser),
            Route("GET", f"{box}/browser/traces/{{trace}}", self._no_browser),
            Route("POST", "/v1/cargos", self._create_cargo, body=CreateCargo),
            Route("GET", "/v1/cargos", self._list_cargos, query=ListQuery),
            Route("GET", "/v1/cargos/{cargo}", self._get_cargo),
            Route("DELETE", "/v1/cargos/{cargo}", self._delete_cargo),
        ))  # fmt: skip
        self._sandboxes = Sandboxes(service)
        self._replies = IdempotentReplies()

    async def prepare(self) -> None:
        await self._sandboxes.load()

    async def start(self) -> None:
        """Resume the sandboxes of an earlier server, which expire whether somebody asks for them or not."""
        try:
            await self.prepare()
        except HutchError as error:  # Each request tries again, and reports the error to its caller.
            log("server").warning("sandboxes not loaded", operation=self.name, error=error)

    async def drain(self, seconds: float) -> None:
        await self._sandboxes.close()

    def render(self, error: HutchError) -> Reply:
        code, status = _CODES.get(error.code, ("conflict", 409))
        if error.code not in _CODES and status_of(error.code) != 409:
            code, status = "internal_error", 500
        details = dict(error.details)
        if isinstance(error, Unsupported):
            details |= {"available": list(CAPABILITIES)}
        body = {"error": {"code": code, "message": redact(str(error)), "details": details}}
        return Reply(encode_json(body), status=status)

    # --- the server -----------------------------------------------------------------------------------------

    async def _health(self, call: Call) -> Reply:
        return Reply({"status": "ok", "version": hutch.__version__})

    async def _profiles(self, call: Call, query: dict[str, str]) -> Reply:
        items = []
        for name in self._sandboxes.profiles():
            profile = self.service.config.resolve_profile(self._sandboxes.hutch_profile(name))
            items.append({
                "id": name,
                "image": profile.image or "host",
                "resources": {"cpus": float(profile.limits.cpus), "memory": f"{profile.limits.memory_mb}m"},
                "capabilities": CAPABILITIES,
                "idle_timeout": round(IDLE_SECONDS),
                "description": profile.description,
                "containers": None,
            })  # fmt: skip
        return Reply({"items": items})

    # --- sandboxes ------------------------------------------------------------------------------------------

    async def _create(self, call: Call, body: CreateSandbox) -> Reply:
        async def work() -> Reply:
            sandbox = await self._sandboxes.create(call.caller, body.profile, body.ttl, body.cargo_id)
            return Reply(encode_json(await self._sandboxes.show(sandbox)), status=201)

        return await self._replies.once(call, encode_json(body), work())

    async def _list(self, call: Call, query: ListQuery) -> Reply:
        sandboxes = self._sandboxes.all(call.caller)
        shown = [await self._sandboxes.show(each) for each in sandboxes]
        wanted = [each for each in shown if query.status in ("", each["status"])]
        return Reply(encode_json(_page(wanted, query)))

    async def _get(self, call: Call) -> Reply:
        return Reply(encode_json(await self._sandboxes.show(self._sandboxes.get(call.caller, call.params["sandbox"]))))

    async def _delete(self, call: Call) -> Reply:
        await self._sandboxes.delete(call.caller, call.params["sandbox"])
        return Reply(status=204)

    async def _extend(self, call: Call, body: ExtendTtl) -> Reply:
        async def work() -> Reply:
            sandbox = await self._sandboxes.extend(call.caller, call.params["sandbox"], body.extend_by)
            return Reply(encode_json(await self._sandboxes.show(sandbox)))

        return await self._replies.once(call, encode_json(body), work())

    async def _keep_alive(self, call: Call) -> Reply:
        await self._sandboxes.touch(call.caller, call.params["sandbox"])
        return Reply({"status": "ok"})

    async def _stop(self, call: Call) -> Reply:
        await self._sandboxes.stop(call.caller, call.params["sandbox"])
        return Reply({"status": "stopped"})

    # --- executions -----------------------------------------------------------------------------------------

    async def _shell(self, call: Call, body: ShellExec) -> Reply:
        cwd = workspace_path(body.cwd) if body.cwd else WORKSPACE
        async with self._sandboxes.use(call.caller, call.params["sandbox"]) as box:
            done = await run_shell(box, body.command, cwd=cwd, timeout=body.timeout)
        entry = self._sandboxes.history.add(
            call.params["sandbox"], box=box.id, kind="shell", code=body.command, success=done.success,
            milliseconds=done.milliseconds, output=done.stdout, error=done.stderr or None,
            description=body.description, tags=body.tags,
        )  # fmt: skip
        return Reply({
            "success": done.success, "output": done.stdout, "error": done.stderr or None,
            "exit_code": done.exit_code, "execution_id": entry.id, "execution_time_ms": done.milliseconds,
            "command": body.command if body.include_code else None,
        })  # fmt: skip

    async def _python(self, call: Call, body: PythonExec) -> Reply:
        async with self._sandboxes.use(call.caller, call.params["sandbox"]) as box:
            done = await run_python(box, body.code, timeout=body.timeout)
        entry = self._sandboxes.history.add(
            call.params["sandbox"], box=box.id, kind="python", code=body.code, success=done.success,
            milliseconds=done.milliseconds, output=done.text, error=done.error, description=body.description,
            tags=body.tags,
        )  # fmt: skip
        return Reply({
            "success": done.success, "output": done.text, "error": done.error,
            "data": {"execution_count": done.count, "output": {"text": done.text, "images": done.images}},
            "execution_id": entry.id, "execution_time_ms": done.milliseconds,
            "code": body.code if body.include_code else None,
        })  # fmt: skip

    async def _no_browser(self, call: Call) -> Reply:
        self._sandboxes.get(call.caller, call.params["sandbox"])
        raise Unsupported("this sandbox has no browser", details={"capability": "browser"})

    # --- files ----------------------------------------------------------------------------------------------

    async def _read(self, call: Call, query: PathQuery) -> Reply:
        place = workspace_path(query.path)
        async with self._sandboxes.use(call.caller, call.params["sandbox"]) as box:
            return Reply({"content": (await read_whole(box, place)).decode("utf-8", "replace")})

    async def _write(self, call: Call, body: WriteFile) -> Reply:
        place = workspace_path(body.path)
        async with self._sandboxes.use(call.caller, call.params["sandbox"]) as box:
            await box.files.write(place, body.content)
        return Reply({"status": "ok"})

    async def _remove(self, call: Call, query: PathQuery) -> Reply:
        place = workspace_path(query.path)
        if place == WORKSPACE:
            raise Invalid("the workspace itself cannot be deleted")
        async with self._sandboxes.use(call.caller, call.params["sandbox"]) as box:
            await box.files.remove(place, recursive=True)
        return Reply({"status": "ok"})

    async def _list_directory(self, call: Call, query: PathQuery) -> Reply:
        place = workspace_path(query.path)
        entries = []
        async with self._sandboxes.use(call.caller, call.params["sandbox"]) as box:
            for found in await box.files.list(place):
                name = found.path.rpartition("/")[2]
                if name.startswith("."):
                    continue
                directory = found.kind is FileKind.DIRECTORY
                entries.append({
                    "name": name, "path": f"{place}/{name}".removeprefix(f"{WORKSPACE}/"), "is_dir": directory,
                    "is_file": found.kind is FileKind.FILE, "size": None if directory else found.size,
                    "modified_at": time_of(found.mtime), "modified_time": time_of(found.mtime),
                })  # fmt: skip
        return Reply(encode_json({"entries": entries}))

    async def _upload(self, call: Call) -> Reply:
        async with self._sandboxes.use(call.caller, call.params["sandbox"]) as box:
            given, _, written = await receive_upload(call, box, "path", workspace_path)
        return Reply({"status": "ok", "path": given, "size": written.size})

    async def _download(self, call: Call, query: PathQuery) -> Reply:
        place = workspace_path(query.path)

        async def pieces() -> AsyncGenerator[bytes, None]:
            async with self._sandboxes.use(call.caller, call.params["sandbox"]) as box:
                async for piece in box.files.open(place):
                    yield piece

        return Reply(pieces(), type=BYTES)

    # --- history --------------------------------------------------------------------------------------------

    async def _history(self, call: Call, query: HistoryQuery) -> Reply:
        sandbox = self._sandboxes.get(call.caller, call.params["sandbox"])
        wanted = Filter(
            exec_type=query.exec_type, success_only=query.success_only, tags=query.tags, has_notes=query.has_notes,
            has_description=query.has_description,
        )  # fmt: skip
        return Reply(encode_json(self._sandboxes.history.list(sandbox.id, wanted, query.limit, query.offset)))

    async def _last(self, call: Call, query: HistoryQuery) -> Reply:
        sandbox = self._sandboxes.get(call.caller, call.params["sandbox"])
        return Reply(encode_json(self._sandboxes.history.last(sandbox.id, query.exec_type)))

    async def _execution(self, call: Call) -> Reply:
        sandbox = self._sandboxes.get(call.caller, call.params["sandbox"])
        return Reply(encode_json(self._sandboxes.history.get(sandbox.id, call.params["execution"])))

    async def _annotate(self, call: Call, body: Annotation) -> Reply:
        sandbox = self._sandboxes.get(call.caller, call.params["sandbox"])
        entry = self._sandboxes.history.annotate(
            sandbox.id, call.params["execution"], body.description, body.tags, body.notes
        )
        return Reply(encode_json(entry))

    # --- cargos ---------------------------------------------------------------------------------------------

    async def _create_cargo(self, call: Call, body: CreateCargo) -> Reply:
        if body.size_limit_mb is not None:  # Nothing would hold it, and the caller would rely on it.
            raise Invalid("size_limit_mb is not supported: nothing limits the size of a cargo. Leave it out")

        async def work() -> Reply:
            cargo = await self._sandboxes.create_cargo(call.caller)
            return Reply(encode_json(cargo.shown()), status=201)

        return await self._replies.once(call, encode_json(body), work())

    async def _list_cargos(self, call: Call, query: ListQuery) -> Reply:
        managed = bool(query.managed)  # Without the parameter only those that a caller created are listed.
        shown = [cargo.shown() for cargo in self._sandboxes.cargos(call.caller)]
        return Reply(encode_json(_page([each for each in shown if each["managed"] is managed], query)))

    async def _get_cargo(self, call: Call) -> Reply:
        return Reply(encode_json(self._sandboxes.cargo(call.caller, call.params["cargo"]).shown()))

    async def _delete_cargo(self, call: Call) -> Reply:
        await self._sandboxes.delete_cargo(call.caller, call.params["cargo"])
        return Reply(status=204)


def _page(items: list[dict[str, object]], query: ListQuery) -> dict[str, object]:
    """Return one page; the cursor is the id of the last item of the page before."""
    start = 0
    if query.cursor:
        ids = [item["id"] for item in items]
        if query.cursor not in ids:
            raise Invalid(f"cursor {query.cursor[:100]!r} is unknown")
        start = ids.index(query.cursor) + 1
    page = items[start : start + query.limit]
    more = start + query.limit < len(items)
    return {"items": page, "next_cursor": page[-1]["id"] if more and page else None}
