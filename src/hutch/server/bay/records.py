"""What the Bay door keeps in the store, and what its requests carry."""

from datetime import UTC, datetime
from typing import Annotated

import msgspec

from hutch.model.record import Record

Seconds = Annotated[int, msgspec.Meta(ge=1, le=300)]
Page = Annotated[int, msgspec.Meta(ge=1, le=500)]
Offset = Annotated[int, msgspec.Meta(ge=0)]
MAX_TTL_SECONDS = 10 * 365 * 86400
"""A time that is much further away has no date."""


class Sandbox(Record, frozen=True, kw_only=True):
    """A sandbox outlives its box: an idle box is ended, and the cargo with its files stays."""

    id: str
    owner: str
    profile: str
    cargo: str
    created_at: float
    expires_at: float | None = None
    deleted_at: float | None = None

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class Cargo(Record, frozen=True, kw_only=True):
    """A volume under the name that the Bay API gives it."""

    id: str
    owner: str
    sandbox: str = ""
    """The sandbox with which it is removed; empty if a caller created it by itself."""
    size_limit_mb: int = 0
    """0, since nothing limits the size of a volume; the API wants a number."""
    created_at: float
    used_at: float

    @property
    def volume(self) -> str:
        return f"bay-{self.id}"

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id, "managed": bool(self.sandbox), "managed_by_sandbox_id": self.sandbox or None,
            "backend": "hutch_volume", "size_limit_mb": self.size_limit_mb, "created_at": time_of(self.created_at),
            "last_accessed_at": time_of(self.used_at),
        }  # fmt: skip


# Newer SDKs may send more members, so these do not refuse what they do not know.


class CreateSandbox(msgspec.Struct, frozen=True, kw_only=True):
    profile: str = "python-default"
    ttl: Annotated[int, msgspec.Meta(ge=0, le=MAX_TTL_SECONDS)] | None = None
    cargo_id: str | None = None


class ExtendTtl(msgspec.Struct, frozen=True, kw_only=True):
    extend_by: Annotated[int, msgspec.Meta(ge=1, le=MAX_TTL_SECONDS)]


class CreateCargo(msgspec.Struct, frozen=True, kw_only=True):
    size_limit_mb: int | None = None


class ShellExec(msgspec.Struct, frozen=True, kw_only=True):
    command: Annotated[str, msgspec.Meta(min_length=1)]
    timeout: Seconds = 30
    cwd: str | None = None
    include_code: bool = False
    description: str | None = None
    tags: str | None = None


class PythonExec(msgspec.Struct, frozen=True, kw_only=True):
    code: Annotated[str, msgspec.Meta(min_length=1)]
    timeout: Seconds = 30
    include_code: bool = False
    description: str | None = None
    tags: str | None = None


class WriteFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    content: str


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    description: str | None = None
    tags: str | None = None
    notes: str | None = None


class PathQuery(msgspec.Struct, frozen=True, kw_only=True):
    path: str = "."


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: Page = 50
    cursor: str = ""
    status: str = ""
    managed: bool | None = None


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    exec_type: str = ""
    success_only: bool = False
    limit: Page = 100
    offset: Offset = 0
    tags: str = ""
    has_notes: bool = False
    has_description: bool = False


def time_of(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
