"""The table of all routes: method, path, handler, required permission, and the form of the answer.

A handler's signature says what the route takes: `query` and `body` are records. The app and the OpenAPI document read
it from there, so table, handlers and reference cannot drift apart.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_type_hints

from hutch.errors import Invalid, NotFound, Refused
from hutch.keeper.keys import Key, Role
from hutch.model.apps import AppInfo
from hutch.model.boxes import BoxInfo, Event, Preview, VolumeInfo
from hutch.model.code import CodeResult, KernelInfo
from hutch.model.files import Edited, FileInfo, GrepResult, Matches
from hutch.model.images import ImageDetails
from hutch.model.layers import Checkpoint, Diff, Forks, Merge, Rollback
from hutch.model.mcp import McpServerInfo
from hutch.model.receipts import Receipt
from hutch.model.results import JobInfo, Usage
from hutch.model.skills import SkillBinding, SkillInfo, SkillPlace, SkillPreview
from hutch.model.spec import EffectiveSpec
from hutch.model.status import Metrics, Status
from hutch.server.auth import Caller
from hutch.server.dashboard import handlers as dashboard
from hutch.server.dashboard import live
from hutch.server.error_status import BOX_ERRORS, FILE_ERRORS
from hutch.server.handlers import about, apps, boxes, events, images, mcp_servers, questions, receipts, sessions, skills
from hutch.server.handlers.box import code, commands, export, files, jobs, layers, ports
from hutch.server.request import BYTES, NDJSON, Call, Reply
from hutch.server.wire import ExecLine, ExecResult, Health, OutputChunk, Ready, SpecForm, WatchLine

Handler = Callable[..., Awaitable[Reply]]


class May(StrEnum):
    """Who may use a route."""

    ANYBODY = "anybody"
    READ = "read"
    """Every key may use the route, which changes nothing."""
    CHANGE = "change"
    MONITOR = "monitor"
    """Admins and observers may use the route, which shows numbers of all owners."""
    ADMIN = "admin"

    def allows(self, role: Role) -> bool:
        if self in (May.ANYBODY, May.READ):
            return True
        if self is May.CHANGE:
            return role is not Role.OBSERVER
        return role is Role.ADMIN or (self is May.MONITOR and role is Role.OBSERVER)


@dataclass(frozen=True)
class Route:
    """One operation of the API."""

    method: str
    path: str
    handler: Handler
    may: May
    reply: type | None = None
    """The type of a successful JSON answer; `str` or `bytes` for a raw body; None for no body except `streams`."""
    long: bool = False
    """The work may take long, and is cancelled when the client disconnects."""
    status: tuple[int, ...] = ()
    """Statuses of successful answers; by default 200, or 204 without a body."""
    streams: Mapping[str, type] = field(default_factory=dict, hash=False)
    """Other forms of the answer by media type, chosen by Accept, with the type of one line or event."""
    form: type | None = None
    """The documented type of the body, where the handler accepts any object and checks it itself."""
    raw: bool = False
    """The body is raw bytes, which the handler reads piece by piece."""
    headers: tuple[str, ...] = ()
    """Request headers that only this route uses."""
    fails: tuple[str, ...] = ()
    """Error codes besides those that follow from its path and its body."""
    op: str = field(init=False)
    query: type | None = field(init=False)
    body: type | None = field(init=False)
    parts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        hints = get_type_hints(self.handler)
        object.__setattr__(self, "query", hints.get("query"))
        object.__setattr__(self, "body", hints.get("body"))
        object.__setattr__(self, "parts", tuple(self.path.strip("/").split("/")))
        object.__setattr__(self, "op", f"{self.method} {self.path}")

    async def parse(self, call: Call) -> dict[str, Any]:
        """The handler's arguments besides the call."""
        arguments: dict[str, Any] = {}
        if self.query is not None:
            arguments["query"] = call.query(self.query)
        elif call.has_query:
            raise Invalid(f"{self.op} takes no query")
        if self.body is not None:
            arguments["body"] = await call.body(self.body)
        return arguments


