"""Counting trees, and the disk watchdog, against real files and processes, as root and as an ordinary user."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.providers.native.test_watchdog import HOLD, MB, Guest, running_guest, until

from hutch.providers.guest_client.disk_overrun import MOST_HITS, Overrun, Use
from hutch.providers.native import cleanup
from hutch.providers.native.watch import disk_usage
from hutch.providers.native.watch.disk import DiskWatchdog
from hutch.providers.native.watch.disk_usage import DiskScan
from hutch.providers.native.watch.memory import LimitHit
from hutch.providers.native.watch.processes import BoxProcesses

pytestmark = pytest.mark.slow


def deepen(top: Path, depth: int, *names: str) -> None:
    """Directories in each other, each with further ones and a file of one block beside the next."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        for name in ("d", *names):
            os.mkdir(name, dir_fd=here)
        file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here)
        os.write(file, b"1")
        os.close(file)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def scanned(top: Path, step: int = 1000) -> Use:
    directory = os.open(top, os.O_RDONLY)
    scan = DiskScan(directory)
    os.close(directory)
    while not scan.advance(step):
        pass
    return scan.used


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_count_is_honest(tmp_path: Path) -> None:
    """Holes are free, hard links count once, links lead nowhere, and many entries are all seen."""
    (tmp_path / "file").write_bytes(b"1" * MB)
    os.link(tmp_path / "file", tmp_path / "again")
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 40)
    os.symlink("/usr", tmp_path / "usr")
    os.symlink("..", tmp_path / "loop")
    for number in range(2500):
        (tmp_path / f"{number}").touch()
    used = scanned(tmp_path, step=7)
    assert MB <= used.bytes < 2 * MB
    assert used == Use(used.bytes, 2505)


def test_depth_costs_no_descriptors_and_hides_nothing(tmp_path: Path) -> None:
    """Threat: a tree deeper than a process may have descriptors, or than its stack."""
    deepen(tmp_path, 1300, "e")
    before = descriptors()
    directory = os.open(tmp_path, os.O_RDONLY)
    scan = DiskScan(directory)
    most = 0
    while not scan.advance(500):
        most = max(most, descriptors())
    os.close(directory)
    assert scan.used.entries == 3 * 1300 and scan.used.unread == 0
    assert most - before <= disk_usage._NEAREST + 3
    assert descriptors() == before
    cleanup.remove_tree(str(tmp_path / "d"))
    assert not (tmp_path / "d").exists()


def test_a_tree_that_is_moved_away_is_said_to_be_unread(tmp_path: Path) -> None:
    """Threat: the way up from a deep directory is its "..", which the box can change by moving it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    deepen(tmp_path / "a", 200)
    directory = os.open(tmp_path, os.O_RDONLY)
    scan = DiskScan(directory)
    os.close(directory)
    while len(scan._near) + len(scan._inodes) < 150:
        assert not scan.advance(1)
    os.rename(tmp_path / "a/d", tmp_path / "b/d")
    while not scan.advance(100):
        pass
    assert scan.used.unread == 1
    assert scanned(tmp_path) == Use(scanned(tmp_path).bytes, 2 + 400)


def test_files_removed_during_a_count_are_not_counted(tmp_path: Path) -> None:
    """Removed, replaced by a link, or emptied under our eyes."""
    deepen(tmp_path, 100)
    directory = os.open(tmp_path, os.O_RDONLY)
    scan = DiskScan(directory)
    os.close(directory)
    scan.advance(90)
    cleanup.remove_tree(str(tmp_path / "d"))
    os.symlink("/", tmp_path / "d")
    while not scan.advance(100):
        pass
    assert scan.used.entries <= 202


def test_a_closed_directory_is_counted_and_stays_closed(tmp_path: Path, rootless: bool) -> None:
    """Threat: `chmod 000` holds also against the owner of the files, who is who counts them if Hutch is not root."""
    for mode in (0o000, 0o400, 0o300):
        (tmp_path / f"{mode}/below").mkdir(parents=True)
        (tmp_path / f"{mode}/below/file").write_bytes(b"1" * MB)
        (tmp_path / f"{mode}/below").chmod(mode)
        (tmp_path / f"{mode}").chmod(mode)
    used = scanned(tmp_path)
    assert (used.entries, used.unread) == (9, 0) and used.bytes >= 3 * MB
    for mode in (0o000, 0o400, 0o300):
        assert (tmp_path / f"{mode}").stat().st_mode & 0o777 == mode
    cleanup.remove_tree(str(tmp_path))
    assert not tmp_path.exists()


# --- the watchdog ----------------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[DiskWatchdog]:
    watchdog = DiskWatchdog()
    yield watchdog
    watchdog.close()


@pytest.fixture
def guest() -> Iterator[Guest]:
    with running_guest() as started:
        yield started


class Nobody:
    """In the box beside the guest's descendants."""

    def works_unseen(self) -> bool:
        return False

    def members(self) -> set[int]:
        return set()


@contextlib.contextmanager
def watched(disk: DiskWatchdog, guest: Guest, tree: Path, overrun: Overrun) -> Iterator[None]:
    directory = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    disk.watch("box", guest.pid, overrun, directory, Nobody())
    os.close(directory)
    yield
    disk.forget("box")


