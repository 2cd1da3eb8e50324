"""One app: what is done to its box, and what its box says about it.

The app is one job, a shell that installs packages if the manifest is newer than they are, and then runs the server.
The job's error output holds nothing but the phases that it has reached, so its state needs no other place; everything
that the programs write is on its standard output.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hutch.api import Box
from hutch.apps.templates import Template, find_template
from hutch.errors import AppFailed, Conflict, HutchError, Invalid, NotFound, PortClosed, Timeout
from hutch.model.apps import AppInfo, AppState
from hutch.model.boxes import BoxInfo, State
from hutch.model.results import Cause, JobInfo, JobState
from hutch.model.spec import EffectiveSpec, NetworkMode

Observe = Callable[[str], Awaitable[Box]]
"""Returns a handle that may only look at a box."""
LABEL = "app.template"
"""The label of an app's box: the name of its template."""
JOB = "app"
"""Jobs of apps are named `app:TEMPLATE:PORT`."""
PORTS_TRIED = 100
LOG_BYTES = 256 << 10
"""The newest output that is searched for lines."""
FAILURE_LINES = 20
POLL_SECONDS = 0.25
STOP_SECONDS = 10.0
ANSWER_SECONDS = 120.0
"""How long a program that listens may take for its first answer; a first build of a page takes a while."""
LOOK_SECONDS = 5.0
_PHASE_BYTES = 4096
_STATES = {State.CREATING: AppState.CREATING, State.RESTORING: AppState.CREATING, State.PAUSED: AppState.PAUSED,
           State.STOPPING: AppState.STOPPED, State.STOPPED: AppState.STOPPED}  # fmt: skip
_ENVIRONMENT = {"BROWSER": "none", "NEXT_TELEMETRY_DISABLED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off",
                "npm_config_update_notifier": "false", "PYTHONUNBUFFERED": "1"}  # fmt: skip