_BOX = "/v1/boxes/{box}"
_JOB = f"{_BOX}/jobs/{{job}}"
_FILES = f"{_BOX}/files"
_KERNEL = f"{_BOX}/kernels/{{kernel}}"
_SKILL = "/v1/skills/{skill}"
_IMAGE = "/v1/images/{image}"
_APP = "/v1/apps/{box}"
_MCP = "/v1/mcp-servers/{mcp_server}"

# fmt: off
ROUTES = (
    Route("GET", "/healthz", about.healthz, May.ANYBODY, Health),
    Route("GET", "/readyz", about.readyz, May.ANYBODY, Ready, status=(200, 503)),
    Route("GET", "/metrics", about.metrics, May.MONITOR, str),
    Route("GET", "/v1/openapi.json", about.openapi, May.READ, dict),
    Route("GET", "/v1/status", about.status, May.READ, Status),
    Route("GET", "/v1/metrics", about.counts, May.READ, Metrics),
    Route("POST", "/v1/shutdown", about.shutdown, May.ADMIN, about.ShutdownBegun, status=(202,),
          fails=("unsupported",)),
    Route("GET", "/v1/profiles", about.profiles, May.READ, about.ProfileList),
    Route("GET", "/v1/providers", about.providers, May.READ, about.ProviderList, fails=("not_found",)),
    Route("GET", "/v1/events", events.events, May.READ, events.EventPage, long=True, streams={events.SSE: Event},
          headers=("Last-Event-ID",)),
    Route("GET", "/v1/errors", about.errors, May.READ, about.ErrorList),
    Route("GET", "/v1/receipts", receipts.read, May.READ, receipts.ReceiptPage, long=True,
          streams={NDJSON: Receipt}, fails=("not_found",)),
    Route("POST", "/v1/receipts", receipts.note_without_box, May.CHANGE),
    Route("POST", "/v1/receipts/verify", receipts.verify, May.READ, receipts.Verified, long=True,
          fails=("not_found",)),
    Route("GET", "/v1/keys", about.list_keys, May.ADMIN, about.KeyList),
    Route("POST", "/v1/keys", about.create_key, May.ADMIN, about.NewKey, status=(201,)),
    Route("DELETE", "/v1/keys/{key}", about.revoke_key, May.ADMIN, Key),
    Route("GET", "/v1/volumes", about.list_volumes, May.READ, about.VolumeList),
    Route("POST", "/v1/volumes", about.create_volume, May.CHANGE, VolumeInfo, status=(201,), fails=("conflict",)),
    Route("GET", "/v1/volumes/{volume}", about.get_volume, May.READ, VolumeInfo),
    Route("DELETE", "/v1/volumes/{volume}", about.remove_volume, May.CHANGE, fails=("conflict",)),
    Route("GET", "/v1/questions", questions.list_questions, May.READ, questions.QuestionList),
    Route("POST", "/v1/questions", questions.ask, May.CHANGE, questions.Answered, long=True, fails=BOX_ERRORS),
    Route("POST", "/v1/questions/{question}", questions.answer, May.CHANGE),
    Route("GET", "/v1/images", images.list_images, May.READ, images.ImageList),
    Route("POST", "/v1/images", images.pull_image, May.CHANGE, ImageDetails, long=True,
          streams={NDJSON: images.PullLine}, fails=images.FAILS),
    Route("POST", "/v1/images/prune", images.prune, May.ADMIN, images.Removed, fails=images.FAILS),
    Route("GET", _IMAGE, images.get, May.READ, ImageDetails, fails=images.FAILS),
    Route("DELETE", _IMAGE, images.remove, May.ADMIN, images.Removed, fails=images.FAILS),
    Route("GET", "/v1/skills", skills.list_skills, May.READ, skills.SkillList, fails=skills.FAILS),
    Route("POST", "/v1/skills", skills.install, May.CHANGE, SkillInfo, long=True, status=(201,),
          fails=(*BOX_ERRORS, *skills.FAILS)),
    Route("POST", "/v1/skills/preview", skills.preview, May.CHANGE, SkillPreview, long=True,
          fails=(*BOX_ERRORS, *skills.FAILS)),
    Route("POST", "/v1/skills/archive", skills.install_archive, May.CHANGE, SkillInfo, status=(201,), raw=True,
          fails=skills.FAILS),
    Route("POST", "/v1/skills/archive/preview", skills.preview_archive, May.CHANGE, SkillPreview, raw=True,
          fails=skills.FAILS),
    Route("GET", _SKILL, skills.get, May.READ, SkillInfo, fails=skills.FAILS),
    Route("PATCH", _SKILL, skills.edit, May.CHANGE, SkillInfo, fails=skills.FAILS),
    Route("DELETE", _SKILL, skills.remove, May.CHANGE, fails=skills.FAILS),
    Route("GET", f"{_SKILL}/body", skills.text, May.READ, skills.SkillText, fails=skills.FAILS),
    Route("GET", f"{_SKILL}/versions", skills.versions, May.READ, skills.SkillVersions, fails=skills.FAILS),
    Route("GET", f"{_SKILL}/files", skills.list_files, May.READ, skills.SkillFiles, fails=skills.FAILS),
    Route("GET", f"{_SKILL}/files/content", skills.read_file, May.READ, bytes, fails=skills.FAILS),
    Route("PUT", f"{_SKILL}/files/content", skills.write_file, May.CHANGE, SkillInfo, raw=True, fails=skills.FAILS),
    Route("DELETE", f"{_SKILL}/files/content", skills.remove_file, May.CHANGE, SkillInfo, fails=skills.FAILS),
    Route("GET", f"{_SKILL}/export", skills.export, May.READ, bytes, fails=skills.FAILS),
    Route("POST", f"{_SKILL}/pin", skills.pin, May.CHANGE, SkillInfo, fails=skills.FAILS),
    Route("DELETE", f"{_SKILL}/pin", skills.unpin, May.CHANGE, SkillInfo, fails=skills.FAILS),
    Route("POST", f"{_SKILL}/rollback", skills.rollback, May.CHANGE, SkillInfo, fails=skills.FAILS),
    Route("POST", f"{_SKILL}/upgrade", skills.upgrade, May.CHANGE, SkillInfo, long=True,
          fails=(*BOX_ERRORS, *skills.FAILS)),
    Route("POST", f"{_SKILL}/save", skills.save, May.CHANGE, SkillInfo, long=True,
          fails=(*BOX_ERRORS, *FILE_ERRORS, *skills.FAILS)),
    Route("POST", f"{_SKILL}/prepare", skills.prepare, May.CHANGE, SkillPlace, long=True,
          fails=(*BOX_ERRORS, *FILE_ERRORS, *skills.FAILS)),
    Route("GET", "/v1/skill-bindings", skills.list_bindings, May.READ, skills.SkillBindings, fails=skills.FAILS),
    Route("PUT", "/v1/skill-bindings/{group}", skills.bind, May.CHANGE, SkillBinding, fails=skills.FAILS),
    Route("GET", "/v1/app-templates", apps.list_templates, May.READ, apps.TemplateList),
    Route("GET", "/v1/apps", apps.list_apps, May.READ, apps.AppList),
    Route("POST", "/v1/apps", apps.create, May.CHANGE, AppInfo, long=True, status=(201,),
          headers=("Idempotency-Key",), fails=(*BOX_ERRORS, *FILE_ERRORS)),
    Route("GET", _APP, apps.get, May.READ, AppInfo),
    Route("GET", f"{_APP}/logs", apps.logs, May.READ, apps.AppLogs),
    Route("POST", f"{_APP}/wait", apps.wait, May.CHANGE, AppInfo, long=True, fails=("app_failed",)),
    Route("POST", f"{_APP}/start", apps.start, May.CHANGE, AppInfo, fails=FILE_ERRORS),
    Route("POST", f"{_APP}/stop", apps.stop, May.CHANGE, AppInfo, long=True),
    Route("GET", "/v1/mcp-servers", mcp_servers.list_servers, May.READ, mcp_servers.ServerList,
          fails=mcp_servers.FAILS),
    Route("POST", "/v1/mcp-servers", mcp_servers.add, May.CHANGE, McpServerInfo, status=(201,),
          fails=mcp_servers.FAILS),
    Route("POST", "/v1/mcp-servers/import", mcp_servers.import_servers, May.CHANGE, mcp_servers.ImportedServers,
          status=(201,), fails=mcp_servers.FAILS),
    Route("GET", _MCP, mcp_servers.get, May.READ, McpServerInfo, fails=mcp_servers.FAILS),
    Route("DELETE", _MCP, mcp_servers.remove, May.CHANGE, fails=mcp_servers.FAILS),
    Route("GET", f"{_MCP}/logs", mcp_servers.logs, May.READ, mcp_servers.ServerLogs, fails=mcp_servers.FAILS),
    Route("GET", f"{_MCP}/tools", mcp_servers.tools, May.CHANGE, mcp_servers.ToolList, long=True,
          fails=mcp_servers.FAILS),
    Route("POST", f"{_MCP}/call", mcp_servers.call_tool, May.CHANGE, dict, long=True, fails=mcp_servers.FAILS),
    Route("POST", f"{_MCP}/start", mcp_servers.start, May.CHANGE, McpServerInfo, long=True, fails=mcp_servers.FAILS),
    Route("POST", f"{_MCP}/stop", mcp_servers.stop, May.CHANGE, McpServerInfo, fails=mcp_servers.FAILS),
    Route("POST", f"{_MCP}/restart", mcp_servers.restart, May.CHANGE, McpServerInfo, long=True,
          fails=mcp_servers.FAILS),
    Route("GET", "/v1/session/current", sessions.get_current, May.READ, sessions.Current),
    Route("PUT", "/v1/session/current", sessions.set_current, May.CHANGE, sessions.Current, fails=BOX_ERRORS),
    Route("DELETE", "/v1/session/current", sessions.leave_current, May.CHANGE),
    Route("POST", "/v1/session/working", sessions.working, May.CHANGE, sessions.FoundBox, long=True, form=SpecForm,
          fails=BOX_ERRORS),
    Route("POST", "/v1/session/presence", sessions.presence, May.READ, sessions.PresenceView),
    Route("GET", "/v1/default", sessions.get_default, May.READ, sessions.Default),
    Route("PUT", "/v1/default", sessions.set_default, May.CHANGE, sessions.Default, fails=BOX_ERRORS),
    Route("POST", "/v1/scopes", sessions.scoped, May.CHANGE, sessions.FoundBox, long=True, fails=BOX_ERRORS),
    Route("POST", "/v1/dashboard/session", dashboard.sign_in, May.ANYBODY, dashboard.SessionView,
          fails=("unauthenticated", "refused")),
    Route("GET", "/v1/dashboard/session", dashboard.get_session, May.READ, dashboard.SessionView),
    Route("DELETE", "/v1/dashboard/session", dashboard.sign_out, May.READ),
    Route("POST", "/v1/dashboard/links", dashboard.create_link, May.READ, dashboard.LinkView, status=(201,)),
    Route("GET", "/v1/tools", dashboard.list_tools, May.READ, dashboard.ToolList, fails=skills.FAILS),
    Route("GET", "/v1/dashboard/live", live.live, May.READ, long=True, streams={events.SSE: live.LiveMessage}),
    Route("GET", "/v1/find", boxes.find_box, May.READ, BoxInfo, fails=("not_found", "gone")),
    Route("GET", "/v1/boxes", boxes.list_boxes, May.READ, boxes.BoxList, fails=("not_found",)),
    Route("POST", "/v1/boxes", boxes.create, May.CHANGE, BoxInfo, long=True, status=(201, 202, 200),
          form=SpecForm, headers=("Idempotency-Key", "Hutch-Mount-Roots"), fails=BOX_ERRORS),
    Route("POST", "/v1/plan", boxes.plan, May.READ, EffectiveSpec, form=SpecForm, fails=BOX_ERRORS),
    Route("POST", "/v1/boxes/import", export.import_stream, May.CHANGE, sessions.FoundBox, status=(201,), raw=True,
          fails=(*BOX_ERRORS, *FILE_ERRORS)),
    Route("GET", _BOX, boxes.get, May.READ, BoxInfo),
    Route("PATCH", _BOX, boxes.change, May.CHANGE, boxes.ChangedBox),
    Route("DELETE", _BOX, boxes.destroy, May.CHANGE),
    Route("GET", f"{_BOX}/checkpoints", layers.list_checkpoints, May.READ, layers.CheckpointList),
    Route("POST", f"{_BOX}/checkpoints", layers.create, May.CHANGE, Checkpoint, long=True, status=(201,),
          headers=("Hutch-Operation", "Hutch-Again")),
    Route("DELETE", f"{_BOX}/checkpoints/{{checkpoint}}", layers.delete, May.CHANGE),
    Route("POST", f"{_BOX}/rollback", layers.rollback, May.CHANGE, Rollback, long=True,
          headers=("Hutch-Operation", "Hutch-Again")),
    Route("POST", f"{_BOX}/undo", layers.undo, May.CHANGE, Rollback, long=True,
          headers=("Hutch-Operation", "Hutch-Again")),
    Route("GET", f"{_BOX}/diff", layers.diff, May.CHANGE, Diff, long=True),
    Route("POST", f"{_BOX}/fork", layers.fork, May.CHANGE, Forks, long=True, status=(201,),
          headers=("Hutch-Operation", "Hutch-Again")),
    Route("POST", f"{_BOX}/merge", layers.merge, May.CHANGE, Merge, long=True,
          headers=("Hutch-Operation", "Hutch-Again")),
    Route("POST", f"{_BOX}/attempt", layers.attempt, May.CHANGE, layers.AttemptView, long=True,
          headers=("Hutch-Operation", "Hutch-Again")),
    Route("POST", f"{_BOX}/created", boxes.mark_created, May.CHANGE, BoxInfo),
    Route("POST", f"{_BOX}/scope", boxes.move, May.CHANGE, BoxInfo),
    Route("GET", f"{_BOX}/export", export.export, May.CHANGE, bytes, long=True, fails=FILE_ERRORS),
    Route("GET", f"{_BOX}/usage", boxes.usage, May.READ, Usage),
    Route("POST", f"{_BOX}/pause", boxes.pause, May.CHANGE, BoxInfo),
    Route("POST", f"{_BOX}/resume", boxes.resume, May.CHANGE, BoxInfo),
    Route("POST", f"{_BOX}/stop", boxes.stop, May.CHANGE, BoxInfo),
    Route("GET", f"{_BOX}/lease", boxes.get_lease, May.READ, boxes.LeaseView),
    Route("POST", f"{_BOX}/lease", boxes.take_lease, May.CHANGE, boxes.LeaseView),
    Route("DELETE", f"{_BOX}/lease", boxes.drop_lease, May.CHANGE, boxes.LeaseView),
    Route("POST", f"{_BOX}/receipts", receipts.note, May.CHANGE),
    Route("POST", f"{_BOX}/exec", commands.execute, May.CHANGE, ExecResult, long=True,
          streams={NDJSON: ExecLine, BYTES: bytes}, headers=("Hutch-Operation", "Hutch-Again")),
    Route("DELETE", f"{_BOX}/operations/{{operation}}", commands.cancel, May.CHANGE),
    Route("GET", f"{_BOX}/ports", ports.list_ports, May.READ, ports.PortList, long=True),
    Route("POST", f"{_BOX}/ports/{{port}}/url", ports.open_url, May.CHANGE, Preview, status=(201,)),
    Route("GET", f"{_BOX}/previews", ports.list_previews, May.CHANGE, ports.PreviewList),
    Route("DELETE", f"{_BOX}/previews/{{preview}}", ports.revoke, May.CHANGE),
    Route("GET", f"{_BOX}/jobs", jobs.list_jobs, May.READ, jobs.JobList),
    Route("POST", f"{_BOX}/jobs", jobs.start, May.CHANGE, JobInfo, status=(201,),
          headers=("Hutch-Operation", "Hutch-Again")),
    Route("GET", _JOB, jobs.get, May.READ, JobInfo),
    Route("DELETE", _JOB, jobs.forget, May.CHANGE),
    Route("GET", f"{_JOB}/output", jobs.output, May.READ, OutputChunk, long=True, streams={BYTES: bytes}),
    Route("GET", f"{_JOB}/follow", jobs.follow, May.READ, long=True, streams={BYTES: bytes}),
    Route("POST", f"{_JOB}/stdin", jobs.stdin, May.CHANGE, raw=True),
    Route("POST", f"{_JOB}/signal", jobs.signal, May.CHANGE),
    Route("POST", f"{_JOB}/resize", jobs.resize, May.CHANGE),
    Route("POST", f"{_JOB}/wait", jobs.wait, May.READ, ExecResult, long=True),
    Route("POST", f"{_BOX}/code", code.run, May.CHANGE, CodeResult, long=True, streams={NDJSON: code.CodeLine},
          headers=("Hutch-Operation", "Hutch-Again")),
    Route("GET", f"{_BOX}/kernels", code.list_kernels, May.READ, code.KernelList),
    Route("POST", f"{_BOX}/kernels", code.start, May.CHANGE, KernelInfo, status=(201,)),
    Route("POST", f"{_KERNEL}/interrupt", code.interrupt, May.CHANGE),
    Route("POST", f"{_KERNEL}/restart", code.restart, May.CHANGE, KernelInfo),
    Route("DELETE", _KERNEL, code.remove, May.CHANGE),
    Route("GET", _FILES, files.list_files, May.READ, files.FileList, long=True),
    Route("GET", f"{_FILES}/content", files.read, May.READ, bytes, long=True, status=(200, 206), headers=("Range",)),
    Route("PUT", f"{_FILES}/content", files.write, May.CHANGE, FileInfo, raw=True),
    Route("DELETE", f"{_FILES}/content", files.remove, May.CHANGE),
    Route("GET", f"{_FILES}/stat", files.stat, May.READ, FileInfo),
    Route("GET", f"{_FILES}/exists", files.exists, May.READ, files.Existence),
    Route("GET", f"{_FILES}/tree", files.read_tree, May.READ, bytes, long=True),
    Route("PUT", f"{_FILES}/tree", files.write_tree, May.CHANGE, files.CopiedView, raw=True),
    Route("GET", f"{_FILES}/lines", files.lines, May.READ, files.LinesView, long=True),
    Route("GET", f"{_FILES}/watch", files.watch, May.READ, long=True, streams={NDJSON: WatchLine}),
    Route("POST", f"{_FILES}/mkdir", files.mkdir, May.CHANGE),
    Route("POST", f"{_FILES}/move", files.move, May.CHANGE),
    Route("POST", f"{_FILES}/edit", files.edit, May.CHANGE, Edited),
    Route("POST", f"{_FILES}/glob", files.glob, May.READ, Matches, long=True),
    Route("POST", f"{_FILES}/grep", files.grep, May.READ, GrepResult, long=True),
    Route("POST", f"{_FILES}/digest", files.digest, May.READ, files.Digest, long=True),
)
# fmt: on


