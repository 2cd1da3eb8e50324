"""`RemoteApps`: the `Apps` protocol over HTTP."""

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.api.apps import ANSWER_SECONDS
from hutch.client.transport.requests import Repeat
from hutch.model.apps import AppInfo, TemplateInfo
from hutch.model.boxes import Preview
from hutch.model.ids import is_box_id

if TYPE_CHECKING:
    from hutch.client.remote import RemoteHutch


class RemoteApps:
    """Apps of the key's owner, which the server keeps."""

    def __init__(self, hutch: "RemoteHutch", ask: Callable[..., Awaitable[Any]]) -> None:
        self._hutch = hutch
        self._ask = ask

    async def templates(self) -> tuple[TemplateInfo, ...]:
        found: tuple[TemplateInfo, ...] = await self._ask(
            tuple[TemplateInfo, ...], "GET", "/v1/app-templates", part="templates"
        )
        return found

    async def create(self, template: str, name: str = "", /, *, port: int = 0, **spec: Any) -> AppInfo:
        given = {field: value for field, value in spec.items() if value is not None}
        body = {"template": template, "name": name, "port": port, "spec": msgspec.to_builtins(given, enc_hook=str)}
        headers = {"Hutch-Session": self._hutch.session, "Idempotency-Key": f"once:{secrets.token_hex(16)}"}
        made: AppInfo = await self._hutch.server.ask(AppInfo, "POST", "/v1/apps", headers=headers, body=body)
        return made

    async def all(self) -> tuple[AppInfo, ...]:
        found: tuple[AppInfo, ...] = await self._ask(tuple[AppInfo, ...], "GET", "/v1/apps", part="apps")
        return found

    async def get(self, name: str) -> AppInfo:
        found: AppInfo = await self._ask(AppInfo, "GET", await self._path(name))
        return found

    async def wait(self, name: str, timeout_sec: float = ANSWER_SECONDS) -> AppInfo:
        path = await self._path(name)
        found: AppInfo = await self._ask(AppInfo, "POST", f"{path}/wait", body={"timeout_sec": timeout_sec})
        return found

    async def url(self, name: str, *, public: bool = False, ttl_sec: float = 3600.0) -> Preview:
        app = await self.get(name)
        path, body = f"/v1/boxes/{app.box_id}/ports/{app.port}/url", {"public": public, "ttl_sec": ttl_sec}
        made: Preview = await self._ask(Preview, "POST", path, body=body, repeat=Repeat.UNSENT)
        return made

    async def logs(self, name: str, lines: int = 200) -> tuple[str, ...]:
        path = await self._path(name)
        found: tuple[str, ...] = await self._ask(tuple[str, ...], "GET", f"{path}/logs", part="lines", lines=lines)
        return found

    async def start(self, name: str) -> AppInfo:
        started: AppInfo = await self._ask(AppInfo, "POST", f"{await self._path(name)}/start", repeat=Repeat.UNSENT)
        return started

    async def stop(self, name: str) -> AppInfo:
        stopped: AppInfo = await self._ask(AppInfo, "POST", f"{await self._path(name)}/stop")
        return stopped

    async def remove(self, name: str) -> None:
        app = await self.get(name)
        await self._hutch.destroy(app.box_id)

    async def _path(self, name: str) -> str:
        """Return the path of an app; one that is named by its name has to be found first."""
        return f"/v1/apps/{name if is_box_id(name) else (await self._hutch.find(name)).id}"
