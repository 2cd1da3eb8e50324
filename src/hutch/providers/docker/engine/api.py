"""The calls of an engine's API that we use: containers, execs, volumes, networks, images. Each has one method."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from hutch.errors import HutchError, Unavailable
from hutch.providers.docker.engine.endpoint import Endpoint
from hutch.providers.docker.engine.http import TIMEOUT, EngineHttp, EngineRefused, Upload

OLDEST = (1, 40)
"""The oldest API version that has everything we send: that of Docker 19.03."""
NEWEST = (1, 47)
REMOVAL_TIMEOUT = 30.0
COPY_TIMEOUT = 600.0
"""Seconds for a request that reads or writes all files of a box."""

Json = dict[str, Any]


class Engine:
    """One engine. Every method takes a container's name or its id alike."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.http = EngineHttp(endpoint)
        # Concurrent first callers negotiate the version once.
        self._meeting = asyncio.Lock()

    async def meet(self) -> None:
        """Negotiate a version of the API, because without one each engine answers in its own latest."""
        if self.http.prefix:
            return
        async with self._meeting:
            if self.http.prefix:
                return
            found: Json = await self.http.call("GET", "/version")
            theirs = _version(found.get("ApiVersion"))
            if theirs < OLDEST:
                raise Unavailable(
                    f"the engine at {self.http.endpoint} speaks version {theirs[0]}.{theirs[1]} of the API",
                    op="connect",
                    retryable=False,
                    remedy="Docker 19.03 or Podman 4, or newer",
                )
            self.http.prefix = "/v{}.{}".format(*min(theirs, NEWEST))

    async def call(self, method: str, path: str, **fields: Any) -> Any:
        await self.meet()
        return await self.http.call(method, path, **fields)

    async def version(self) -> Json:
        return dict(await self.call("GET", "/version"))

    async def info(self) -> Json:
        return dict(await self.call("GET", "/info"))

    # --- containers ------------------------------------------------------------------------------------------

    async def create(self, name: str, body: Json) -> str:
        return str((await self.call("POST", "/containers/create", query={"name": name}, body=body))["Id"])

    async def start(self, name: str) -> None:
        await self.call("POST", f"/containers/{name}/start")

    async def inspect(self, name: str) -> Json | None:
        """Return the container's description, or None if there is no such container."""
        return await self._if_there("GET", f"/containers/{name}/json")

    async def layer_bytes(self, name: str) -> int:
        """Return the bytes in a container's own layer, or 0 if there is no such container."""
        found = await self._if_there("GET", f"/containers/{name}/json", query={"size": True})
        return int((found or {}).get("SizeRw") or 0)

    async def remove(self, name: str) -> None:
        """Remove a container and its anonymous volumes, and wait until it is gone. It may be gone already."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REMOVAL_TIMEOUT
        while True:
            try:
                await self.call("DELETE", f"/containers/{name}", query={"force": True, "v": True})
            except EngineRefused as refused:
                if refused.status == 404:
                    return
                # 409 means that somebody else is removing the container, or that it is just being started.
                if refused.status not in (409, 500) or loop.time() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    async def containers(self, labels: Mapping[str, str]) -> list[Json]:
        asked = {"label": [f"{name}={value}" if value else name for name, value in labels.items()]}
        return list(await self.call("GET", "/containers/json", query={"all": True, "filters": asked}))

    async def logs(self, name: str) -> str:
        """Return the last lines that a container's first process wrote, for a message."""
        try:
            raw = await self.http.raw(
                "GET", f"/containers/{name}/logs", query={"stdout": True, "stderr": True, "tail": "5"}, timeout=5.0
            )
        except HutchError:
            return ""
        text = b""
        while len(raw) >= 8 and raw[0] < 3:
            size = int.from_bytes(raw[4:8], "big")
            text, raw = text + raw[8 : 8 + size], raw[8 + size :]
        return (text or raw).decode("utf-8", "replace").strip()[-500:]

    async def put_archive(self, name: str, path: str, tar: bytes | Upload) -> None:
        timeout = COPY_TIMEOUT if isinstance(tar, Upload) else TIMEOUT
        await self.call("PUT", f"/containers/{name}/archive", query={"path": path}, body=tar, timeout=timeout)

    async def get_archive(self, name: str, path: str) -> bytes:
        await self.meet()
        return await self.http.raw("GET", f"/containers/{name}/archive", query={"path": path})

    async def archive_pieces(self, name: str, path: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an archive that may be large."""
        await self.meet()
        async for piece in self.http.pieces("GET", f"/containers/{name}/archive", query={"path": path}):
            yield piece

    async def changes(self, name: str) -> dict[str, bool]:
        """Return the paths that a container has changed, added or removed, and whether its image has them too."""
        found = await self.call("GET", f"/containers/{name}/changes", timeout=COPY_TIMEOUT)
        return {str(each["Path"]): each.get("Kind") != 1 for each in found or ()}

    async def rename(self, name: str, new: str) -> None:
        await self.call("POST", f"/containers/{name}/rename", query={"name": new})

    async def pause(self, name: str) -> None:
        await self._unless("already paused", "POST", f"/containers/{name}/pause")

    async def unpause(self, name: str) -> None:
        await self._unless("not paused", "POST", f"/containers/{name}/unpause")

    async def update(self, name: str, body: Json) -> None:
        await self.call("POST", f"/containers/{name}/update", body=body)

    async def wait(self, name: str) -> None:
        """Wait until its first process has ended. Returns at once if there is no such container."""
        try:
            await self.call("POST", f"/containers/{name}/wait", timeout=None)
        except EngineRefused as refused:
            if refused.status != 404:
                raise

    async def stats(self, name: str) -> Json:
        """Return the container's counters as they are now."""
        return dict(
            await self.call("GET", f"/containers/{name}/stats", query={"stream": False, "one-shot": True}) or {}
        )

    # --- execs -----------------------------------------------------------------------------------------------

    async def exec_create(self, name: str, argv: list[str], *, user: str, attached: bool) -> str:
        body = {
            "Cmd": argv, "User": user, "AttachStdin": attached, "AttachStdout": attached, "AttachStderr": attached,
            "Tty": False, "Privileged": False,
        }  # fmt: skip
        return str((await self.call("POST", f"/containers/{name}/exec", body=body))["Id"])

    async def exec_detached(self, exec_id: str) -> None:
        await self.call("POST", f"/exec/{exec_id}/start", body={"Detach": True, "Tty": False})

    # --- volumes and networks --------------------------------------------------------------------------------

    async def volume(self, name: str) -> Json | None:
        return await self._if_there("GET", f"/volumes/{name}")

    async def volumes(self, label: str) -> list[Json]:
        found = await self.call("GET", "/volumes", query={"filters": {"label": [label]}})
        return list(found.get("Volumes") or [])

    async def volume_bytes(self, names: list[str]) -> int:
        """Return the bytes that these volumes hold, for which the engine counts all of its volumes."""
        found = await self.call("GET", "/system/df", query={"type": "volume"})
        sizes = {each["Name"]: (each.get("UsageData") or {}).get("Size") or 0 for each in found.get("Volumes") or ()}
        return sum(max(0, int(sizes.get(name, 0))) for name in names)

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        await self.call("POST", "/volumes/create", body={"Name": name, "Labels": dict(labels)})

    async def remove_volume(self, name: str) -> bool:
        """Remove it and return whether it is gone. One that a container uses stays."""
        try:
            await self.call("DELETE", f"/volumes/{name}")
        except EngineRefused as refused:
            if refused.status == 409:
                return False
            if refused.status != 404:
                raise
        return True

    async def networks(self, label: str) -> list[Json]:
        return list(await self.call("GET", "/networks", query={"filters": {"label": [label]}}))

    async def create_network(self, body: Json) -> str:
        return str((await self.call("POST", "/networks/create", body=body))["Id"])

    async def remove_network(self, name: str) -> bool:
        """Remove it and return whether it is gone. One that a container uses stays."""
        try:
            await self.call("DELETE", f"/networks/{name}")
        except EngineRefused as refused:
            if refused.status in (403, 409):
                return False
            if refused.status != 404:
                raise
        return True

    # --- images ----------------------------------------------------------------------------------------------

    async def image(self, reference: str) -> Json | None:
        return await self._if_there("GET", f"/images/{reference}/json")

    async def load_image(self, name: str, tar: bytes) -> None:
        """Make an image of one layer from the archive of a root."""
        repository, _, tag = name.rpartition(":")
        await self.call("POST", "/images/create", query={"fromSrc": "-", "repo": repository, "tag": tag}, body=tar)

    async def pull(self, reference: str, tag: str, auth: str) -> AsyncIterator[Json]:
        """Yield the engine's progress messages while it pulls. One with an `error` is the last."""
        await self.meet()
        headers = {"X-Registry-Auth": auth} if auth else None
        query = {"fromImage": reference, "tag": tag}
        async for line in self.http.lines("POST", "/images/create", query=query, headers=headers):
            yield line

    # --- requests --------------------------------------------------------------------------------------------

    async def _if_there(self, method: str, path: str, **fields: Any) -> Json | None:
        try:
            return dict(await self.call(method, path, **fields))
        except EngineRefused as refused:
            if refused.status == 404:
                return None
            raise

    async def _unless(self, reason: str, method: str, path: str) -> None:
        """Send a request, and ignore a refusal for this reason. Its status differs from version to version."""
        try:
            await self.call(method, path)
        except EngineRefused as refused:
            if reason not in refused.message:
                raise


def _version(text: object) -> tuple[int, int]:
    major, _, minor = str(text or "0.0").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)
