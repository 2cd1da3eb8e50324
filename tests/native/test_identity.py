"""Ranges of host ids: never shared by two live boxes, never lost with a dead one."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from hutch.providers.native import identity, processes


def me() -> processes.Identity:
    return processes.Identity(os.getpid(), processes.start_time(os.getpid()) or 0, processes.boot_id())


def age(path: Path) -> None:
    long_ago = time.time() - 1000
    os.utime(path, (long_ago, long_ago))


def test_a_slot_is_given_once(tmp_path: Path) -> None:
    one, other = identity.Slots(str(tmp_path)), identity.Slots(str(tmp_path))
    taken = [slots.take(me()) for _ in range(50) for slots in (one, other)]
    assert len(set(taken)) == 100


def test_two_spawners_that_begin_at_the_same_place_share_nothing(tmp_path: Path) -> None:
    one, other = identity.Slots(str(tmp_path)), identity.Slots(str(tmp_path))
    one._numbers = iter(range(100))  # type: ignore[assignment]
    other._numbers = iter(range(100))  # type: ignore[assignment]
    assert [one.take(me()), other.take(me()), one.take(me())] == [0, 1, 2]


def test_the_range_of_a_dead_box_is_free_again(tmp_path: Path) -> None:
    slots = identity.Slots(str(tmp_path))
    with subprocess.Popen(["true"]) as child:
        gone = processes.Identity(child.pid, 1, processes.boot_id())
    slots._numbers = iter([5, 5, 5])  # type: ignore[assignment]
    assert slots.take(gone) == 5
    age(tmp_path / "5")
    assert slots.take(me()) == 5
    assert (tmp_path / "5").read_text() == str(me())


def test_a_claim_that_is_just_being_written_is_respected(tmp_path: Path) -> None:
    slots = identity.Slots(str(tmp_path))
    (tmp_path / "7").touch()
    slots._numbers = iter([7, 8])  # type: ignore[assignment]
    assert slots.take(me()) == 8


def test_only_its_owner_gives_a_range_back(tmp_path: Path) -> None:
    slots = identity.Slots(str(tmp_path))
    slot = slots.take(me())
    identity.give_back(slot, processes.Identity(1, 1, "another boot"), str(tmp_path))
    assert (tmp_path / str(slot)).exists()
    identity.give_back(slot, me(), str(tmp_path))
    assert not (tmp_path / str(slot)).exists()


def test_ranges_do_not_overlap_and_fit_into_an_id() -> None:
    last = identity.base(identity.SLOTS - 1) + identity.RANGE
    assert last <= 2**31
    assert identity.base(1) - identity.base(0) == identity.RANGE
    assert identity.range_maps(3).uid == f"0 {identity.base(3)} {identity.RANGE}"


def test_rootless_maps_make_the_caller_the_ordinary_user() -> None:
    maps = identity.single_maps()
    assert maps.uid == f"1000 {os.geteuid()} 1"
    assert maps.forbid_setgroups


@pytest.mark.parametrize("text", ["", "1", "a b c", "1 2", "1 2 3 4", "-1 2 x"])
def test_a_damaged_file_names_no_process(text: str) -> None:
    assert processes.Identity.parse(text) is None


def test_a_process_is_known_by_more_than_its_number() -> None:
    assert me().alive()
    assert not processes.Identity(os.getpid(), me().start + 1, me().boot).alive()
    assert not processes.Identity(os.getpid(), me().start, "another boot").alive()
    fd = me().open()
    assert fd is not None
    os.close(fd)
    assert processes.Identity(os.getpid(), me().start, "another boot").open() is None
    assert processes.Identity.parse(str(me())) == me()
