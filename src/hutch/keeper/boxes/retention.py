"""A temporary box becomes persistent: its files go from memory to disk, under the same id, lease and handles.

A temporary box has its files in a tmpfs of its own, which no mount can turn into a directory. So the files are carried
out through the guest, the box is made anew with a store on disk, and they are carried in again. That ends every
process, so a box with running jobs is refused. What could not be carried is found out before the old box ends, and the
copy on disk stays if the new one cannot be made.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import Conflict, HutchError, Refused, Unsupported
from hutch.keeper import export
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import describe_state
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.skills.mounts import shows_skills
from hutch.model.results import JobState
from hutch.model.spec import EffectiveSpec, Retention
from hutch.model.state import State
from hutch.policy import grades, requirements
from hutch.providers.base import Instance

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper

CARRIED = "carried"
"""Below the state directory: copies of boxes that could not be made anew."""


async def make_persistent(keeper: "Keeper", live: Live, session: str) -> None:
    """Keep the box's files on disk from now on. The caller has the box pinned, and nobody else may.

    Raises Unsupported or Refused where the provider, the profile or the box itself does not allow it, and Conflict
    while something runs in the box; then it goes on as it was.
    """
    await run_uncancelled(_make_persistent(keeper, live, session))


async def _make_persistent(keeper: "Keeper", live: Live, session: str) -> None:
    wanted = live.record.spec.but(retention=Retention.PERSISTENT)
    await _check_allowed(keeper, wanted)
    async with live.state_lock:
        await _check_quiet(live)
        # From here on nobody can begin an operation. If the keeper dies now, the next one attaches to the box as it is.
        await keeper.states.change(live.record, State.RESTORING, into=live, reason="becomes persistent")
        place = keeper.config.state_dir / CARRIED / live.record.id
        try:
            if live.pins > 1:
                raise _busy(live, "another operation runs")
            parts = await _carry_out(keeper, live, session, place)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            await keeper.states.change(live.record, State.RUNNING, into=live, reason="stays temporary")
            raise
        try:
            await _make_anew(keeper, live, session, wanted, place, parts)
        except BaseException as error:
            reason = f"could not become persistent: {error}; its files are in {place}"
            await keeper.states.change(live.record, State.ERROR, into=live, reason=reason)
            raise
        shutil.rmtree(place, ignore_errors=True)
    await keeper.skill_mounts.ensure_shown(live)


async def _check_allowed(keeper: "Keeper", wanted: EffectiveSpec) -> None:
    profile = keeper.config.resolve_profile(wanted.profile)
    if profile.locks("retention"):
        raise Refused(
            f"profile {profile.name} decides that its boxes are {profile.retention}", op="change",
            details={"field": "retention"}, remedy="create a persistent box of another profile",
        )  # fmt: skip
    if wanted.secrets:
        raise Unsupported(
            "a box with secrets cannot become persistent: their values are in no record", op="change",
            details={"field": "retention"},
            remedy="create a persistent box with its secrets, and copy the files over (export, import)",
        )  # fmt: skip
    capabilities = await keeper.engines.capabilities(wanted.provider)
    requirements.check(wanted, capabilities)
    grades.check(wanted, profile, capabilities, strict=keeper.config.strict)


async def _check_quiet(live: Live) -> None:
    if live.record.state is not State.RUNNING:
        raise Conflict(describe_state(live.record), op="change", remedy="try again when it is running")
    jobs = [job.id for job in await live.running.jobs() if job.state is JobState.RUNNING]
    if jobs:
        raise _busy(live, f"job {', '.join(jobs)} runs")
    if live.pins > 1:
        raise _busy(live, "another operation runs")


def _busy(live: Live, why: str) -> Conflict:
    return Conflict(
        f"box {live.record.id} cannot become persistent now: {why}, and would be ended",
        op="change", remedy="try again when nothing runs in the box: wait for its jobs, or end them",
    )  # fmt: skip


async def _carry_out(keeper: "Keeper", live: Live, session: str, place: Path) -> tuple[export.Part, ...]:
    """Every part of the box that is its own, below `place`; Unsupported if one cannot be carried whole."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700, parents=True)
    notes: list[str] = []
    with _inside(keeper, live, session) as box:
        parts = await export.carry_out(box, place, notes)
    lost = [note for note in notes if not note.startswith(export.NOT_ITS_OWN)]
    if lost:
        raise Unsupported(
            f"box {live.record.id} cannot become persistent: {'; '.join(lost)}", op="change",
            details={"field": "retention"},
            remedy="make what is named readable for the box's user, or create a persistent box",
        )  # fmt: skip
    return parts


async def _make_anew(
    keeper: "Keeper", live: Live, session: str, wanted: EffectiveSpec, place: Path, parts: tuple[export.Part, ...]
) -> None:
    record = live.record
    provider = keeper.engines.provider(record.instance.provider)
    if live.instance is not None:
        await live.instance.close()
        live.instance = None
    await provider.destroy(record.instance)
    order = await keeper.order_again(record.but(spec=wanted))
    # Written before the engine is called: a keeper that dies now leaves a record by which the new box is found.
    await keeper.states.update(record, into=live, spec=wanted, instance=provider.plan(order))
    live.instance = await provider.create(order, live.record.instance)
    with _inside(keeper, live, session) as box:
        await export.carry_in(box, place, parts, [])
    live.last_checked = live.last_used = time.monotonic()
    await keeper.states.change(
        live.record, State.RUNNING, into=live, reason="persistent from now on", instance=live.instance.record,
        skills_mounted=shows_skills(order),
    )  # fmt: skip


@contextmanager
def _inside(keeper: "Keeper", live: Live, session: str) -> Iterator["_Inside"]:
    box = _Inside(keeper, live, session)
    try:
        yield box
    finally:
        box.close()


class _Inside(BoxHandle):
    """The keeper's own handle on a box that is closed to everybody else."""

    async def begin(self) -> Instance:
        return self._live.running

    def end(self) -> None:
        """Nothing was pinned."""

    async def failed(self, error: HutchError) -> None:
        """The box is not looked at again: what failed decides what becomes of it."""
