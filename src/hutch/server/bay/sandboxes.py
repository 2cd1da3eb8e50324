"""Sandboxes and cargos of the Bay API: records in the store, boxes while there is something to compute, volumes.

A sandbox has two clocks. `expires_at` ends it with its own cargo. The box's idle clock ends only the box; the next call
creates another one with the same files.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from hutch.errors import Conflict, HutchError, Invalid, NotFound
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.live import Live
from hutch.keeper.locks import KeyedLocks
from hutch.logs import log
from hutch.model.boxes import EventCause, State
from hutch.model.limits import LimitsAsked
from hutch.model.spec import Spec, Workspace
from hutch.policy import rights
from hutch.policy.profiles import BUILT_IN
from hutch.server.auth import Caller
from hutch.server.bay.history import History
from hutch.server.bay.records import MAX_TTL_SECONDS, Cargo, Sandbox, time_of
from hutch.server.keyed_boxes import KeyedBoxes, bots_profile
from hutch.server.service import Service

SANDBOX_KIND, CARGO_KIND = "bay sandbox", "bay cargo"
DEFAULT_PROFILE = "python-default"
CAPABILITIES = ("filesystem", "python", "shell")
IDLE_SECONDS = 1800.0
EXPIRED_SECONDS = 300.0
"""An expired sandbox is shown for so long before it counts as deleted."""
FORGOTTEN_SECONDS = 3600.0
"""A deleted sandbox is remembered for so long, so that deleting it again succeeds."""
SWEEP_SECONDS = 15.0
LEFT_SECONDS = 60.0
"""A cargo without a sandbox is removed after so long, if it was made for one."""
_STATUS = {
    State.CREATING: "starting", State.RESTORING: "starting", State.RUNNING: "ready", State.PAUSED: "ready",
    State.STOPPED: "idle", State.STOPPING: "idle", State.UNKNOWN: "starting", State.ERROR: "failed",
}  # fmt: skip


class SandboxExpired(Conflict):
    code = "sandbox_expired"


class SandboxWithoutTtl(Conflict):
    code = "sandbox_ttl_infinite"


class Sandboxes:
    """All sandboxes and cargos of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._keeper = service.keeper
        self.boxes = KeyedBoxes(service.keeper)
        self.history = History()
        self._sandboxes: dict[tuple[str, str], Sandbox] = {}
        self._cargos: dict[tuple[str, str], Cargo] = {}
        self._loaded = False
        self._locks = KeyedLocks()
        """A lock for each sandbox, so that its box is created once and not while it is being deleted."""
        self._sweeping: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read the records once, and begin to end what expires."""
        if self._loaded:
            return
        sandboxes = await self._keeper.store.notes(SANDBOX_KIND)
        cargos = await self._keeper.store.notes(CARGO_KIND)
        if self._loaded:  # Another request was faster.
            return
        self._loaded = True
        self._sandboxes = {(each.owner, each.id): each for each in map(Sandbox.from_json, sandboxes.values())}
        self._cargos = {(each.owner, each.id): each for each in map(Cargo.from_json, cargos.values())}
        self._sweeping = asyncio.create_task(self._sweep(), name="hutch-bay-sweep")

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})

    # --- sandboxes ------------------------------------------------------------------------------------------

    async def create(self, caller: Caller, profile: str, ttl: int | None, cargo_id: str | None) -> Sandbox:
        """Create a sandbox whose box runs when this returns: AstrBot uses only a sandbox that is ready."""
        self.hutch_profile(profile)
        now, sandbox_id = time.time(), f"sandbox-{secrets.token_hex(6)}"
        cargo = self.cargo(caller, cargo_id) if cargo_id else await self.create_cargo(caller, sandbox=sandbox_id)
        sandbox = Sandbox(
            id=sandbox_id, owner=caller.owner, profile=profile, cargo=cargo.id, created_at=now,
            expires_at=now + ttl if ttl else None,
        )  # fmt: skip
        await self._save(sandbox)
        try:
            await self._start(caller, sandbox)
        except BaseException:
            await asyncio.shield(self._remove(sandbox, "its creation failed"))
            await self._forget(sandbox)
            raise
        return sandbox

    def get(self, caller: Caller, sandbox_id: str) -> Sandbox:
        sandbox = self._sandboxes.get((caller.owner, sandbox_id))
        if sandbox is None or sandbox.deleted_at is not None:
            raise NotFound(f"Sandbox not found: {sandbox_id[:100]}")
        return sandbox

    def all(self, caller: Caller) -> list[Sandbox]:
        """List the caller's sandboxes, oldest first."""
        own = [each for each in self._sandboxes.values() if each.owner == caller.owner and each.deleted_at is None]
        return sorted(own, key=lambda each: (each.created_at, each.id))

    async def show(self, sandbox: Sandbox) -> dict[str, Any]:
        live = await self.boxes.find(sandbox.owner, _key(sandbox))
        status = "idle" if live is None else _STATUS[live.record.state]
        idle_at = None
        if live is not None and status == "ready":
            since = 0.0 if live.pins else time.monotonic() - live.last_used
            idle_at = time_of(time.time() - since + live.record.spec.idle_timeout_sec)
        return {
            "id": sandbox.id,
            "status": "expired" if sandbox.expired(time.time()) else status,
            "profile": sandbox.profile,
            "cargo_id": sandbox.cargo,
            "capabilities": CAPABILITIES,
            "created_at": time_of(sandbox.created_at),
            "expires_at": None if sandbox.expires_at is None else time_of(sandbox.expires_at),
            "idle_expires_at": idle_at,
            "containers": None,
        }

    @asynccontextmanager
    async def use(self, caller: Caller, sandbox_id: str) -> AsyncIterator[BoxHandle]:
        """Use the sandbox's box, which is started if it is idle."""
        sandbox = self._unexpired(caller, sandbox_id)
        live = await self._start(caller, sandbox)
        async with self.boxes.use(caller, live) as box:
            yield box

    async def touch(self, caller: Caller, sandbox_id: str) -> None:
        """Move the idle clock of a running sandbox; an idle one stays idle."""
        sandbox = self._unexpired(caller, sandbox_id)
        live = await self.boxes.find(sandbox.owner, _key(sandbox))
        if live is not None:
            live.last_used = time.monotonic()

    async def extend(self, caller: Caller, sandbox_id: str, seconds: int) -> Sandbox:
        sandbox = self._unexpired(caller, sandbox_id)
        if sandbox.expires_at is None:
            raise SandboxWithoutTtl(f"Sandbox {sandbox.id} has no TTL to extend")
        now = time.time()
        expires_at = max(sandbox.expires_at, now) + seconds
        if expires_at - now > MAX_TTL_SECONDS:
            raise Invalid(f"a sandbox lasts at most {MAX_TTL_SECONDS} seconds from now")
        extended = sandbox.but(expires_at=expires_at)
        await self._save(extended)
        return extended

    async def stop(self, caller: Caller, sandbox_id: str) -> None:
        """End the box and keep the files."""
        sandbox = self.get(caller, sandbox_id)
        rights.require(rights.current(), rights.Action.DESTROY)
        async with self._locks.lock(sandbox.id):
            await self._end_box(sandbox, "its sandbox was stopped")

    async def delete(self, caller: Caller, sandbox_id: str) -> None:
        """Delete a sandbox and its own cargo; one that is deleted already is fine."""
        sandbox = self._sandboxes.get((caller.owner, sandbox_id))
        if sandbox is None:
            raise NotFound(f"Sandbox not found: {sandbox_id[:100]}")
        if sandbox.deleted_at is None:
            rights.require(rights.current(), rights.Action.DESTROY)
            await self._remove(sandbox, "its sandbox was deleted")

    # --- profiles -------------------------------------------------------------------------------------------

    def hutch_profile(self, name: str) -> str | None:
        """Return the profile of a box: the Bay API's default one, or any profile of Hutch that the caller may use."""
        if name == DEFAULT_PROFILE:
            return bots_profile(self._service.config)
        if name not in self.profiles():
            raise Invalid(f"Invalid profile: {name[:100]}")
        return name

    def profiles(self) -> list[str]:
        """List the names of the profiles that the caller may use, the default one first."""
        allowed = rights.current().profiles
        known = [*BUILT_IN, *sorted(self._service.config.profiles)]
        return [DEFAULT_PROFILE, *(name for name in known if allowed is None or name in allowed)]

    # --- cargos ---------------------------------------------------------------------------------------------

    async def create_cargo(self, caller: Caller, *, sandbox: str = "") -> Cargo:
        rights.require(rights.current(), rights.Action.CREATE)
        now = time.time()
        cargo = Cargo(
            id=f"cargo-{secrets.token_hex(6)}", owner=caller.owner, sandbox=sandbox, created_at=now, used_at=now
        )
        await self._keeper.volumes.create(cargo.volume, caller.owner)
        self._cargos[cargo.owner, cargo.id] = cargo
        await self._keeper.store.put_note(CARGO_KIND, f"{cargo.owner}/{cargo.id}", cargo.to_json())
        return cargo

    def cargo(self, caller: Caller, cargo_id: str) -> Cargo:
        cargo = self._cargos.get((caller.owner, cargo_id))
        if cargo is None:
            raise NotFound(f"Cargo not found: {cargo_id[:100]}")
        return cargo

    def cargos(self, caller: Caller) -> list[Cargo]:
        own = [cargo for cargo in self._cargos.values() if cargo.owner == caller.owner]
        return sorted(own, key=lambda cargo: (cargo.created_at, cargo.id))

    async def delete_cargo(self, caller: Caller, cargo_id: str) -> None:
        cargo = self.cargo(caller, cargo_id)
        rights.require(rights.current(), rights.Action.DESTROY)
        users = [each.id for each in self.all(caller) if each.cargo == cargo_id]
        if users:
            raise Conflict(f"Cargo {cargo_id} is used by sandboxes", details={"active_sandbox_ids": users})
        await self._remove_cargo(cargo)

    # --- parts ----------------------------------------------------------------------------------------------

    def _unexpired(self, caller: Caller, sandbox_id: str) -> Sandbox:
        sandbox = self.get(caller, sandbox_id)
        if sandbox.expired(time.time()):
            raise SandboxExpired(f"Sandbox {sandbox.id} has expired")
        return sandbox

    async def _start(self, caller: Caller, sandbox: Sandbox) -> Live:
        async with self._locks.lock(sandbox.id):
            live = await self.boxes.find_usable(sandbox.owner, _key(sandbox))
            if live is not None:
                return live
            cargo = self.cargo(caller, sandbox.cargo)
            self.get(caller, sandbox.id)  # It may have been deleted while this waited.
            spec = Spec(
                profile=self.hutch_profile(sandbox.profile),
                workspace=Workspace(source=f"volume:{cargo.volume}"),
                limits=LimitsAsked(),
                idle_timeout_sec=IDLE_SECONDS,
                labels={"bay.sandbox": sandbox.id, "bay.cargo": cargo.id, "bay.profile": sandbox.profile},
            )
            return await self.boxes.create(caller, _key(sandbox), spec)

    async def _end_box(self, sandbox: Sandbox, reason: str) -> None:
        live = await self.boxes.find(sandbox.owner, _key(sandbox))
        if live is not None:
            await self._keeper.destroy(live.record.id, reason, EventCause.CALL)

    async def _remove(self, sandbox: Sandbox, reason: str) -> None:
        async with self._locks.lock(sandbox.id):
            await self._save(sandbox.but(deleted_at=time.time()))
            await self._end_box(sandbox, reason)
        self.history.forget(sandbox.id)
        cargo = self._cargos.get((sandbox.owner, sandbox.cargo))
        if cargo is not None and cargo.sandbox and (cargo.owner, cargo.id) not in self._used_cargos():
            try:
                await self._remove_cargo(cargo)
            except Conflict as error:  # A box of another door shows its volume.
                log("server").warning("cargo not removed yet", operation="bay", cargo=cargo.id, error=error)

    def _used_cargos(self) -> set[tuple[str, str]]:
        """Return the cargos of all sandboxes that are not deleted: a caller may give one cargo to several."""
        return {(each.owner, each.cargo) for each in self._sandboxes.values() if each.deleted_at is None}

    async def _remove_cargo(self, cargo: Cargo) -> None:
        with suppress(NotFound):
            await self._keeper.volumes.remove(cargo.volume, cargo.owner)
        self._cargos.pop((cargo.owner, cargo.id), None)
        await self._keeper.store.drop_note(CARGO_KIND, f"{cargo.owner}/{cargo.id}")

    async def _save(self, sandbox: Sandbox) -> None:
        self._sandboxes[sandbox.owner, sandbox.id] = sandbox
        await self._keeper.store.put_note(SANDBOX_KIND, f"{sandbox.owner}/{sandbox.id}", sandbox.to_json())

    async def _forget(self, sandbox: Sandbox) -> None:
        self._sandboxes.pop((sandbox.owner, sandbox.id), None)
        await self._keeper.store.drop_note(SANDBOX_KIND, f"{sandbox.owner}/{sandbox.id}")

    async def _sweep(self) -> None:
        """End expired sandboxes: their boxes at once, their files a little later, their records at last."""
        while True:
            for sandbox in list(self._sandboxes.values()):
                try:
                    await self._check(sandbox, time.time())
                except (HutchError, OSError) as error:  # One sandbox's trouble must not keep the others.
                    log("server").warning("sandbox not ended", operation="bay", sandbox=sandbox.id, error=error)
            await self._sweep_cargos(time.time())
            await asyncio.sleep(SWEEP_SECONDS)

    async def _sweep_cargos(self, now: float) -> None:
        """Remove the cargos that were to be removed with their sandboxes, and were in use or met the end of a
        server."""
        used = self._used_cargos()
        for cargo in list(self._cargos.values()):
            # A new one waits for its sandbox.
            if cargo.sandbox and (cargo.owner, cargo.id) not in used and now - cargo.created_at > LEFT_SECONDS:
                try:
                    await self._remove_cargo(cargo)
                except (HutchError, OSError) as error:
                    log("server").warning("cargo not removed", operation="bay", cargo=cargo.id, error=error)

    async def _check(self, sandbox: Sandbox, now: float) -> None:
        if sandbox.deleted_at is not None:
            if now - sandbox.deleted_at > FORGOTTEN_SECONDS:
                await self._forget(sandbox)
        elif sandbox.expires_at is not None and sandbox.expires_at <= now:
            await self._end_box(sandbox, "its sandbox expired")
            if now - sandbox.expires_at > EXPIRED_SECONDS:
                await self._remove(sandbox, "its sandbox expired")


def _key(sandbox: Sandbox) -> str:
    return f"bay:{sandbox.id}"
