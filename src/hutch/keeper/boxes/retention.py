"""A temporary box becomes persistent: its files go from memory to disk, under the same id, lease and handles.

A temporary box has its files in a tmpfs of its own, which no mount can turn into a directory. So the files are copied
out through the guest, the box is recreated with a store on disk, and they are copied in again. That ends every
process, so a box with running jobs is refused. What cannot be copied is found out before the old box ends, and the
copy on disk stays if the new box cannot be created.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hutch.errors import Conflict, HutchError, Refused, Unsupported
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.archives import export
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import describe_state
from hutch.keeper.keeper import Keeper
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.skills.mounts import shows_skills
from hutch.model.boxes import State
from hutch.model.results import JobState
from hutch.model.spec import EffectiveSpec, Retention
from hutch.policy import grades, requirements
from hutch.providers.base import Instance

COPIES_DIRECTORY = "carried"
"""Below the state directory: copies of boxes that could not be recreated."""


class PersistenceChange:
    """Makes one temporary box persistent."""

    def __init__(self, keeper: Keeper, live: Live, session: str) -> None:
        self._keeper = keeper
        self._live = live
        self._session = session
        self._copy = keeper.config.state_dir / COPIES_DIRECTORY / live.record.id

    async def run(self) -> None:
        """Keep the box's files on disk from now on. The caller has pinned the box, and nobody else may have.

        Raises:
            Unsupported, Refused: The provider, the profile or the box itself does not allow it.
            Conflict: Something runs in the box. In all these cases it goes on as it was.
        """
        await run_uncancelled(self._run())

    async def _run(self) -> None:
        live, states = self._live, self._keeper.states
        wanted = live.record.spec.but(retention=Retention.PERSISTENT)
        await self._check_allowed(wanted)
        async with live.state_lock:
            await self._check_quiet()
            # From here on nobody can begin an operation. If the keeper dies, the next one attaches to the box as it is.
            await states.change(live.record, State.RESTORING, into=live, reason="becomes persistent")
            try:
                if live.pins > 1:
                    raise self._busy("another operation runs")
                parts = await self._copy_out()
            except BaseException:
                shutil.rmtree(self._copy, ignore_errors=True)
                await states.change(live.record, State.RUNNING, into=live, reason="stays temporary")
                raise
            try:
                await self._recreate(wanted, parts)
            except BaseException as error:
                reason = f"could not become persistent: {error}; its files are in {self._copy}"
                await states.change(live.record, State.ERROR, into=live, reason=reason)
                raise
            shutil.rmtree(self._copy, ignore_errors=True)
        await self._keeper.skill_mounts.ensure_shown(live)

    async def _check_allowed(self, wanted: EffectiveSpec) -> None:
        profile = self._keeper.config.resolve_profile(wanted.profile)
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
        capabilities = await self._keeper.engines.capabilities(wanted.provider)
        requirements.check(wanted, capabilities)
        grades.check(wanted, profile, capabilities, strict=self._keeper.config.strict)

    async def _check_quiet(self) -> None:
        live = self._live
        if live.record.state is not State.RUNNING:
            raise Conflict(describe_state(live.record), op="change", remedy="try again when it is running")
        if live.record.checkpoints or live.record.forks:
            raise Conflict(
                f"box {live.record.id} has checkpoints or forks, which would be lost", op="change",
                details={"field": "retention"}, remedy="delete its checkpoints and forks, or export the box first",
            )  # fmt: skip
        jobs = [job.id for job in await live.running.jobs() if job.state is JobState.RUNNING]
        if jobs:
            raise self._busy(f"job {', '.join(jobs)} runs")
        if live.pins > 1:
            raise self._busy("another operation runs")

    def _busy(self, why: str) -> Conflict:
        return Conflict(
            f"box {self._live.record.id} cannot become persistent now: {why}, and would be ended",
            op="change", remedy="try again when nothing runs in the box: wait for its jobs, or end them",
        )  # fmt: skip

    async def _copy_out(self) -> tuple[export.Part, ...]:
        """Copy every part that is the box's own; Unsupported if one cannot be copied whole."""
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir(mode=0o700, parents=True)
        with self._handle() as box:
            parts, omissions = await export.copy_out_parts(box, self._copy)
        lost = [omission.text for omission in omissions if omission.lost]
        if lost:
            raise Unsupported(
                f"box {self._live.record.id} cannot become persistent: {'; '.join(lost)}", op="change",
                details={"field": "retention"},
                remedy="make what is named readable for the box's user, or create a persistent box",
            )  # fmt: skip
        return parts

    async def _recreate(self, wanted: EffectiveSpec, parts: tuple[export.Part, ...]) -> None:
        keeper, live, record = self._keeper, self._live, self._live.record
        provider = keeper.engines.provider(record.instance.provider)
        if live.instance is not None:
            await live.instance.close()
            live.instance = None
        await provider.destroy(record.instance)
        order = await keeper.creator.order_again(record.but(spec=wanted))
        # Written before the engine is called, so that the new box is found if this keeper dies now.
        await keeper.states.update(record, into=live, spec=wanted, instance=provider.plan(order))
        live.instance = await provider.create(order, live.record.instance)
        with self._handle() as box:
            await export.copy_in_parts(box, self._copy, parts)
        live.last_checked = live.last_used = time.monotonic()
        await keeper.states.change(
            live.record, State.RUNNING, into=live, reason="persistent from now on", instance=live.instance.record,
            skills_mounted=shows_skills(order),
        )  # fmt: skip

    @contextmanager
    def _handle(self) -> Iterator["_KeeperHandle"]:
        box = _KeeperHandle(self._keeper, self._live, self._session)
        try:
            yield box
        finally:
            box.close()


class _KeeperHandle(BoxHandle):
    """The keeper's own handle on a box that is closed to everybody else."""

    async def begin(self) -> Instance:
        return self._live.running

    def end(self) -> None:
        """Nothing was pinned."""

    async def failed(self, error: HutchError) -> None:
        """The box is not checked again: what failed decides what becomes of it."""
