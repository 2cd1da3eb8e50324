"""The bench itself: its arithmetic, its turns, and that a run writes what it promises. No timing decides anything."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.contest import Contender, contest
from bench.numbers import (
    Goal,
    Number,
    Summary,
    at_least,
    at_most,
    at_most_above,
    percentile,
    times_as_long,
    times_faster,
)
from bench.pace import Pace
from bench.peers.errors import PeerFailed
from bench.picture import picture
from bench.publish import document

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
    ("goal", "met"),
    [
        (at_most(5, "ms"), True),
        (at_most(3, "ms"), False),
        (at_least(4, "MB/s"), True),
        (at_least(5, "MB/s"), False),
        (times_faster(45, "docker"), True),
        (times_faster(51, "docker"), False),
        (times_as_long(2, "bare"), True),
        (times_as_long(1.5, "bare"), False),
        (at_most_above(2, "ms", "bare"), True),
        (at_most_above(1, "ms", "bare"), False),
        (times_faster(45, "podman"), None),
        (times_as_long(2, "podman"), None),
        (at_most_above(2, "ms", "podman"), None),
    ],
)
def test_goals(goal: Goal, met: bool | None) -> None:
    """A goal about a peer that was not measured is neither met nor missed."""
    peers = {"docker": Summary(200, 250, 20), "bare": Summary(2, 3, 100)}
    assert goal.met(Number("n", "n", "ms", Summary(4, 6, 100), peers)) is met


async def test_contest_takes_turns_and_names_who_failed() -> None:
    order: list[str] = []

    def contender(name: str, count: int, fails_at: int = 0) -> Contender:
        async def once() -> float:
            order.append(name)
            if fails_at and order.count(name) == fails_at:
                raise PeerFailed("it broke")
            return 0.001

        return Contender(name, once, count)

    outcome = await contest([contender("a", 4), contender("b", 2), contender("c", 4, fails_at=3)], rounds=2)
    assert "".join(order) == "abcaabccaab"
    assert {name: len(values) for name, values in outcome.milliseconds.items()} == {"a": 4, "b": 2}
    assert outcome.failed == {"c": "it broke"}


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


def test_the_pace_tells_the_fastest_and_the_slowest() -> None:
    pace = Pace()
    pace._taken += [12.04, 9.06, 20.5]
    assert pace.plain() == {"fastest": 9.1, "slowest": 20.5, "n": 3}
    pace.take()
    assert pace.plain()["n"] == 4


def test_the_document_and_the_picture_show_every_engine() -> None:
    machine = {"date": "", "commit": "", "processor": "", "python": "", "kernel": "6", "cores": 2, "user": "root"}
    peers = {"docker": Summary(220, 260, 30), "bwrap": Summary(9, 12, 30)}
    create = Number("create", "create to first command", "ms", Summary(4, 6, 300), peers, (times_faster(45, "docker"),))
    result = {
        "machine": machine
        | {"load_before": 0.1, "load_after": 2.0, "loop_ms": {"fastest": 9.1, "slowest": 20.5, "n": 3}},
        "peer_versions": {"docker": "1"},
        "not_measured": {"runsc": "not installed"},
        "numbers": [create.plain()],
    }
    page = document(result)
    assert (
        "| create to first command | **4.00 ms** | 6.00 ms | 300 | docker 220 ms (55.0×), bwrap 9.00 ms (2.2×)" in page
    )
    assert "runsc (not installed)" in page
    drawn = picture(result)
    assert drawn.count("<rect") == 3 and "prefers-color-scheme: dark" in drawn


def test_unknown_names_and_half_publications_are_refused() -> None:
    for wrong in (["flight"], ["--publish", "exec"]):
        ended = subprocess.run([sys.executable, "-m", "bench", *wrong], cwd=TREE, capture_output=True, text=True)
        assert ended.returncode == 2 and "error:" in ended.stderr
