"""Ranges of host ids: never shared by two live boxes, never lost with a dead one."""

import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hutch.config import directories
from hutch.linux import identity, processes


def me() -> processes.Identity:
    return processes.Identity(os.getpid(), processes.start_time(os.getpid()) or 0, processes.boot_id())


def age(path: Path) -> None:
    long_ago = time.time() - 1000
    os.utime(path, (long_ago, long_ago))


def beginning_at(block: int, directory: Path) -> identity.IdRanges:
    slots = identity.IdRanges(str(directory))
    slots._numbers = itertools.count(block)
    return slots


@pytest.fixture
def block() -> int:
    """A block of which no process on this machine has ids; boxes of other tests may have those of any."""
    return next(number for number in range(5, 1000) if not identity._in_use(number))


def test_a_slot_is_given_once(tmp_path: Path) -> None:
    one, other = beginning_at(3, tmp_path), beginning_at(3, tmp_path)
    taken = [slots.take() for _ in range(2 * identity.BLOCK) for slots in (one, other)]
    assert len(set(taken)) == 4 * identity.BLOCK
    assert {slot // identity.BLOCK for slot in taken} == {3, 4, 5, 6}


def test_the_run_directory_above_it_is_closed_to_others(tmp_path: Path) -> None:
    """The first spawner on a machine may make root's run directory, and a keeper refuses one that others can enter."""
    identity.IdRanges(str(tmp_path / "run" / "ids"))
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    older = tmp_path / "older"
    (older / "ids").mkdir(parents=True)
    older.chmod(0o755)
    directories.make(older)
    assert older.stat().st_mode & 0o077 == 0


def test_a_slot_given_back_is_given_again(tmp_path: Path) -> None:
    slots = beginning_at(3, tmp_path)
    taken = [slots.take() for _ in range(identity.BLOCK)]
    slots.give_back(taken[7])
    assert slots.take() == taken[7]
    assert slots.take() // identity.BLOCK == 4


def test_a_spawner_that_ends_leaves_only_the_blocks_with_boxes(tmp_path: Path) -> None:
    slots = beginning_at(3, tmp_path)
    taken = [slots.take() for _ in range(identity.BLOCK + 1)]
    slots.give_back(taken[-1])
    slots.close()
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_the_block_of_a_dead_spawner_is_free_again(tmp_path: Path, block: int) -> None:
    with subprocess.Popen(["true"]) as child:
        (tmp_path / str(block)).write_text(str(processes.Identity(child.pid, 1, processes.boot_id())))
    age(tmp_path / str(block))
    assert beginning_at(block, tmp_path).take() // identity.BLOCK == block


def test_the_block_of_a_living_spawner_is_not(tmp_path: Path, block: int) -> None:
    beginning_at(block, tmp_path).take()
    age(tmp_path / str(block))
    assert beginning_at(block, tmp_path).take() // identity.BLOCK == block + 1


def test_the_block_of_a_dead_spawner_is_not_free_while_somebody_has_ids_of_it(
    tmp_path: Path, block: int, rootless: bool
) -> None:
    """A box outlives its spawner; were its range given to another, the two would be the same user outside."""
    if rootless:
        pytest.skip("ranges of ids need root")
    (tmp_path / str(block)).write_text(str(processes.Identity(2**22 - 3, 1, processes.boot_id())))
    age(tmp_path / str(block))
    with subprocess.Popen(["unshare", "--user", "sleep", "60"]) as inhabitant:
        try:
            map_ids(inhabitant.pid, block * identity.BLOCK + 9)
            assert beginning_at(block, tmp_path).take() // identity.BLOCK == block + 1
        finally:
            inhabitant.kill()
    assert beginning_at(block, tmp_path).take() // identity.BLOCK == block


def map_ids(pid: int, slot: int) -> None:
    ours = os.readlink("/proc/self/ns/user")
    until = time.monotonic() + 20
    while os.readlink(f"/proc/{pid}/ns/user") == ours:
        assert time.monotonic() < until, "it did not enter a user namespace"
        time.sleep(0.005)
    identity.range_maps(slot).write(pid)


def test_a_claim_that_is_just_being_written_is_respected(tmp_path: Path) -> None:
    (tmp_path / "7").touch()
    assert beginning_at(7, tmp_path).take() // identity.BLOCK == 8


def test_ranges_do_not_overlap_and_fit_into_an_id() -> None:
    last = identity.base(identity.SLOTS - 1) + identity.RANGE
    assert last <= 2**31
    assert identity.base(1) - identity.base(0) >= identity.RANGE
    assert identity.range_maps(3).uid == f"0 {identity.base(3)} {identity.RANGE}"


def test_the_owner_of_a_file_is_known_by_its_id_outside() -> None:
    """Whatever range a box has, and through idmapped mounts, which show the box's own ids."""
    for slot in (0, 1, 1000, identity.SLOTS - 1):
        for number in (0, identity.USER, identity.RANGE - 1):
            assert identity.inner_id(identity.base(slot) + number) == number
    assert identity.inner_id(identity.USER) == identity.USER


def test_the_users_of_boxes_lie_all_over_the_kernels_hash_table() -> None:
    users = [identity.base(slot) + identity.USER for slot in range(2048)]
    chains = Counter((user >> 7) + user & 127 for user in users)  # __uidhashfn of kernel/user.c
    assert max(chains.values()) <= 2 * len(users) / 128


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


@pytest.mark.skipif(os.geteuid() != 0, reason="root of a container is root")
def test_root_with_few_capabilities_has_boxes_all_the_same(tmp_path: Path) -> None:
    """As root of a container is, that was given little more than CAP_SYS_ADMIN: its boxes then belong to root, because
    it could not reach into one that belongs to another id."""
    few = "-net_admin,-sys_ptrace,-kill"
    code = "from socket import *; s = create_server(('127.0.0.1', 0)); create_connection(s.getsockname()); print('up')"
    hutch = [str(Path(sys.executable).with_name("hutch")), "run", "--", "python3", "-c", code]
    places = {"HUTCH_STATE_DIR": str(tmp_path / "s"), "HUTCH_RUN_DIR": str(tmp_path / "r")}
    drop = ["setpriv", f"--bounding-set={few}", f"--inh-caps={few}"]
    done = subprocess.run([*drop, *hutch], capture_output=True, text=True, env={**os.environ, **places}, timeout=60)
    assert (done.stdout, done.returncode) == ("up\n", 0), done.stderr