def check_role(may: May, caller: Caller, op: str) -> None:
    if not may.allows(caller.role):
        raise Refused(
            f"a key of role {caller.role} may not {op}", op=op, remedy="use a key whose role allows it: hutch key list"
        )


class WrongMethod(Invalid):
    """The path exists, but not for this method."""

    def __init__(self, method: str, path: str, allowed: list[str]) -> None:
        super().__init__(f"{path} does not take {method}", remedy=f"it takes {', '.join(allowed)}")
        self.allowed = allowed


class RouteTable:
    """Finds the route of a request by the number of path segments, then segment by segment."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._by_length: dict[int, list[Route]] = {}
        self.methods = sorted({route.method for route in routes})
        for route in routes:
            self._by_length.setdefault(len(route.parts), []).append(route)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and the values of its path variables. NotFound, or WrongMethod with the methods that exist."""
        parts = path.strip("/").split("/")
        allowed: list[str] = []
        for route in self._by_length.get(len(parts), ()):
            params = match_path(route.parts, parts)
            if params is None:
                continue
            if route.method == method:
                return route, params
            allowed.append(route.method)
        if allowed:
            raise WrongMethod(method[:20], path[:200], allowed)
        raise NotFound(f"there is nothing at {path[:200]}", remedy="the API is under /v1; see docs/guides/server.md")


def match_path(pattern: tuple[str, ...], found: list[str]) -> dict[str, str] | None:
    """The values of the path's variables; None if the path does not match the pattern."""
    params: dict[str, str] = {}
    for expected, actual in zip(pattern, found, strict=True):
        if expected.startswith("{"):
            if not actual:
                return None
            params[expected[1:-1]] = actual
        elif expected != actual:
            return None
    return params
