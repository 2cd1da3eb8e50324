"""The JSON of E2B's control plane: requests, with everything that the SDKs send, and answers.

A field of a request that is not listed is refused, because nothing would come of it.
"""

from typing import Annotated, Any

import msgspec

from hutch.errors import Invalid
from hutch.keeper.boxes.records import BoxRecord

ENVD_VERSION = "0.6.13"
"""The release of E2B's agent whose protocol this server speaks. The SDKs enable features by it."""
DEFAULT_TIMEOUT = 300
DEFAULT_TIMEOUT_V1 = 15
MAX_TIMEOUT = 86400 * 30
MAX_PAGE = 100

Seconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMEOUT)]
Object = dict[str, Any]


class AutoResume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = False


class VolumeMount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    path: str


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Rules of a sandbox's network."""

    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    rules: Object | None = None
    egress_proxy: Object | None = None
    dns_servers: list[str] | None = None
    allow_public_traffic: bool | None = None
    mask_request_host: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    https_ports: list[int] | None = None


class NewSandbox(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The body of a creation."""

    template_id: str = msgspec.field(name="templateID")
    timeout: Seconds | None = None
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: AutoResume | None = None
    allow_internet_access: bool | None = msgspec.field(default=None, name="allow_internet_access")
    network: Network | None = None
    mcp: Object | None = None
    iam: Object | None = None
    volume_mounts: list[VolumeMount] | None = None
    secure: bool | None = None


class ConnectSandbox(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout: Seconds | None = None
    memory: bool | None = None


class ResumeSandbox(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    timeout: Seconds | None = None
    auto_pause: bool | None = None


class TimeoutBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout: Seconds


class PauseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    memory: bool | None = None
    require_healthy_guest: bool | None = None


class Sandbox(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to a creation or a connection."""

    template_id: str = msgspec.field(name="templateID")
    sandbox_id: str = msgspec.field(name="sandboxID")
    client_id: str = msgspec.field(name="clientID", default="hutch")
    envd_version: str = ENVD_VERSION
    alias: str
    envd_access_token: str
    traffic_access_token: str | None = None
    domain: str | None


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    auto_resume: bool
    on_timeout: str


class ListedSandbox(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    template_id: str = msgspec.field(name="templateID")
    sandbox_id: str = msgspec.field(name="sandboxID")
    client_id: str = msgspec.field(name="clientID")
    alias: str
    started_at: str
    end_at: str
    cpu_count: int
    memory_mb: int = msgspec.field(name="memoryMB")
    disk_size_mb: int = msgspec.field(name="diskSizeMB")
    state: str
    envd_version: str
    metadata: dict[str, str]
    volume_mounts: list[VolumeMount] | msgspec.UnsetType = msgspec.UNSET
    # The detail of one sandbox has these too.
    envd_access_token: str | msgspec.UnsetType = msgspec.UNSET
    domain: str | msgspec.UnsetType | None = msgspec.UNSET
    allow_internet_access: bool | msgspec.UnsetType = msgspec.UNSET
    lifecycle: Lifecycle | msgspec.UnsetType = msgspec.UNSET


class Metric(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    timestamp: str
    timestamp_unix: int
    cpu_count: int
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int


def page_of(found: list[BoxRecord], query: dict[str, str]) -> tuple[list[BoxRecord], str]:
    """Return the page of a list that a query asks for, and the token of the next page; empty if this is the last.

    The token of the next page is the last id of this one.
    """
    limit = query.get("limit", str(MAX_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= MAX_PAGE):
        raise Invalid(f"limit is a number from 1 to {MAX_PAGE}")
    after = query.get("nextToken", "")
    start = 0
    if after:
        start = next((index + 1 for index, record in enumerate(found) if record.id == after), len(found))
    page = found[start : start + int(limit)]
    more = start + int(limit) < len(found)
    return page, page[-1].id if more and page else ""
