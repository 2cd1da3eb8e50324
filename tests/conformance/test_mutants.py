"""No check is idle: each fails on at least one provider that breaks what it states."""

import asyncio
from collections.abc import Iterator

import pytest

from hutch.conformance.kit import Outcome, judge, prepare
from hutch.conformance.registry import checks, has
from hutch.model.capabilities import Capabilities
from hutch.providers.base import InstanceRecord, Provider
from tests.conformance.mutants import MUTANTS
from tests.conformance.mutants.mutant import Mutant
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


@pytest.fixture(scope="module")
def able(runner: asyncio.Runner, engine: Provider) -> Capabilities:
    """What the native provider really can, whatever a mutant says."""
    return runner.run(engine.probe())


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.__name__, marks=[pytest.mark.alone] if kind.alone else []) for kind in MUTANTS],
)
def test_mutant_is_found(kind: type[Mutant], runner: asyncio.Runner, engine: Provider, able: Capabilities) -> None:
    # Without the capability the check's refusal would run, which is another sentence.
    runner.run(_is_found(kind, engine, [name for name in kind.kills if has(able, CHECKS[name].needs)]))


async def _is_found(kind: type[Mutant], engine: Provider, names: list[str]) -> None:
    made: list[InstanceRecord] = []
    try:
        bench = await prepare(lambda: kind(native(), made), kind(engine, made), patience=kind.patience)
        for name in names:
            finding = await judge(CHECKS[name], bench)
            assert finding.outcome is Outcome.FAILED, f"{name} does not notice: {finding.sentence}"
    finally:
        for planned in made:
            await engine.destroy(planned)
