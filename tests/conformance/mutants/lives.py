"""Mutants that are not honest about their boxes, or do not let go of them."""

import asyncio
import itertools
from collections.abc import Mapping

from hutch.errors import BoxBroken, HutchError, NotFound
from hutch.model.capabilities import Capabilities, Missing
from hutch.model.ids import new_box_id
from hutch.model.results import Result
from hutch.model.spec import EffectiveSpec, Order
from hutch.providers.base import Command, Instance, InstanceRecord
from tests.conformance.mutants.mutant import Mutant, MutantInstance

COUNTER = itertools.count()


class Wavers(Mutant):
    """Every probe finds something else."""

    kills = ("capabilities.same_answer",)

    async def probe(self) -> Capabilities:
        return (await super().probe()).but(users=("user", str(next(COUNTER))))


class HasAnotherName(Mutant):
    kills = ("capabilities.identity",)

    async def probe(self) -> Capabilities:
        return (await super().probe()).but(provider="somebody", contract=99)


class LeavesCanaries(Mutant):
    kills = ("capabilities.probe_leaves_nothing",)

    async def probe(self) -> Capabilities:
        self.made.append(InstanceRecord(provider="native", box_id=new_box_id(), keeper="canary"))
        return await super().probe()

    async def list(self) -> tuple[InstanceRecord, ...]:
        return (*await super().list(), *self.made)


class GivesNoReasons(Mutant):
    kills = ("capabilities.reasons",)

    async def probe(self) -> Capabilities:
        return (await super().probe()).but(pty=False, missing=())


class ContradictsItself(Mutant):
    kills = ("capabilities.no_contradiction",)

    async def probe(self) -> Capabilities:
        found = await super().probe()
        return found.but(missing=(*found.missing, Missing(what="mounts", reason="no")), mounts=True)


class MissesWhatItHas(Mutant):
    kills = ("capabilities.no_contradiction",)

    async def probe(self) -> Capabilities:
        found = await super().probe()
        return found.but(missing=(*found.missing, Missing(what="grades.pids", reason="no")))


class TakesAnySetting(Mutant):
    kills = ("capabilities.unknown_setting",)

    def configure(self, settings: Mapping[str, object]) -> None:
        return


class MakesBrokenBoxes(Mutant):
    kills = ("life.create",)

    class Box(MutantInstance):
        async def check(self) -> None:
            raise BoxBroken("never was well")


class ForgetsWhoKeepsIt(Mutant):
    kills = ("life.record",)

    def record(self, record: InstanceRecord) -> InstanceRecord:
        return record.but(keeper="")


class PlansAtRandom(Mutant):
    kills = ("life.plan_is_pure",)

    def plan(self, order: Order) -> InstanceRecord:
        planned = super().plan(order)
        return planned.but(data={**planned.data, "attempt": next(COUNTER)})


class ListsNothing(Mutant):
    kills = ("life.list", "life.listed_record")

    async def list(self) -> tuple[InstanceRecord, ...]:
        return ()


class DestroysNothing(Mutant):
    """Says that it is done."""

    kills = ("life.destroy", "life.destroy_from_record", "life.destroy_paused", "life.destroy_stopped", "life.broken")

    async def destroy(self, record: InstanceRecord) -> None:
        return


class DestroysOnlyItsOwn(Mutant):
    """Lesson 1: what this object did not make, it cannot destroy."""

    kills = ("life.destroy_from_record", "life.destroy_from_plan", "life.listed_record")

    async def create(self, order: Order, planned: InstanceRecord) -> Instance:
        self.own = planned.box_id
        return await super().create(order, planned)

    async def destroy(self, record: InstanceRecord) -> None:
        if getattr(self, "own", None) == record.box_id:
            await super().destroy(record)


class DestroysOnce(Mutant):
    kills = ("life.destroy_twice",)

    async def destroy(self, record: InstanceRecord) -> None:
        if record.box_id not in {each.box_id for each in await self.list()}:
            raise NotFound(f"no box {record.box_id}")
        await super().destroy(record)


class DestroysEverything(Mutant):
    """Lesson 10."""

    kills = ("life.destroy_others_live", "life.many_at_once")

    async def destroy(self, record: InstanceRecord) -> None:
        for each in self.made:
            await super().destroy(each)


class AlwaysHealthy(Mutant):
    kills = ("life.broken",)

    class Box(MutantInstance):
        async def check(self) -> None:
            return


class TellsDeathAsSuccess(Mutant):
    kills = ("life.death_during_command",)

    class Box(MutantInstance):
        async def run(self, command: Command) -> Result:
            try:
                return await super().run(command)
            except HutchError:
                return Result(job_id="", exit_code=0)


class AttachesElsewhere(Mutant):
    """Attaching makes a new box of the same kind."""

    kills = (
        "life.attach", "life.attach_unknown", "life.close_keeps_box", "jobs.outlive_handle", "jobs.outlive_provider",
    )  # fmt: skip

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> Instance:
        order = Order(box_id=new_box_id(), keeper=record.keeper, spec=spec)
        return await self.create(order, self.plan(order))


class ClosesForGood(Mutant):
    kills = ("life.close_keeps_box", "jobs.outlive_handle")

    class Box(MutantInstance):
        async def close(self) -> None:
            await super().close()
            await self.mutant.destroy(self.record)


class IgnoresImages(Mutant):
    """Whatever was asked for, it is the host's."""

    kills = ("life.bad_image",)

    def order(self, order: Order) -> Order:
        return order.but(spec=order.spec.but(image="host"))


class CreatesAllTheSame(Mutant):
    """Lesson 4: a cancelled creation leaves a box that no record knows."""

    kills = ("life.cancelled_creation",)

    async def create(self, order: Order, planned: InstanceRecord) -> Instance:
        creation = asyncio.ensure_future(super().create(order, planned))
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            await (await creation).close()
            raise


class PausesNothing(Mutant):
    kills = ("life.pause",)

    class Box(MutantInstance):
        async def pause(self) -> None:
            return

        async def resume(self) -> None:
            return


class RestoresNothing(Mutant):
    """A stopped box comes back empty."""

    kills = ("life.stop_and_restore",)

    async def restore(self, order: Order, record: InstanceRecord) -> Instance:
        await self.destroy(record)
        return await self.create(order, self.plan(order))


class ForgetsClocks(Mutant):
    """A box lives until somebody destroys it."""

    kills = ("life.orphan_clock", "life.ttl", "life.set_clocks")
    patience = 1.5

    class Box(MutantInstance):
        async def set_clocks(self, *, orphan_grace_sec: float | None = None, ttl_sec: float | None = None) -> None:
            return

    def order(self, order: Order) -> Order:
        return order.but(orphan_grace_sec=600.0, spec=order.spec.but(ttl_sec=0.0))
