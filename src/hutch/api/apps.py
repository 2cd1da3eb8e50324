"""The protocol of app boxes, and the handle on one app."""

from typing import Any, Protocol, Self

from hutch.model.apps import AppInfo, TemplateInfo
from hutch.model.boxes import Preview

ANSWER_SECONDS = 600.0
"""How long callers wait by default until an app answers: a first installation of packages takes minutes."""


class Apps(Protocol):
    """Web applications from templates, each in a box of its own. An app is named by its name, or by its box's id."""

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the templates there are."""

    async def create(self, template: str, name: str = "", /, *, port: int = 0, **spec: Any) -> AppInfo:
        """Create a box, write the template's files and start the app's job; `wait` waits for the rest.

        The search for a free port begins at `port`, or at the template's usual one. A workspace that has an
        application already is taken as it is. Raises: Invalid for an unknown template; Conflict if the name is taken;
        as `Hutch.create`.
        """

    async def all(self) -> tuple[AppInfo, ...]:
        """Return the apps, oldest first. Listing them extends no clock."""

    async def get(self, name: str) -> AppInfo:
        """Return one app. Raises: NotFound."""

    async def wait(self, name: str, timeout_sec: float = ANSWER_SECONDS) -> AppInfo:
        """Wait until the app answers HTTP.

        Raises: AppFailed if it ended, with the last lines of its log in `details["log"]`; Timeout.
        """

    async def url(self, name: str, *, public: bool = False, ttl_sec: float = 3600.0) -> Preview:
        """Return an address at which browsers see the app; see `Box.url`."""

    async def logs(self, name: str, lines: int = 200) -> tuple[str, ...]:
        """Return the newest lines that its programs wrote, oldest first."""

    async def start(self, name: str) -> AppInfo:
        """Start a stopped or failed app again. Raises: Conflict if it runs."""

    async def stop(self, name: str) -> AppInfo:
        """End the app's program; its box and files stay until their clocks end them."""

    async def remove(self, name: str) -> None:
        """Destroy the app's box with its files."""


class App:
    """A handle on one app, for use with `async with`, which destroys its box at the end."""

    def __init__(self, apps: Apps, info: AppInfo) -> None:
        self._apps = apps
        self.box_id = info.box_id
        self.name = info.name
        self.template = info.template
        self.port = info.port

    async def info(self) -> AppInfo:
        return await self._apps.get(self.box_id)

    async def wait(self, timeout_sec: float = ANSWER_SECONDS) -> AppInfo:
        """Wait until it answers HTTP. Raises: AppFailed; Timeout."""
        return await self._apps.wait(self.box_id, timeout_sec)

    async def url(self, *, public: bool = False, ttl_sec: float = 3600.0) -> Preview:
        """Return an address at which browsers see it; see `Box.url`."""
        return await self._apps.url(self.box_id, public=public, ttl_sec=ttl_sec)

    async def logs(self, lines: int = 200) -> tuple[str, ...]:
        """Return the newest lines that its programs wrote."""
        return await self._apps.logs(self.box_id, lines)

    async def start(self) -> AppInfo:
        return await self._apps.start(self.box_id)

    async def stop(self) -> AppInfo:
        return await self._apps.stop(self.box_id)

    async def destroy(self) -> None:
        await self._apps.remove(self.box_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()
