"""App boxes over HTTP. An app is its box: previews, files, jobs and its end are the box's own routes."""

from contextlib import nullcontext
from typing import Annotated, Any

import msgspec

from hutch.api.apps import ANSWER_SECONDS
from hutch.apps import app
from hutch.apps.templates import TEMPLATES, Template, find_template
from hutch.errors import Invalid
from hutch.keeper.access.beside_lease import ObservedBox
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.access.views import box_info
from hutch.keeper.locks import KeyedLocks
from hutch.model.apps import AppInfo, TemplateInfo
from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.spec import Spec
from hutch.server.access import check_owner, using
from hutch.server.handlers.sessions import parse_spec
from hutch.server.request import Call, Reply

MAX_LINES = 2000
_creating = KeyedLocks()
"""A lock for each idempotency key whose app is being created."""


class NewApp(Record, frozen=True, kw_only=True):
    template: Annotated[str, msgspec.Meta(max_length=40)]
    name: str = ""
    """The name of its box; it may be empty."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Where the search for a free port begins; 0 for the template's usual one."""
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    """The spec of its box, as for creation. The network is on for templates that install packages."""


class AppWaitBody(Record, frozen=True, kw_only=True):
    timeout_sec: Annotated[float, msgspec.Meta(ge=0, le=3600)] = ANSWER_SECONDS


class LogsQuery(Record, frozen=True, kw_only=True):
    lines: Annotated[int, msgspec.Meta(ge=1, le=MAX_LINES)] = 200


class AppList(Record, frozen=True, kw_only=True):
    apps: tuple[AppInfo, ...]


class TemplateList(Record, frozen=True, kw_only=True):
    templates: tuple[TemplateInfo, ...]


class AppLogs(Record, frozen=True, kw_only=True):
    lines: tuple[str, ...]
    """The newest lines that its programs wrote, oldest first."""


async def list_templates(call: Call) -> Reply:
    """Return the templates from which apps are made."""
    return Reply(TemplateList(templates=tuple(each.info() for each in TEMPLATES.values())))


async def list_apps(call: Call) -> Reply:
    """List the owner's apps, oldest first. Listing them extends no clock."""
    found = [
        info
        for info in await call.keeper.views.boxes(call.own.readable)
        if info.spec.labels.get(app.LABEL) in TEMPLATES
    ]
    return Reply(AppList(apps=tuple([await app.inspect_app(info, _observer(call)) for info in found])))


async def create(call: Call, body: NewApp) -> Reply:
    """Create an app's box, write the template's files and start the app's job. It answers when the job runs; `wait`
    waits until the app answers."""
    template = find_template(body.template)
    key, caller = call.header("idempotency-key"), call.caller
    if len(key) > 200:
        raise Invalid("Idempotency-Key has at most 200 characters", op="create")
    key = f"app:{key}" if key else ""  # An ordinary box of the same key does not become an app.
    spec = parse_spec(app.box_arguments(template, body.name, body.port, body.spec))
    # Of two requests with one key the second would take the first's app for its own failure, and end it.
    async with _creating.lock(caller.owner, key) if key else nullcontext():
        return await _create(call, body, template, spec, key)


async def _create(call: Call, body: NewApp, template: Template, spec: Spec, key: str) -> Reply:
    caller = call.caller
    exists = bool(key) and await call.keeper.store.by_key(caller.owner, key) is not None
    record = await call.keeper.creations.create(spec, session=caller.session, owner=caller.owner, key=key)
    call.params = {"box": record.id}
    try:
        async with using(call) as box:
            if not (exists and app.was_launched(await box.jobs())):
                await app.launch(box, template, body.port)
            return Reply(await _shown(box), 201, headers={"location": f"/v1/apps/{record.id}"})
    except BaseException:
        if not exists:
            await call.keeper.destroy(record.id, "its app could not be started")
        raise


async def get(call: Call) -> Reply:
    """Return an app: its state, port and job."""
    return Reply(await _look(call))


async def logs(call: Call, query: LogsQuery) -> Reply:
    """Return the newest output of an app."""
    await _look(call)
    observed = await _observer(call)(call.params["box"])
    return Reply(AppLogs(lines=await app.read_log(observed, query.lines)))


async def wait(call: Call, body: AppWaitBody) -> Reply:
    """Wait until an app answers HTTP; `app_failed` with the end of its log if it ended."""
    async with using(call) as box:
        answered = app.wait_for_answer(box, _template(box), body.timeout_sec)
        return Reply(await call.service.unless_draining(answered))


async def start(call: Call) -> Reply:
    """Start a stopped or failed app again; a conflict if it runs."""
    async with using(call) as box:
        await app.launch(box, _template(box))
        return Reply(await _shown(box))


async def stop(call: Call) -> Reply:
    """End an app's program; its box and files stay until their clocks end them."""
    async with using(call) as box:
        _template(box)
        await app.end(box)
        return Reply(await _shown(box))


async def _look(call: Call) -> AppInfo:
    await check_owner(call)
    live = await call.keeper.live(BoxId(call.params["box"]))
    return await app.inspect_app(box_info(live.record, live), _observer(call))


def _observer(call: Call) -> app.Observe:
    async def observe(box_id: str) -> Any:
        return ObservedBox(call.keeper, await call.keeper.live(BoxId(box_id)))

    return observe


def _template(box: BoxHandle) -> Template:
    return app.template_of(box.id, box.spec)


async def _shown(box: BoxHandle) -> AppInfo:
    return await app.inspect(box, await box.info())