def counted(disk: DiskWatchdog) -> list[LimitHit]:
    """Rounds until the box was counted, twice if the first count leaves a doubt."""
    hits: list[LimitHit] = []
    box = disk._boxes["box"]
    while True:
        box.due = 0.0
        hits += disk.check()
        if box.scan is None and not box.doubted:
            return hits


def test_over_the_limit_only_processes_that_keep_writing_are_reported(
    disk: DiskWatchdog, guest: Guest, tmp_path: Path
) -> None:
    guest.start(HOLD.format(size=1))
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/big").write_bytes(b"1" * (4 * MB))
    overrun = Overrun(Use(3 * MB, 100))
    with watched(disk, guest, tmp_path, overrun):
        (hit,) = counted(disk)
        assert (hit.limit, hit.allowed, hit.unit) == ("disk", 3, "MB") and 4 <= hit.used < 5
        assert counted(disk) == [], "its processes are being ended"
        disk.ended("box")
        assert counted(disk) == counted(disk) == []
        assert overrun.excess is not None and not overrun.settling
        (tmp_path / "more").write_bytes(b"1" * (2 * MB))
        assert len(counted(disk)) == 1
        disk.ended("box")
        (tmp_path / "more").unlink()
        (tmp_path / "a/b/big").unlink()
        assert counted(disk) == [] and overrun.excess is None
        usage = disk.usage("box")
        assert usage is not None and usage.bytes < MB and usage.entries == 2
        (tmp_path / "big").write_bytes(b"1" * (4 * MB))
        assert len(counted(disk)) == 1, "back within, the limit is the measure again"


def test_files_and_unread_directories_are_an_excess(disk: DiskWatchdog, guest: Guest, tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number}").touch()
    with watched(disk, guest, tmp_path, Overrun(Use(3 * MB, 100))):
        (hit,) = counted(disk)
        assert (hit.allowed, hit.unit) == (100, "files") and hit.used > 100
    unread = Overrun(Use(3 * MB, 100))
    assert Use(0, 0, 1).exceeds(unread.bound) and "cannot be counted" in unread.hit(Use(0, 0, 1)).unit


def test_files_moved_during_a_count_end_no_process(disk: DiskWatchdog, guest: Guest, tmp_path: Path) -> None:
    """It was counted twice. A second count, undisturbed, has the last word."""
    guest.start(HOLD.format(size=1))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_bytes(b"1" * (2 * MB))
    with watched(disk, guest, tmp_path, Overrun(Use(3 * MB, 100))):
        box = disk._boxes["box"]
        box.scan = DiskScan(box.directory)
        box.scan._bytes = 2 * MB
        assert counted(disk) == [] and disk.usage("box") is not None
        assert box.overrun.excess is None


def test_a_box_that_was_over_its_limit_before_we_came_may_be_emptied(
    disk: DiskWatchdog, guest: Guest, tmp_path: Path
) -> None:
    guest.start(HOLD.format(size=1))
    (tmp_path / "big").write_bytes(b"1" * (4 * MB))
    overrun = Overrun(Use(3 * MB, 100), lived=True)
    with watched(disk, guest, tmp_path, overrun):
        assert counted(disk) == [] and overrun.excess is not None and overrun.reason is None
        (tmp_path / "more").write_bytes(b"1" * (2 * MB))
        assert len(counted(disk)) == 1


def test_after_many_hits_in_a_row_no_command_starts() -> None:
    """Threat: a box that is asked again and again would fill the disk piece by piece."""
    overrun = Overrun(Use(MB, 100))
    for number in range(MOST_HITS + 1):
        assert not overrun.is_blocked
        overrun.hit(Use((number + 2) * MB))
        overrun.counted(Use((number + 2) * MB))
    assert overrun.is_blocked
    overrun.counted(Use(MB))
    assert not overrun.is_blocked and overrun.bound == overrun.limit


def test_idle_box_is_not_walked_again(disk: DiskWatchdog, guest: Guest, tmp_path: Path) -> None:
    """An idle box costs nearly nothing; whatever is started in it has it counted again."""
    with contextlib.closing(BoxProcesses(guest.pid)) as processes:
        until(lambda: not processes.users(), "an idle box")
    with watched(disk, guest, tmp_path, Overrun(Use(MB, 100))):
        assert counted(disk) == []
        (tmp_path / "late").write_bytes(b"1" * (2 * MB))
        assert counted(disk) == []
        disk.note_activity("box")
        assert len(counted(disk)) == 1


def test_a_guest_that_does_not_obey_is_not_needed(disk: DiskWatchdog, guest: Guest, tmp_path: Path) -> None:
    """A process that writes is then ended from outside."""
    pids = [guest.start(HOLD.format(size=1)) for _ in range(3)]
    with watched(disk, guest, tmp_path, Overrun(Use(MB, 100))):
        disk.end_users("box")
        with contextlib.closing(BoxProcesses(guest.pid)) as processes:
            until(lambda: not processes.users() & set(pids), "their end")
        assert guest.process.poll() is None
