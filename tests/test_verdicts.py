"""Verdicts from facts: every cause, its number, its words, and when it is not certain (lesson 24)."""

import signal
from typing import Any

import pytest

from hutch.model.limits import Limits
from hutch.model.results import Cause
from hutch.providers.guest_client.verdicts import (
    MB,
    Counters,
    End,
    Room,
    Space,
    cannot_start,
    decide,
    shows_refused_fork,
)

LIMITS = Limits(cpus=1, memory_mb=512, pids=64, disk_mb=256, open_files=1024, timeout_sec=60, max_timeout_sec=600)
CALM = Counters(oom_kills=3, pids_hits=5, memory_peak_bytes=100 * MB)
OOM = Counters(oom_kills=4, pids_hits=5, memory_peak_bytes=512 * MB)
CROWDED = Counters(oom_kills=3, pids_hits=9, memory_peak_bytes=100 * MB, pids_peak=64)
ROOM = Space(size=256 * MB, free=MB, files=1000, files_free=10)


def ended(exit_code: int | None = 0, **facts: Any) -> End:
    given: dict[str, Any] = {
        "job": "j", "ended": True, "exit_code": exit_code, "signal": None, "timed_out": False, "cancelled": False,
        "lingering": False, "shared": False, "wall": 1.5, "usage": (0.0, 0.0, 0), "stdout_total": 0, "stderr_total": 0,
        "dropped": 0,
    }  # fmt: skip
    return End(**(given | facts))


def by(number: int, **facts: Any) -> End:
    return ended(None, signal=number, **facts)


@pytest.mark.parametrize(
    ("end", "before", "after", "space", "cause"),
    [
        (ended(0), CALM, CALM, None, Cause.OK),
        (ended(0), CALM, OOM, None, Cause.OK),
        (ended(3), CALM, CALM, {"/": ROOM}, Cause.EXIT),
        (ended(1), None, OOM, None, Cause.EXIT),
        (by(signal.SIGKILL), CALM, OOM, None, Cause.OOM),
        (ended(137), CALM, OOM, None, Cause.OOM),
        (ended(1), CALM, OOM, None, Cause.OOM),
        (by(signal.SIGKILL), CALM, CALM, None, Cause.SIGNAL),
        (by(signal.SIGSEGV), CALM, CALM, None, Cause.SIGNAL),
        (by(signal.SIGSYS), CALM, CALM, None, Cause.SYSCALL_DENIED),
        (ended(128 + signal.SIGSYS), CALM, CALM, None, Cause.SYSCALL_DENIED),
        (ended(254), CALM, CROWDED, None, Cause.PIDS),
        (ended(0), CALM, CROWDED, None, Cause.OK),
        (by(signal.SIGKILL, timed_out=True), CALM, OOM, None, Cause.TIMEOUT),
        (by(signal.SIGKILL, cancelled=True), CALM, CALM, None, Cause.CANCELLED),
        (ended(1), CALM, CALM, {"/": Space(size=MB, free=0, files=0, files_free=0)}, Cause.DISK),
        (ended(1), CALM, CALM, {"/": Space(size=MB, free=1, files=9, files_free=0)}, Cause.DISK),
        (ended(1), CALM, CALM, {"/": Space(size=MB, free=0, files=9, files_free=0, read_only=True)}, Cause.EXIT),
        (ended(1), CALM, CALM, {"/": Space(size=MB, free=1, files=0, files_free=0)}, Cause.EXIT),
        (ended(0, dropped=7), CALM, CALM, None, Cause.OUTPUT_LIMIT),
    ],
)
def test_the_cause(
    end: End, before: Counters | None, after: Counters, space: dict[str, Space] | None, cause: Cause
) -> None:
    room = Room(space=space) if space is not None else None
    verdict = decide(end, before=before, after=after, limits=LIMITS, room=room, timeout_sec=10)
    assert verdict.cause is cause
    assert verdict.ok == (cause is Cause.OK)
    assert verdict.message or verdict.ok


