"""Mutants whose states of files are not what they were."""

from collections.abc import Awaitable, Sequence
from typing import Any

from hutch.errors import HutchError
from hutch.model.layers import Change
from hutch.model.spec import Order
from hutch.providers.base import Instance, InstanceRecord
from tests.conformance.mutants.mutant import Mutant, MutantInstance


class MutantLayers:
    """The states of a box's files; what a mutant does not override is the native one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Stays(MutantLayers):
    async def go_back(self, state: str, keep: tuple[str, ...], *, kill: bool = False) -> None:
        return


class StaysWhereItIs(Mutant):
    """Going back does nothing."""

    kills = ("layers.goes_back",)

    class Box(MutantInstance):
        @property
        def layers(self) -> Any:
            return _Stays(self.inner.layers)


class _Kills(MutantLayers):
    async def go_back(self, state: str, keep: tuple[str, ...], *, kill: bool = False) -> None:
        await self.inner.go_back(state, keep, kill=True)


class EndsPrograms(Mutant):
    """Going back ends what runs, whether that was wanted or not."""

    kills = ("layers.running",)

    class Box(MutantInstance):
        @property
        def layers(self) -> Any:
            return _Kills(self.inner.layers)


class _Blind(MutantLayers):
    async def compare(self, start: str, end: str, *, text: bool) -> tuple[tuple[Change, ...], bool]:
        return (), False


class SeesNoChanges(Mutant):
    kills = ("layers.compare",)

    class Box(MutantInstance):
        @property
        def layers(self) -> Any:
            return _Blind(self.inner.layers)


class _Trusting(MutantLayers):
    async def go_back(self, state: str, keep: tuple[str, ...], *, kill: bool = False) -> None:
        try:
            await self.inner.go_back(state, keep, kill=kill)
        except HutchError:
            return


class BelievesInEveryState(Mutant):
    kills = ("layers.unknown",)

    class Box(MutantInstance):
        @property
        def layers(self) -> Any:
            return _Trusting(self.inner.layers)


class _Forgetful(MutantLayers):
    async def drop(self, keep: tuple[str, ...]) -> None:
        await self.inner.drop(())


class DropsEverything(Mutant):
    kills = ("layers.drop",)

    class Box(MutantInstance):
        @property
        def layers(self) -> Any:
            return _Forgetful(self.inner.layers)


class ForksNothing(Mutant):
    """A fork is a new box, and empty."""

    kills = ("layers.fork",)

    async def fork(
        self, order: Order, planned: InstanceRecord, source: Instance, state: Awaitable[str]
    ) -> tuple[Instance, str]:
        return await self.create(order, planned), await state


class _Idle(MutantLayers):
    async def merge(self, *_: Any) -> tuple[str, ...]:
        return ()


class MergesNothing(Mutant):
    kills = ("layers.merge",)

    class Box(MutantInstance):
        @property
        def layers(self) -> Any:
            return _Idle(self.inner.layers)


class _Careless(MutantLayers):
    async def merge(self, *arguments: Any) -> tuple[str, ...]:
        try:
            merged: tuple[str, ...] = await self.inner.merge(*arguments)
        except HutchError:
            return ()
        return merged


class HidesConflicts(Mutant):
    kills = ("layers.conflict",)

    class Box(MutantInstance):
        @property
        def layers(self) -> Any:
            return _Careless(self.inner.layers)


class _Weightless(MutantLayers):
    async def sizes(self, states: Sequence[str]) -> tuple[int, ...]:
        return (0,) * len(states)


class WeighsNothing(Mutant):
    """States of files have no size."""

    kills = ("layers.sizes",)

    class Box(MutantInstance):
        @property
        def layers(self) -> Any:
            return _Weightless(self.inner.layers)
