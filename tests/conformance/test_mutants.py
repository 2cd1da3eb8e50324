"""No check is idle: each fails on at least one provider that breaks what it states (issue 6)."""

import asyncio
from collections.abc import Iterator

import pytest

from hutch.conformance.kit import Outcome, judge, prepare
from hutch.conformance.registry import checks, has
from hutch.conformance.workbench import Workbench
from hutch.providers.base import InstanceRecord, Provider
from tests.conformance.mutants import MUTANTS
from tests.conformance.mutants.wrapping import Mutant
from tests.conformance.test_native import native

CHECKS = {check.name: check for check in checks()}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(runner: asyncio.Runner) -> Iterator[Provider]:
    """One native provider under all mutants: a spawner for each would take longer than the checks."""
    provider = native()
    yield provider
    runner.run(provider.close())


def test_every_check_has_a_mutant() -> None:
    claimed = {name for mutant in MUTANTS for name in mutant.kills}
    assert claimed == set(CHECKS), "checks without a mutant, or mutants of checks that do not exist"


@pytest.mark.parametrize("kind", MUTANTS, ids=lambda kind: kind.__name__)
def test_mutant_is_found(kind: type[Mutant], runner: asyncio.Runner, engine: Provider) -> None:
    runner.run(_is_found(kind, engine))


async def _is_found(kind: type[Mutant], engine: Provider) -> None:
    made: list[InstanceRecord] = []
    try:
        bench = await prepare(lambda: kind(native(), made), kind(engine, made), patience=kind.patience)
        for name in kind.kills:
            await _fails(name, bench)
    finally:
        for planned in made:
            await engine.destroy(planned)


async def _fails(name: str, bench: Workbench) -> None:
    check = CHECKS[name]
    if not has(await bench.provider.inner.probe(), check.needs):  # type: ignore[attr-defined]
        return  # then its refusal runs, which is another sentence
    finding = await judge(check, bench)
    assert finding.outcome is Outcome.FAILED, f"{name} does not notice: {check.sentence}"
