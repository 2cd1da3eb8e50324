"""The messages of the Box Runtime protocol: frames, contexts, specs, and the errors that its client understands.

A client recognises an error by the name of its class at the beginning of the text, so every text is cleared of other
such names: a command's output in an error must not turn it into another one.
"""

import hashlib
import posixpath
import re
from typing import Annotated, Any, Literal

import msgspec

from hutch.errors import (
    BoxBusy,
    Conflict,
    Gone,
    HutchError,
    Invalid,
    LeaseLost,
    NotFound,
    QuotaExceeded,
    Refused,
)
from hutch.logs import redact
from hutch.model.record import Record
from hutch.policy.values import YEAR_SEC

MOUNT_PATH = "/workspace"
ARTIFACTS = "/opt/langbot-artifacts"
"""Where a skill's read-only files appear, each tree under its digest."""
DEFAULT_IMAGE = "rockchin/langbot-sandbox:latest"
MAX_ERROR_CHARACTERS = 4096
MAX_SESSION_CHARACTERS = 160
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_ERROR_NAMES = re.compile(r"(Box[A-Za-z]*Error):")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Text = Annotated[str, msgspec.Meta(min_length=1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
MountMode = Literal["rw", "ro", "none"]


class BoxFailure(HutchError):
    """An error that the client raises as the class `name`."""

    code = "langbot"

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace for which an action is meant. Newer clients may add members."""

    instance_uuid: Text
    workspace_uuid: Text
    placement_generation: Positive = 1

    @property
    def namespace(self) -> str:
        """The name under which the workspace's files are kept, whatever its generation."""
        named = f"{self.instance_uuid}\0{self.workspace_uuid}"
        return "ws-" + hashlib.sha256(named.encode()).hexdigest()[:24]

    @property
    def prefix(self) -> str:
        return f"{self.namespace}-g{self.placement_generation}-"

    def physical(self, session_id: str) -> str:
        """The id that the client computes for the relay's address, so it must be computed in the same way here."""
        safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", session_id.strip()).strip("-")
        if not safe:
            raise Invalid("Box session_id must contain a valid character")
        if len(safe) > MAX_SESSION_CHARACTERS:
            raise Invalid(f"Box session_id has more than {MAX_SESSION_CHARACTERS} characters")
        return self.prefix + safe


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of the client."""

    seq_id: int
    action: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    context: Context | None = None


class MountSpec(Record, frozen=True, kw_only=True):
    """A directory of LangBot's machine that a session is to show."""

    host_path: str
    mount_path: str
    mode: MountMode = "rw"
    content_digest: str | None = None
    manifest_path: str | None = None

    @property
    def is_artifact(self) -> bool:
        """Whether it is a skill: read-only, and named by the digest of what it holds."""
        digest = self.content_digest or ""
        named = _DIGEST.fullmatch(digest) is not None and self.mount_path == f"{ARTIFACTS}/{digest[7:]}"
        return named and self.mode == "ro" and bool(self.manifest_path)

    def check(self) -> None:
        _check_host_path(self.host_path)
        if not self.mount_path.startswith("/") or posixpath.normpath(self.mount_path) != self.mount_path:
            raise Invalid("mount_path must be an absolute and normalized path inside the sandbox")
        if posixpath.commonpath((self.mount_path, ARTIFACTS)) == ARTIFACTS and not self.is_artifact:
            raise Invalid("Artifact paths require a read-only digest-addressed mount and manifest")


def _check_host_path(path: str) -> None:
    if not path.startswith("/") or "\0" in path:
        raise Invalid("host_path must be an absolute host path")


class BoxSpec(Record, frozen=True, kw_only=True):
    """What `box_exec` and `box_create_session` ask for; the session's part of it is fixed while the session lives."""

    session_id: str
    cmd: str = ""
    workdir: str = MOUNT_PATH
    timeout_sec: Annotated[int, msgspec.Meta(ge=1, le=round(YEAR_SEC))] = 30
    network: Literal["off", "on"] = "off"
    env: dict[str, str] = msgspec.field(default_factory=dict)
    image: str = DEFAULT_IMAGE
    host_path: str | None = None
    host_path_mode: MountMode = "rw"
    mount_path: str = MOUNT_PATH
    extra_mounts: tuple[MountSpec, ...] = ()
    persistent: bool = False
    cpus: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    memory_mb: Annotated[int, msgspec.Meta(ge=32)] = 512
    pids_limit: Positive = 128
    read_only_rootfs: bool = True
    workspace_quota_mb: Annotated[int, msgspec.Meta(ge=0)] = 0

    @classmethod
    def parse(cls, data: dict[str, Any]) -> "BoxSpec":
        """Parse and check a spec as the reference does. Raises Invalid."""
        spec = cls.from_plain({**data, "workdir": data.get("workdir") or data.get("mount_path") or MOUNT_PATH})
        spec = spec.but(cmd=spec.cmd.strip(), session_id=spec.session_id.strip())
        if not spec.session_id:
            raise Invalid("session_id must not be empty")
        if not spec.workdir.startswith("/"):
            raise Invalid("workdir must be an absolute path inside the sandbox")
        if spec.host_path is not None:
            _check_host_path(spec.host_path)
        if spec.mount_path != MOUNT_PATH:
            raise Invalid(f"mount_path must be {MOUNT_PATH}")
        mounted = spec.host_path is not None and spec.host_path_mode != "none"
        if mounted and posixpath.commonpath((posixpath.normpath(spec.workdir), MOUNT_PATH)) != MOUNT_PATH:
            raise Invalid(f"workdir must stay under mount_path {MOUNT_PATH} when host_path is mounted")
        for mount in spec.extra_mounts:
            mount.check()
        return spec


SESSION_FIELDS = (
    "network", "image", "host_path", "host_path_mode", "mount_path", "persistent", "cpus", "memory_mb", "pids_limit",
    "read_only_rootfs", "workspace_quota_mb",
)  # fmt: skip
"""The fields that a session keeps; a spec that differs in one of them is refused while the session lives."""


class ProcessSpec(Record, frozen=True, kw_only=True):
    """A process that outlives the call which started it, such as an MCP server."""

    process_id: Text = "default"
    command: Text
    args: tuple[str, ...] = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    cwd: str = MOUNT_PATH
    memory_mb: Annotated[int, msgspec.Meta(ge=0)] = 0
    """0 for the session's; a process shares its box's memory limit in any case."""

    @classmethod
    def parse(cls, data: object) -> "ProcessSpec":
        spec = cls.from_plain(data)
        if not spec.cwd.startswith("/"):
            raise Invalid("cwd must be an absolute path inside the sandbox")
        if not spec.command.strip():
            raise Invalid("command must not be empty")
        return spec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What LangBot allows itself (`box.limits`), besides what Hutch allows its owner."""

    max_sessions: int = 64
    max_managed_processes: int = 64
    max_completed_processes: int = 256
    max_admission_records: int = 100_000
    max_rpc_file_bytes: int = 20 << 20

    @classmethod
    def parse(cls, config: dict[str, Any]) -> "Limits":
        given = config.get("limits") or {}
        if not isinstance(given, dict):
            raise BoxFailure("ValueError", "box.limits must be an object")
        known = {name: value for name, value in given.items() if name in cls.__struct_fields__}
        for name, value in known.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BoxFailure("ValueError", f"box.limits.{name} must be a positive integer")
        return cls(**known)


def is_instance(text: str) -> bool:
    return _INSTANCE.fullmatch(text) is not None


def answer(seq_id: int, data: object) -> str:
    frame = {"seq_id": seq_id, "code": 0, "message": "success", "data": data, "chunk_status": "continue"}
    return msgspec.json.encode(frame).decode()


def refusal(seq_id: int, error: HutchError) -> str:
    frame = {"seq_id": seq_id, "code": 1, "message": error_text(error), "data": {}, "chunk_status": "continue"}
    return msgspec.json.encode(frame).decode()


def error_name(error: HutchError) -> str:
    """The class that the client raises for an error of ours."""
    match error:
        case BoxFailure():
            return error.name
        case QuotaExceeded():
            return "BoxCapacityExceededError"
        case Gone() | NotFound():
            return "BoxSessionNotFoundError"
        case Invalid() | Refused():
            return "BoxValidationError"
        case Conflict() | BoxBusy() | LeaseLost():
            return "BoxSessionConflictError"
        case _ if error.code in ("unavailable", "engine", "disabled", "box_broken", "unsupported"):
            return "BoxBackendUnavailableError"
        case _:
            return "BoxError"


def error_text(error: HutchError) -> str:
    text = _ERROR_NAMES.sub(r"\1", redact(str(error)))
    return f"{error_name(error)}: {text}"[:MAX_ERROR_CHARACTERS]
