"""Property, with real boxes: whatever happens to keepers, spawners and guests, no box leaks and none has two owners."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hutch.model.capabilities import Capabilities
from hutch.providers.native.provider import NativeProvider
from tests.keeper.crashing import house
from tests.keeper.histories import OPERATIONS, Step
from tests.keeper.native_histories import NativeHistory

STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 11), st.integers(0, 23)), min_size=30, max_size=60
)
EXAMPLES = {"brief": 5, "proof": 100}
PROOF = Path(__file__).parents[2] / "proof" / "keeper-native-histories.json"


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


def histories(count: int) -> Counter[str]:
    """`count` histories, each at least 30 steps long. Not shrunk: a history with real time in it rarely repeats."""
    succeeded: Counter[str] = Counter()

    @given(STEPS)
    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def search(steps: list[Step]) -> None:
        assert play(steps, succeeded) == []

    search()
    return succeeded


@pytest.mark.alone
def test_histories_of_real_boxes() -> None:
    """Lessons 1 to 5, 8, 10 and 12: no leaked process, group, directory or row, no double owner, no stale epoch."""
    succeeded = histories(EXAMPLES["brief"])
    assert succeeded["create"] and succeeded["exec"] and succeeded["crash"], succeeded


@pytest.mark.alone
@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_hundred_histories_of_real_boxes() -> None:
    succeeded = histories(EXAMPLES["proof"])
    assert set(OPERATIONS) <= set(succeeded), succeeded
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    facts = {
        "what": "keepers that create, use, lease, take over, expire, destroy, crash and restart, with real boxes",
        "commit": commit,
        "python": sys.version.split()[0],
        "root": os.geteuid() == 0,
        "succeeded": dict(sorted(succeeded.items())),
    }
    PROOF.parent.mkdir(exist_ok=True)
    PROOF.write_text(json.dumps(facts, indent=2) + "\n")
