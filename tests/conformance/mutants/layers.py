"""Mutants whose states of files are not what they were."""

from typing import Any

from hutch.errors import HutchError
from hutch.model.layers import Change
from tests.conformance.mutants.wrapping import Mutant, MutantInstance


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
