"""Property, with real boxes: whatever happens to keepers, spawners and guests, no box leaks and none has two owners."""

import asyncio
import random
from collections import Counter
from functools import cache

import pytest

from hutch.model.capabilities import Capabilities
from hutch.providers.native.provider import NativeProvider
from tests.keeper.histories import OPERATIONS, Step
from tests.keeper.killed_keepers import house
from tests.keeper.native_histories import NativeHistory
from tests.proofs import write

pytestmark = pytest.mark.slow


@cache
def capabilities() -> Capabilities:
    async def probed() -> Capabilities:
        with house() as place:
            provider = NativeProvider(state_dir=place.state, run_dir=place.run)
            try:
                return await provider.probe()
            finally:
                await provider.close()

    return asyncio.run(probed())


def play(steps: list[Step], succeeded: Counter[str]) -> list[str]:
    with house() as place:
        history = NativeHistory(place.top, capabilities())
        asyncio.run(asyncio.wait_for(history.play(steps), 100))
        place.keepers += history.keepers
        succeeded.update(history.succeeded)
        succeeded["histories"] += 1
        return history.violations + [f"left: {trace}" for trace in place.traces()]


def steps_of(seed: int) -> list[Step]:
    """Seeded: the first examples of hypothesis are plain, and a history with real time in it cannot be shrunk."""
    dice = random.Random(seed)
    return [(dice.choice(OPERATIONS), dice.randrange(12), dice.randrange(24)) for _ in range(dice.randint(30, 60))]


def histories(count: int) -> Counter[str]:
    """So many of them, each at least 30 steps long."""
    succeeded: Counter[str] = Counter()
    for seed in range(count):
        assert not (found := play(steps_of(seed), succeeded)), f"history {seed}: {found}"
    return succeeded


@pytest.mark.alone
def test_histories_of_real_boxes() -> None:
    """There is no leaked process, group, directory or row, no double owner, no stale epoch.

    (lesson 1, lesson 2, lesson 3, lesson 4, lesson 5, lesson 8, lesson 10, lesson 12)
    """
    succeeded = histories(5)
    assert succeeded["create"] and succeeded["exec"] and succeeded["crash"], succeeded


@pytest.mark.alone
@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_hundred_histories_of_real_boxes() -> None:
    succeeded = histories(100)
    assert set(OPERATIONS) <= set(succeeded), succeeded
    write("keeper-native-histories", histories=100, violations=0, succeeded=dict(sorted(succeeded.items())))
