"""`DisabledHutch`: the Hutch of a disabled installation. It starts nothing, and every call says why."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from hutch.errors import Disabled
from hutch.model.boxes import BoxInfo, Event
from hutch.model.capabilities import Capabilities
from hutch.model.status import Condition, Status


class DisabledHutch:
    """The `Hutch` protocol while Hutch is disabled."""

    def __init__(self, origin: str = "") -> None:
        self.session = "off"
        self._origin = origin
        """The setting that disabled it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing, since nothing is open."""

    def _refuse(self, op: str) -> NoReturn:
        raise Disabled(
            f"Hutch is switched off{f' ({self._origin})' if self._origin else ''}", op=op, remedy="set enabled = true"
        )

    def for_session(self, name: str) -> "DisabledHutch":
        return self

    def box(self, **spec: Any) -> AbstractAsyncContextManager[Any]:
        self._refuse("create")

    async def create(self, *, key: str = "", wait: bool = True, **spec: Any) -> NoReturn:
        self._refuse("create")

    def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> AbstractAsyncContextManager[Any]:
        self._refuse("box_for")

    async def plan(self, **spec: Any) -> NoReturn:
        self._refuse("plan")

    async def import_box(self, file: str | Path, **changes: Any) -> NoReturn:
        self._refuse("import")

    async def attach(self, box_id: str, *, takeover: bool = False) -> NoReturn:
        self._refuse("attach")

    async def observe(self, box_id: str) -> NoReturn:
        self._refuse("observe")

    async def administer(self, box_id: str) -> NoReturn:
        self._refuse("administer")

    async def find(self, text: str) -> NoReturn:
        self._refuse("find")

    async def boxes(self, *, after: str = "", limit: int | None = None) -> tuple[BoxInfo, ...]:
        """Return no boxes instead of an error, so that lists keep working."""
        return ()

    async def destroy(self, box_id: str, *, force: bool = False) -> NoReturn:
        self._refuse("destroy")

    async def current(self) -> NoReturn:
        self._refuse("current")

    async def switch(self, box_id: str, *, takeover: bool = False) -> NoReturn:
        self._refuse("switch")

    async def working(self, **spec: Any) -> NoReturn:
        self._refuse("working")

    async def leave(self) -> NoReturn:
        self._refuse("leave")

    async def default(self, provider: str = "") -> NoReturn:
        self._refuse("default")

    async def set_default(self, box_id: str, provider: str = "") -> NoReturn:
        self._refuse("set_default")

    @property
    def volumes(self) -> NoReturn:
        self._refuse("volumes")

    @property
    def receipts(self) -> NoReturn:
        self._refuse("receipts")

    @property
    def questions(self) -> NoReturn:
        self._refuse("questions")

    @property
    def skills(self) -> NoReturn:
        self._refuse("skills")

    @property
    def apps(self) -> NoReturn:
        self._refuse("apps")

    @property
    def mcp_servers(self) -> NoReturn:
        self._refuse("mcp_servers")

    async def on_created(self, hook: object) -> NoReturn:
        self._refuse("on_created")

    async def on_destroyed(self, hook: object) -> NoReturn:
        self._refuse("on_destroyed")

    async def metrics(self) -> NoReturn:
        self._refuse("metrics")

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        self._refuse("events")

    async def providers(self, name: str = "") -> tuple[Capabilities, ...]:
        self._refuse("providers")

    async def status(self) -> Status:
        reason = f"enabled = false ({self._origin})" if self._origin else "enabled = false"
        return Status(
            state=Condition.DISABLED, enabled=False, available=False, reason=reason, remedy="set enabled = true"
        )

    async def shutdown(self) -> None:
        """Do nothing, since nothing is open."""

    async def close(self) -> None:
        """Do nothing, since nothing is open."""
