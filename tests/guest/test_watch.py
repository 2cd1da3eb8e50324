"""Watching a directory for changes."""

import json
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.guest.files import watch as module
from hutch.guest.files.driver import OPERATIONS
from hutch.guest.operations import Failure, Readable

Change = tuple[str, str]


class Watch:
    """An active watch and the changes it has reported."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps
        self.seen: list[Change] = []
        self.ended = False

    def until(self, enough: Callable[[list[Change]], bool]) -> list[Change]:
        while not enough(self.seen):
            try:
                step = next(self.steps)
            except StopIteration:
                self.ended = True
                return self.seen
            if isinstance(step, Readable):
                assert select.select([step.descriptor], [], [], 20)[0], f"nothing more came after {self.seen}"
            elif step is not None:
                rows = [json.loads(line) for line in step.splitlines()]
                self.seen += [(row["kind"], row["path"]) for row in rows]
        return self.seen

    def wait_for(self, *changes: Change) -> list[Change]:
        return self.until(lambda seen: set(changes) <= set(seen))


@contextmanager
def started_watch(workdir: Path, path: str = ".", recursive: bool = True) -> Iterator[Watch]:
    steps = OPERATIONS["files.watch"]({"path": path, "recursive": recursive}, str(workdir))
    watch = Watch(steps)
    watch.wait_for(("ready", ""))
    try:
        yield watch
    finally:
        watch.steps.close()


def test_changes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/old").touch()
    with started_watch(tmp_path) as watch:
        (tmp_path / "new").write_bytes(b"x")
        os.rename(tmp_path / "new", tmp_path / "sub/moved")
        os.unlink(tmp_path / "sub/old")
        (tmp_path / "odd\n\udcff").touch()
        watch.wait_for(
            ("created", "new"), ("modified", "new"), ("moved_from", "new"), ("moved_to", "sub/moved"),
            ("deleted", "sub/old"), ("created", "odd\n\udcff"),
        )  # fmt: skip


def test_paths_are_spelled_like_the_request(tmp_path: Path) -> None:
    (tmp_path / "sub/deep").mkdir(parents=True)
    with started_watch(tmp_path, "sub") as watch:
        (tmp_path / "sub/deep/file").touch()
        watch.wait_for(("created", "sub/deep/file"))
    with started_watch(Path("/"), str(tmp_path / "sub")) as watch:
        (tmp_path / "sub/other").touch()
        watch.wait_for(("created", str(tmp_path / "sub/other")))


def test_new_directories_are_watched_with_what_is_already_in_them(tmp_path: Path) -> None:
    """Files created before the new directory was watched are found by listing it."""
    with started_watch(tmp_path) as watch:
        for number in range(30):
            (tmp_path / f"d{number}/e/f").mkdir(parents=True)
            (tmp_path / f"d{number}/e/f/file").touch()
        watch.wait_for(*(("created", f"d{number}/e/f/file") for number in range(30)))
        (tmp_path / "d0/e/f/late").touch()
        watch.wait_for(("created", "d0/e/f/late"))


def test_a_directory_that_was_moved_reports_under_its_new_name(tmp_path: Path) -> None:
    (tmp_path / "old/sub").mkdir(parents=True)
    with started_watch(tmp_path) as watch:
        os.rename(tmp_path / "old", tmp_path / "new")
        watch.wait_for(("moved_to", "new"))
        (tmp_path / "new/sub/file").touch()
        seen = watch.wait_for(("created", "new/sub/file"))
        assert not [path for _, path in seen if path.startswith("old/")]


def test_without_recursion_only_the_directory_itself(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with started_watch(tmp_path, recursive=False) as watch:
        (tmp_path / "sub/file").touch()
        (tmp_path / "made").mkdir()
        (tmp_path / "made/file").touch()
        (tmp_path / "last").touch()
        seen = watch.wait_for(("created", "last"))
        assert not [path for _, path in seen if "/" in path]


def test_our_own_temporary_files_are_left_out(tmp_path: Path) -> None:
    with started_watch(tmp_path) as watch:
        work: Any = OPERATIONS["files.write"]({"path": "file"}, str(tmp_path))
        work.data(b"content")
        work.end()
        assert watch.wait_for(("moved_to", "file"))[1:] == [("moved_to", "file")]


def test_a_file_and_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with started_watch(tmp_path, "file") as watch:
        (tmp_path / "file").write_bytes(b"x")
        watch.wait_for(("modified", "file"))
        os.unlink(tmp_path / "file")
        watch.until(lambda _: False)
        assert watch.ended
        assert watch.seen[-1] == ("deleted", "file")


def test_a_watch_ends_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with started_watch(tmp_path, "sub") as watch:
        (tmp_path / "sub").rmdir()
        watch.until(lambda _: False)
        assert watch.ended
        assert ("deleted", "sub") in watch.seen


def test_too_many_directories_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WATCHES", 5)
    for number in range(10):
        (tmp_path / str(number)).mkdir()
    with started_watch(tmp_path) as watch:
        watch.until(lambda seen: any(kind == "overflow" for kind, _ in seen))


def test_a_full_queue_is_reported(tmp_path: Path) -> None:
    """A reader that is too slow gets a report that it missed something; the kernel's queue is the limit."""
    bound = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if bound > 100_000:
        pytest.skip(f"the queue holds {bound} events")
    (tmp_path / "a").touch()
    with started_watch(tmp_path, recursive=False) as watch:
        for _ in range(bound // 2 + 10):
            os.rename(tmp_path / "a", tmp_path / "b")
            os.rename(tmp_path / "b", tmp_path / "a")
        watch.until(lambda seen: any(kind == "overflow" for kind, _ in seen[-1:]))


def test_what_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        Watch(OPERATIONS["files.watch"]({"path": "missing"}, str(tmp_path))).wait_for(("ready", ""))
    assert caught.value.code == "file_not_found"
