"""The bench itself: its arithmetic, its turns, and that a run writes what it promises. No timing decides
anything, and goals are ratios (lesson 52)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.ablation import OPTIMISATIONS, Gain
from bench.interleave import Candidate, interleave
from bench.numbers import (
    Goal,
    Number,
    Summary,
    at_least_times,
    at_most_memory,
    at_most_times,
    percentile,
    times_faster,
)
from bench.peers.errors import PeerFailed
from bench.peers.loopback import loopback
from bench.picture import picture
from bench.publish import document
from bench.steadiness import LoopTimer

TREE = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([7], 0.5, 7), ([3, 1, 2], 0.5, 2), ([1, 2, 3, 4], 0.5, 2.5), ([4, 0], 0.95, 3.8), ([1, 2], 0, 1), ([1, 2], 1, 2)],
)
def test_percentile(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_percentile_refuses_what_has_no_answer() -> None:
    with pytest.raises(ValueError):
        percentile([], 0.5)
    with pytest.raises(ValueError):
        percentile([1], 95)


def test_the_tail_is_the_bad_end() -> None:
    values = [float(each) for each in range(101)]
    assert Summary.of(values) == Summary(50, 95, 101)
    assert Summary.of(values, more_is_better=True) == Summary(50, 5, 101)


@pytest.mark.parametrize(
    ("goal", "met", "shown"),
    [
        (at_most_memory(5), True, "4 MB"),
        (at_most_memory(3), False, "4 MB"),
        (times_faster(45, "docker"), True, "50×"),
        (times_faster(51, "docker"), False, "50×"),
        (at_most_times(2, "bare"), True, "2×"),
        (at_most_times(1.5, "bare"), False, "2×"),
        (at_least_times(2, "bare"), True, "2×"),
        (at_least_times(2.5, "bare"), False, "2×"),
        (times_faster(45, "podman"), None, ""),
        (at_most_times(2, "podman"), None, ""),
        (at_least_times(2, "podman"), None, ""),
    ],
)
def test_goals(goal: Goal, met: bool | None, shown: str) -> None:
    """A goal about a peer that was not measured is neither met nor missed."""
    peers = {"docker": Summary(200, 250, 20), "bare": Summary(2, 3, 100)}
    number = Number("n", "n", "ms", Summary(4, 6, 100), peers)
    assert goal.met(number) is met
    assert goal.shown(number) == shown


async def test_candidates_take_turns_and_the_failed_are_named() -> None:
    order: list[str] = []

    def candidate(name: str, count: int, fails_at: int = 0) -> Candidate:
        async def once() -> float:
            order.append(name)
            if fails_at and order.count(name) == fails_at:
                raise PeerFailed("it broke")
            return 0.001

        return Candidate(name, once, count)

    samples = await interleave([candidate("a", 4), candidate("b", 2), candidate("c", 4, fails_at=3)], rounds=2)
    assert "".join(order) == "abcaabccaab"
    assert {name: len(values) for name, values in samples.milliseconds.items()} == {"a": 4, "b": 2}
    assert samples.failed == {"c": "it broke"}


def test_a_brief_run_writes_its_result(tmp_path: Path) -> None:
    """Every published number has its command; this is the shortest of them."""
    written = tmp_path / "out.json"
    command = [sys.executable, "-m", "bench", "exec", "--no-peers", "--brief", "--json", str(written)]
    ended = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "not measured: docker: not asked for" in ended.stdout
    result = json.loads(written.read_text())
    (number,) = result["numbers"]
    assert number["name"] == "exec" and number["n"] > 0 and 0 < number["p50"] <= number["p95"]
    assert set(number["peers"]) == {"fork+exec"}
    assert [goal["met"] for goal in number["goals"]][-1] is None, "nothing is said about a peer that was not there"
    assert result["brief"] and result["not_measured"]["docker"] == "not asked for"


def test_a_brief_ablation_measures_every_optimisation(tmp_path: Path, rootless: bool) -> None:
    """Memory shows that the switches work: it does not depend on how busy the machine is. Only root can read it."""
    written = tmp_path / "out.json"
    command = [sys.executable, "-m", "bench", "ablation", "--brief", "--json", str(written)]
    ended = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(written.read_text())["ablation"]
    assert set(found) == {"complete", *OPTIMISATIONS}
    assert all(f"  {name} " in ended.stdout for name in OPTIMISATIONS)
    if rootless:
        assert "KB" not in found["complete"]
        return
    assert found["warm-up"]["KB"]["median"] > 50 and found["child programs"]["KB"]["median"] > 50
    assert found["prefault"]["KB"]["median"] < 0 and found["heap filling"]["KB"]["median"] > 0


def test_a_gain_must_be_outside_its_spread() -> None:
    assert Gain(2, 1, 3).verdict(10) == "gain"
    assert Gain(-2, -3, -1).verdict(10) == "loss"
    assert Gain(2, -1, 3).verdict(10) == Gain(2, 1, 3).verdict(1000) == "none outside its spread"


def test_the_plain_copy_brings_every_byte() -> None:
    with loopback() as plain:
        assert plain.upload(bytes(3_000_001)) > 0  # checks the digest that comes back
        assert plain.download(1_000_001) > 0
        assert plain.upload(b"again") > 0, "no byte of the download is left over"


def test_the_loop_timer_keeps_the_fastest_and_the_slowest() -> None:
    timer = LoopTimer()
    timer._taken += [12.04, 9.06, 20.5]
    assert timer.as_json() == {"fastest": 9.1, "slowest": 20.5, "n": 3}
    timer.take()
    assert timer.as_json()["n"] == 4


def test_the_document_and_the_picture_show_every_engine() -> None:
    machine = {"date": "", "commit": "", "processor": "", "python": "", "kernel": "6", "cores": 2, "user": "root"}
    peers = {"docker": Summary(220, 260, 30), "bwrap": Summary(9, 12, 30)}
    create = Number("create", "create to first command", "ms", Summary(4, 6, 300), peers, (times_faster(45, "docker"),))
    result = {
        "machine": machine
        | {"load_before": 0.1, "load_after": 2.0, "loop_ms": {"fastest": 9.1, "slowest": 20.5, "n": 3}},
        "peer_versions": {"docker": "1"},
        "not_measured": {"runsc": "not installed"},
        "numbers": [create.as_json("create")],
    }
    page = document(result)
    assert (
        "| create to first command | **4.00 ms** | 6.00 ms | 300 | docker 220 ms (55.0×), bwrap 9.00 ms (2.2×)" in page
    )
    assert "| create to first command | ≥ 45× faster than docker | 55× | met | `make bench ARGS=create` |" in page
    assert "runsc (not installed)" in page
    drawn = picture(result)
    assert drawn.count("<rect") == 3 and "prefers-color-scheme: dark" in drawn


def test_unknown_names_and_half_publications_are_refused() -> None:
    for wrong in (["flight"], ["--publish", "exec"], ["ablation", "exec"]):
        ended = subprocess.run([sys.executable, "-m", "bench", *wrong], cwd=TREE, capture_output=True, text=True)
        assert ended.returncode == 2 and "error:" in ended.stderr