@pytest.mark.parametrize(
    ("output", "room", "cause"),
    [
        (
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
            Room(space={}, tasks=2, started=70),
            Cause.PIDS,
        ),
        ("RuntimeError: can't start new thread", Room(space={}, tasks=0, started=64), Cause.PIDS),
        ("sh: 1: Cannot fork", Room(space={}, tasks=60, started=4), Cause.PIDS),
        ("nothing of the kind", Room(space={}, tasks=2, started=70), Cause.EXIT),
        ("flock: Resource temporarily unavailable", Room(space={}, tasks=2, started=3), Cause.EXIT),
        ("Resource temporarily unavailable", Room(space={}), Cause.EXIT),
    ],
)
def test_a_refused_process_where_no_counter_exists(output: str, room: Room, cause: Cause) -> None:
    """Both must speak for it, what the program says and how many it started; and then it is a guess (P4)."""
    verdict = decide(
        ended(1), before=Counters(), after=Counters(), limits=LIMITS, room=room,
        fork_refused=shows_refused_fork(output.encode()),
    )  # fmt: skip
    assert verdict.cause is cause
    assert verdict.certain == (cause is Cause.EXIT)
    assert bool(verdict.remedy) == (cause is Cause.PIDS)


def test_memory_in_plain_words() -> None:
    verdict = decide(by(signal.SIGKILL), before=CALM, after=OOM, limits=LIMITS)
    assert verdict.message == "memory limit of 512 MB reached (peak 512 MB)"
    assert verdict.remedy == "raise limits.memory_mb, or process the data in pieces"
    assert (verdict.limit, verdict.peak, verdict.unit, verdict.certain) == (512, 512, "MB", True)


def test_a_peak_beyond_the_limit_is_explained() -> None:
    """Files in memory have room of their own, and count: "64 MB reached (peak 4160 MB)" puzzled its readers."""
    after = Counters(oom_kills=4, pids_hits=5, memory_peak_bytes=(512 + 1024) * MB)
    verdict = decide(by(signal.SIGKILL), before=CALM, after=after, limits=LIMITS)
    assert verdict.message == "memory limit of 512 MB reached (peak 1536 MB, the room for files in memory included)"


def test_a_child_that_was_killed_is_named() -> None:
    verdict = decide(ended(1), before=CALM, after=OOM, limits=LIMITS)
    assert "one of the command's processes was killed" in verdict.message


@pytest.mark.parametrize("after", [OOM, CROWDED])
def test_a_fact_of_the_box_is_uncertain_when_several_commands_ran(after: Counters) -> None:
    verdict = decide(ended(1, shared=True), before=CALM, after=after, limits=LIMITS)
    assert not verdict.certain
    assert "cannot be said which" in verdict.message


def test_a_kill_whose_start_was_not_seen_is_not_explained() -> None:
    """After a keeper's restart there is no count from before."""
    verdict = decide(by(signal.SIGKILL), before=None, after=OOM, limits=LIMITS)
    assert verdict.cause is Cause.SIGNAL
    assert not verdict.certain


def test_a_timeout_has_its_numbers() -> None:
    verdict = decide(by(signal.SIGKILL, timed_out=True), before=CALM, after=CALM, limits=LIMITS, timeout_sec=1.4)
    assert (verdict.limit, verdict.peak, verdict.unit) == (1.4, 1.5, "s")
    assert "the box goes on" in verdict.message


@pytest.mark.parametrize(
    ("end", "after", "is_remedy"),
    [
        (ended(6), CALM, True),
        (by(signal.SIGKILL, timed_out=True), CALM, True),
        (by(signal.SIGKILL), OOM, False),
        (by(signal.SIGTERM), CALM, False),
        (ended(0), CALM, False),
    ],
)
def test_trouble_of_the_box_is_the_remedy_where_no_limit_explains_the_failure(
    end: End, after: Counters, is_remedy: bool
) -> None:
    verdict = decide(end, before=CALM, after=after, limits=LIMITS, trouble="no network: use a new box")
    assert (verdict.remedy == "no network: use a new box") is is_remedy
    assert verdict.cause is decide(end, before=CALM, after=after, limits=LIMITS).cause


def test_no_process_could_be_started_at_all() -> None:
    verdict = cannot_start(LIMITS, CROWDED, shared=False)
    assert verdict.cause is Cause.PIDS
    assert (verdict.limit, verdict.peak, verdict.unit) == (64, 64, "processes")


@pytest.mark.parametrize(("code", "word"), [(127, "not found"), (126, "not executable"), (139, "SIGSEGV")])
def test_exit_codes_with_a_common_meaning_are_explained(code: int, word: str) -> None:
    assert word in decide(ended(code), before=CALM, after=CALM, limits=LIMITS).remedy
