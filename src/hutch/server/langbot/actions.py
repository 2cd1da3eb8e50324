"""The actions of the Box Runtime protocol, for one LangBot on one connection."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from hutch.errors import Gone, Invalid, NotFound
from hutch.keeper.boxes.live import Live
from hutch.model.boxes import BoxInfo, State
from hutch.server.auth import Caller
from hutch.server.langbot import commands, processes, storage
from hutch.server.langbot.messages import BoxFailure, BoxSpec, Context, Limits, ProcessSpec
from hutch.server.langbot.processes import Processes
from hutch.server.langbot.sessions import BACKEND, SESSION_TTL_SECONDS, Sessions
from hutch.server.service import Service

HostAction = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
TenantAction = Callable[[Context, dict[str, Any]], Awaitable[dict[str, Any]]]


class Actions:
    """What one authenticated LangBot may do. `caller` is renewed with every action."""

    def __init__(self, service: Service, sessions: Sessions, procs: Processes, caller: Caller, instance: str) -> None:
        self._service = service
        self._sessions = sessions
        self._processes = procs
        self.caller = caller
        self._instance = instance
        self._limits = Limits()
        self._host: dict[str, HostAction] = {
            "__ping": _nothing,
            "box_init": self._init,
            "box_health": self._backend_info,
            "box_get_backend_info": self._backend_info,
            "box_shutdown": self._shutdown,
            "box_verify_shared_workspace": _cloud_only,
            "box_upsert_sandbox_admission_grant": _cloud_only,
            "box_revoke_sandbox_admission_grant": _cloud_only,
        }
        self._tenant: dict[str, TenantAction] = {
            "box_status": self._status,
            "box_exec": self._exec,
            "box_create_session": self._create_session,
            "box_get_session": self._get_session,
            "box_get_sessions": self._get_sessions,
            "box_delete_session": self._delete_session,
            "box_start_managed_process": self._start_process,
            "box_get_managed_process": self._get_process,
            "box_stop_managed_process": self._stop_process,
            "box_get_storage_analysis": self._storage,
        }

    def knows(self, action: str) -> bool:
        return action in self._host or action in self._tenant

    async def run(self, action: str, data: dict[str, Any], context: Context | None) -> dict[str, Any]:
        """Run one action and return its data; errors are raised."""
        if (host_action := self._host.get(action)) is not None:
            return await host_action(data)
        tenant_action = self._tenant.get(action)
        if tenant_action is None:
            raise BoxFailure("ValueError", f"Action {action[:100]} not found")
        if context is None:
            raise BoxFailure("PermissionError", "Box tenant action requires a trusted Workspace context")
        if context.instance_uuid != self._instance:
            raise BoxFailure("PermissionError", "Box action context does not match the trusted instance")
        await self._sessions.fence(self.caller, context)
        return await tenant_action(context, data)

    # --- the server -----------------------------------------------------------------------------------------

    async def _init(self, data: dict[str, Any]) -> dict[str, Any]:
        self._limits = Limits.parse(data)
        return {"initialized": True}

    async def _backend_info(self, data: dict[str, Any]) -> dict[str, Any]:
        status = await self._service.keeper.views.status((), self._service.started_at)
        return {"name": BACKEND, "available": status.available}

    async def _shutdown(self, data: dict[str, Any]) -> dict[str, Any]:
        """End the sessions of this LangBot; the server and everybody else's boxes go on."""
        boxes = await self._sessions.of_instance(self.caller, self._instance)
        await self._sessions.destroy_all(boxes, "LangBot ended")
        return {}

    async def _status(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        boxes = await self._sessions.of_placement(self.caller, context)
        used = len(await self._sessions.of_instance(self.caller, self._instance))
        limits = self._limits
        return {
            "backend": await self._backend_info({}),
            "active_sessions": len(boxes),
            "managed_processes": await self._running(boxes),
            "session_ttl_sec": SESSION_TTL_SECONDS,
            "limits": limits,
            "capacity": {
                "limit": limits.max_sessions,
                "used": used,
                "remaining": max(0, limits.max_sessions - used),
            },
        }

    # --- sessions -------------------------------------------------------------------------------------------

    async def _exec(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        spec = BoxSpec.parse(data)
        if not spec.cmd:
            raise Invalid("cmd must not be empty")
        live = await self._sessions.open(self.caller, context, spec, self._limits)
        async with self._sessions.boxes.use(self.caller, live) as box:
            return await commands.run(box, spec)

    async def _create_session(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        live = await self._sessions.open(self.caller, context, BoxSpec.parse(data), self._limits)
        return self._sessions.describe(live.record)

    async def _get_session(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        live, session_id = await self._find(context, data)
        shown = self._sessions.describe(live.record)
        async with self._sessions.boxes.use(self.caller, live) as box:
            shown["managed_processes"] = found = await self._processes.all(box, session_id)
        return {**shown, "managed_process": found["default"]} if "default" in found else shown

    async def _get_sessions(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        boxes = await self._sessions.of_placement(self.caller, context)
        return {"sessions": [self._sessions.describe(box) for box in boxes]}

    async def _delete_session(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        live, session_id = await self._find(context, data)
        async with self._sessions.boxes.use(self.caller, live) as box:
            await box.destroy()
        return {"deleted": session_id}

    async def _storage(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        boxes = await self._sessions.of_placement(self.caller, context)
        async with AsyncExitStack() as stack:
            handles = [await stack.enter_async_context(use) for use in await self._uses(boxes)]
            directories = await storage.measure(handles)
            count = await processes.running(handles)
        return {
            "size_bytes": sum(each["size_bytes"] for each in directories if each["kind"] == "root"),
            "directories": directories,
            "active_sessions": len(boxes),
            "managed_processes": count,
        }

    # --- managed processes ----------------------------------------------------------------------------------

    async def _start_process(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        live, session_id = await self._find(context, data)
        spec = ProcessSpec.parse(data.get("spec"))
        most = self._limits.max_managed_processes
        boxes = await self._sessions.of_instance(self.caller, self._instance)
        async with self._sessions.boxes.use(self.caller, live) as box:
            physical = context.physical(session_id)
            replaced = any(job.name == processes.PREFIX + spec.process_id for job in await processes.jobs(box))
            if not replaced and await self._running(boxes) >= most:
                raise BoxFailure("BoxCapacityExceededError", f"Box managed process capacity reached ({most})")
            return await self._processes.start(box, physical, session_id, spec)

    async def _get_process(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        live, session_id = await self._find(context, data)
        async with self._sessions.boxes.use(self.caller, live) as box:
            physical = context.physical(session_id)
            return await self._processes.get(box, physical, session_id, _process_id(data))

    async def _stop_process(self, context: Context, data: dict[str, Any]) -> dict[str, Any]:
        live, session_id = await self._find(context, data)
        process_id = _process_id(data)
        async with self._sessions.boxes.use(self.caller, live) as box:
            await self._processes.stop(box, context.physical(session_id), process_id)
        return {"stopped": process_id}

    # --- parts ----------------------------------------------------------------------------------------------

    async def _find(self, context: Context, data: dict[str, Any]) -> tuple[Live, str]:
        session_id = data.get("session_id")
        if not isinstance(session_id, str) or not session_id.strip():
            raise Invalid("session_id must not be empty")
        return await self._sessions.find(self.caller, context, session_id), session_id

    async def _running(self, boxes: list[BoxInfo]) -> int:
        async with AsyncExitStack() as stack:
            handles = [await stack.enter_async_context(use) for use in await self._uses(boxes)]
            return await processes.running(handles)

    async def _uses(self, boxes: list[BoxInfo]) -> list[Any]:
        """Return the uses of those boxes that run now: one that is being created or ended has no processes."""
        uses = []
        for info in boxes:
            if info.state is not State.RUNNING:
                continue
            try:
                uses.append(self._sessions.boxes.use(self.caller, await self._service.keeper.live(info.id)))
            except (Gone, NotFound):
                continue
        return uses


async def _nothing(data: dict[str, Any]) -> dict[str, Any]:
    return {}


async def _cloud_only(data: dict[str, Any]) -> dict[str, Any]:
    raise BoxFailure("BoxAdmissionError", "Sandbox admission enforcement is not enabled")


def _process_id(data: dict[str, Any]) -> str:
    process_id = data.get("process_id", "default")
    if not isinstance(process_id, str) or not process_id:
        raise Invalid("process_id must not be empty")
    return process_id