def box_arguments(template: Template, name: str, port: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Hutch.create` for an app's box; the caller's own win over the template's."""
    arguments = {**template.limits, **({"network": NetworkMode.ON.value} if template.install else {}), **spec}
    if isinstance(spec.get("limits"), Mapping):
        for limit in spec["limits"].keys() & template.limits.keys() - spec.keys():
            del arguments[limit]
    if name:
        arguments["name"] = name
    arguments["labels"] = {**(spec.get("labels") or {}), LABEL: template.name}
    arguments["ports"] = [*(spec.get("ports") or ()), first_port(template, port)]
    return arguments


def first_port(template: Template, port: int) -> int:
    """Return where the search for a free port begins; 0 asks for the template's usual one."""
    if not 0 <= port <= 65535:
        raise Invalid(f"a port is a number from 1 to 65535, not {port}", op="app")
    return port or template.port


def template_of(box_id: str, spec: EffectiveSpec) -> Template:
    """Return the template of a box. Raises: NotFound if the box is no app."""
    name = spec.labels.get(LABEL, "")
    if not name:
        raise NotFound(
            f"box {spec.name or box_id} is no app", op="app", remedy="`hutch app list` shows those there are"
        )
    return find_template(name)


# --- what is done to it ---------------------------------------------------------------------------------------


async def launch(box: Box, template: Template, port: int = 0) -> None:
    """Write the template's files if the workspace has none of its own, and start the app's job.

    Raises: Conflict if it runs already, or if no port is free.
    """
    old = _job_of(await box.jobs())
    if old is not None and old.state is JobState.RUNNING:
        raise Conflict("the app runs already", op="app", remedy="stop it first: hutch app stop")
    if not await box.files.exists(template.manifest):
        for path, data in template.files().items():
            await box.files.write(path, data)
    chosen = await _free_port(box, first_port(template, port or (_port_of(old) if old is not None else 0)))
    environment = {**_ENVIRONMENT, "PORT": str(chosen), **box.spec.env}
    environment["PORT"] = str(chosen)
    await box.start(["/bin/sh", "-c", _program(template)], env=environment, name=f"{JOB}:{template.name}:{chosen}")
    if old is not None:
        await box.forget(old.id)


def _program(template: Template) -> str:
    """Return the shell program of an app. The marker is older than the manifest after a change of the packages."""
    marker = f"{template.installed}/.hutch-installed"
    install = f"""
if [ ! -f {marker} ] || [ {template.manifest} -nt {marker} ]; then
  echo installing >&3
  {{ {template.install}; }} 3>&- || exit
  : > {marker}
fi
"""
    return f"""
exec 3>&2 2>&1 </dev/null
for program in {" ".join(template.programs)}; do
  command -v "$program" >/dev/null || {{ echo "missing $program" >&3; echo "there is no $program"; exit 127; }}
done
trap 'trap "" TERM; echo stopped >&3; kill $! 2>/dev/null; wait; exit 0' TERM
{install if template.install else ""}
echo starting >&3
{{ {template.start}; }} 3>&- &
wait $!
"""


async def _free_port(box: Box, first: int) -> int:
    """Return the first port on which nothing listens in the box."""
    taken = {each.port for each in await box.ports()}
    for port in range(first, min(first + PORTS_TRIED, 65536)):
        if port not in taken:
            return port
    raise Conflict(f"no port from {first} on is free in the box", op="app", remedy="name another one")


async def end(box: Box) -> None:
    """End the app's program and wait for its end; its box and files stay."""
    found = _job_of(await box.jobs())
    if found is None or found.state is not JobState.RUNNING:
        return
    job = await box.job(found.id)
    await job.signal(15)
    try:
        await job.wait(STOP_SECONDS)
    except Timeout:
        await job.signal(9)
        await job.wait(STOP_SECONDS)


async def wait_for_answer(box: Box, template: Template, timeout_sec: float) -> AppInfo:
    """Wait until the app answers an HTTP request.

    Raises: AppFailed with the last lines of its log if it ended; Timeout if it takes longer.
    """
    deadline = time.monotonic() + timeout_sec
    while True:
        info = await inspect(box, await box.info())
        if info.state in (AppState.FAILED, AppState.STOPPED):
            raise await _failure(box, info, template)
        if info.state is AppState.RUNNING and await _answers(box, info.port, deadline):
            return info
        if time.monotonic() + POLL_SECONDS > deadline:
            raise Timeout(
                f"the app does not answer after {timeout_sec:g} s: it is {info.state}", op="app",
                details={"state": str(info.state), "log": list(await read_log(box, FAILURE_LINES))},
                remedy="look at its log (`hutch app logs`), or wait longer",
            )  # fmt: skip
        await asyncio.sleep(POLL_SECONDS)


async def _answers(box: Box, port: int, deadline: float) -> bool:
    """Whether the program answers a request for its first page with HTTP, whatever the status."""
    request = f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
    received = b""
    try:
        async with asyncio.timeout(max(POLL_SECONDS, min(ANSWER_SECONDS, deadline - time.monotonic()))):
            async with await box.connect(port) as connection:
                await connection.send(request.encode())
                while len(received) < 7 and (data := await connection.receive()):
                    received += data
    except (PortClosed, TimeoutError):
        return False
    return received.startswith(b"HTTP/1.")


async def _failure(box: Box, info: AppInfo, template: Template) -> AppFailed:
    lines = await read_log(box, FAILURE_LINES)
    return AppFailed(
        f"{template.title} app {info.name or info.box_id}: {info.reason or 'it was stopped'}", op="app",
        remedy=info.remedy or "look at its log: hutch app logs",
        details={"box": info.box_id, "state": str(info.state), "log": list(lines)},
    )  # fmt: skip


# --- what its box says ----------------------------------------------------------------------------------------


async def inspect_app(info: BoxInfo, observe: Observe) -> AppInfo:
    """Return an app without using its box. One whose box cannot answer now is shown with the reason."""
    if info.state is not State.RUNNING:
        return _of_box(info).but(state=_STATES.get(info.state, AppState.UNKNOWN))
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return await inspect(await observe(info.id), info)
    except HutchError as error:
        return _of_box(info).but(reason=error.message, remedy=error.remedy)
    except TimeoutError:
        return _of_box(info).but(reason="its box does not answer")


def _of_box(info: BoxInfo) -> AppInfo:
    """Return what the record of a box says about its app."""
    template = template_of(info.id, info.spec)
    return AppInfo(
        box_id=info.id, name=info.name, template=template.name, state=AppState.UNKNOWN, reason=info.reason,
        port=info.spec.ports[-1] if info.spec.ports else template.port, owner=info.owner, created_at=info.created_at,
    )  # fmt: skip


async def inspect(box: Box, info: BoxInfo) -> AppInfo:
    """Return what the running box of an app says about it; a handle that only observes is enough."""
    template, shown = template_of(info.id, info.spec), _of_box(info)
    job = _job_of(await box.jobs())
    if job is None:
        return shown.but(state=AppState.STOPPED, reason="its box has no program that runs it", remedy="start it again")
    shown = shown.but(job=job.id, port=_port_of(job), started_at=job.started_at, reason="")
    phase = await _phase(box, job)
    if job.state is JobState.RUNNING:
        if phase == "installing":
            return shown.but(state=AppState.INSTALLING)
        listens = any(each.port == shown.port for each in await box.ports())
        return shown.but(state=AppState.RUNNING if listens else AppState.STARTING)
    if phase == "stopped":
        return shown.but(state=AppState.STOPPED, reason="it was stopped", remedy="start it again")
    reason, remedy = _why(job, phase, template, info)
    return shown.but(state=AppState.FAILED, reason=reason, remedy=remedy)


def _why(job: JobInfo, phase: str, template: Template, info: BoxInfo) -> tuple[str, str]:
    """Return why an app failed, and what to do."""
    verdict = job.verdict
    if verdict is not None and verdict.cause not in (Cause.OK, Cause.EXIT):
        return verdict.message, verdict.remedy
    if phase.startswith("missing "):
        program = phase.removeprefix("missing ")
        return f"the image of its box has no {program}", f"choose an image that has {', '.join(template.programs)}"
    ended = f"exit code {job.exit_code}"
    if phase == "installing" and info.spec.network is NetworkMode.OFF:
        locked = next((each.reason for each in info.spec.adjustments if each.field == "network"), "")
        why = f"its box has no network ({locked})" if locked else "its box has no network"
        remedy = "choose a profile that allows the network" if locked else "create it with the network on: --net on"
        return f"its packages could not be installed, because {why}; {ended}", remedy
    if phase == "installing":
        return f"its packages could not be installed: {ended}", "its log says why; correct it and start it again"
    return f"its program ended: {ended}", "its log says why; correct it and start it again"


async def read_log(box: Box, lines: int) -> tuple[str, ...]:
    """Return the newest lines that the app's programs wrote, oldest first."""
    found = _job_of(await box.jobs())
    if found is None:
        return ()
    job = await box.job(found.id)
    cursor, end = max(0, found.stdout_total - LOG_BYTES), found.stdout_total
    text = b""
    while cursor < end:
        chunk = await job.read(cursor, limit=LOG_BYTES)
        text += chunk.data
        if not chunk.data:
            break
        cursor = chunk.cursor
    return tuple(text.decode("utf-8", "replace").splitlines()[-lines:])


async def _phase(box: Box, job: JobInfo) -> str:
    if not job.stderr_total:
        return ""
    chunk = await (await box.job(job.id)).read(0, stream="stderr", limit=_PHASE_BYTES)
    return (chunk.text.splitlines() or [""])[-1]


def was_launched(jobs: tuple[JobInfo, ...]) -> bool:
    return _job_of(jobs) is not None


def _job_of(jobs: tuple[JobInfo, ...]) -> JobInfo | None:
    """Return the newest job of the app."""
    found = [job for job in jobs if job.name.startswith(f"{JOB}:")]
    return max(found, key=lambda job: job.started_at, default=None)


def _port_of(job: JobInfo) -> int:
    port = job.name.rpartition(":")[2]
    return int(port) if port.isascii() and port.isdigit() else 0
