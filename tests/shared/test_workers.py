"""Processes on one state directory: they share conversations' boxes, and a clean restart loses none."""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.config import Config
from hutch.keeper.embedded import open_keeper
from tests.conftest import remove

PATIENCE = 60.0


@pytest.fixture
def places() -> Iterator[Path]:
    """Of this test's processes alone: what they leave running is ended with it."""
    parent = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    parent.chmod(0o755)
    yield parent
    for box in json.loads(hutch(parent, "box", "list", "--json"))["boxes"]:
        hutch(parent, "box", "destroy", "--force", box["id"])
    remove(parent)


def hutch(places: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "hutch.cli.main", *arguments]
    return subprocess.run(command, env=environment(places), capture_output=True, timeout=PATIENCE, text=True).stdout


def environment(places: Path) -> dict[str, str]:
    return os.environ | {"HUTCH_STATE_DIR": str(places / "s"), "HUTCH_RUN_DIR": str(places / "r")}


class Worker:
    """A process that embeds Hutch."""

    def __init__(self, places: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.shared.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(places), cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def send(self, **step: object) -> None:
        assert self.process.stdin is not None
        print(json.dumps(step), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, **step: object) -> Any:
        self.send(**step)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def close(self) -> None:
        """End of input: it leaves `async with Hutch()` in good order."""
        self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0


@contextmanager
def workers(places: Path, count: int) -> Iterator[list[Worker]]:
    started = [Worker(places) for _ in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            if worker.process.poll() is None:
                worker.kill()


def test_two_processes_hold_one_conversation_at_once(places: Path) -> None:
    """The box of a chat is one box, whichever process answers, also while the other one works in it (P7)."""
    with workers(places, 2) as (first, second):
        box = first.ask(do="hold", chat="a")
        first.ask(do="exec", chat="a", command="echo from the first > note")
        assert second.ask(do="hold", chat="a") == box
        assert second.ask(do="exec", chat="a", command="cat note") == "from the first\n"
        assert second.ask(do="hold", chat="b") != box
        first.send(do="exec", chat="a", command="sleep 0.3; echo one")
        assert second.ask(do="exec", chat="a", command="echo two") == "two\n"
        assert first.answer() == "one\n"
        second.close()
        assert first.ask(do="exec", chat="a", command="cat note") == "from the first\n"


def test_the_first_messages_of_a_chat_make_one_box(places: Path) -> None:
    """Processes that find no box at the same moment make one, not two (lesson 9)."""
    with workers(places, 3) as several:
        for worker in several:
            worker.ask(do="hold", chat=f"warm-{worker.process.pid}")
        for worker in several:
            worker.send(do="hold", chat="same")
        assert len({json.dumps(worker.answer()) for worker in several}) == 1


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_handle_outlives_the_process_that_kept_its_box(places: Path, end: str) -> None:
    """Another process takes the place of the one that ended; a caller in the middle of its work notices nothing."""
    with workers(places, 3) as (first, second, third):
        box = first.ask(do="hold", chat="a")
        assert [second.ask(do="hold", chat="a"), third.ask(do="hold", chat="a")] == [box, box]
        second.ask(do="exec", chat="a", command="echo kept > note")
        getattr(first, end)()
        assert second.ask(do="exec", chat="a", command="cat note") == "kept\n"
        assert third.ask(do="exec", chat="a", command="cat note") == "kept\n"
        assert second.ask(do="hold", chat="a") == box


def test_a_handle_follows_its_box_to_the_process_that_adopted_it(places: Path) -> None:
    """A worker that is started in the place of a dead one adopts its boxes before those ask for them who hold them.
    They keep working all the same: with commands, files, jobs, what they know of the box, and its release (P7, P16)."""
    with workers(places, 2) as (first, second):
        box = first.ask(do="hold", chat="a")
        assert second.ask(do="hold", chat="a") == box
        job = second.ask(do="start", chat="a", command="echo begun; exec sleep 1000")
        first.kill()
        with workers(places, 1) as (third,):
            assert third.ask(do="adopted", box=box) == [False, "adopted"]
            assert second.ask(do="write", chat="a", path="note", content="kept") == 4
            assert second.ask(do="exec", chat="a", command="cat note") == "kept"
            assert second.ask(do="read", chat="a", job=job) == "begun\n"
            assert second.ask(do="info", chat="a") == box
            assert third.ask(do="hold", chat="a") == box
            third.send(do="exec", chat="a", command="sleep 0.3; echo one")
            assert second.ask(do="exec", chat="a", command="echo two") == "two\n"
            assert third.answer() == "one\n"
            second.close()
            assert third.ask(do="exec", chat="a", command="cat note") == "kept"


def test_the_next_message_does_not_take_an_adopted_box_from_the_one_before(places: Path) -> None:
    """A worker that answers two messages of a chat at once has two handles; both continue at the process that adopted
    the box, whichever is used first (P7)."""
    with workers(places, 2) as (first, second):
        box = first.ask(do="hold", chat="a")
        assert second.ask(do="hold", chat="a") == box
        first.kill()
        with workers(places, 1) as (third,):
            assert third.ask(do="adopted", box=box) == [False, "adopted"]
            assert second.ask(do="hold", chat="a", name="next") == box
            for chat in ("next", "a"):
                assert second.ask(do="exec", chat=chat, command="echo here") == "here\n"


def test_a_handle_whose_lease_ended_is_refused_after_an_adoption(places: Path) -> None:
    """A handle whose lease ended with its keeper is refused once another session has had the box (P6) (lesson 5)."""
    with workers(places, 2) as (first, second):
        box = first.ask(do="hold", chat="a")
        assert second.ask(do="hold", chat="a") == box
        first.kill()
        with workers(places, 1) as (third,):
            assert third.ask(do="adopted", box=box) == [False, "adopted"]
            assert third.ask(do="attach", chat="mine", box=box) is True
            assert third.ask(do="exec", chat="mine", command="echo mine") == "mine\n"
            assert second.ask(do="exec", chat="a", command="true")["code"] == "lease_lost"


def test_a_conversation_outlives_a_clean_restart(places: Path) -> None:
    """A clean exit keeps a conversation's box with its files and jobs, as a kill does; other boxes end with it."""
    with workers(places, 1) as (first,):
        box = first.ask(do="hold", chat="a")
        other = first.ask(do="create", chat="own")
        first.ask(do="exec", chat="a", command="echo kept > note")
        first.ask(do="start", chat="a", command="sleep 1000")
        first.close()
    with workers(places, 1) as (second,):
        assert second.ask(do="hold", chat="a") == box
        assert second.ask(do="exec", chat="a", command="cat note; pgrep -x sleep | wc -l") == "kept\n1\n"
        assert second.ask(do="attach", chat="own", box=other)["code"] == "gone"
        second.ask(do="destroy", box=box)
        second.close()


async def test_a_conversation_waits_as_long_as_it_may_idle(places: Path) -> None:
    """Its own clock ends it if nobody comes back; the list shows when."""
    with workers(places, 1) as (worker,):
        box = worker.ask(do="hold", chat="a")
        worker.close()
    keeper = open_keeper(Config.load(state_dir=str(places / "s"), run_dir=str(places / "r")), visiting=True)
    record = await keeper.store.get(box)
    assert record is not None
    assert (record.grace_sec, bool(record.left_at)) == (record.spec.idle_timeout_sec, True)
    await keeper.store.close()


def test_a_box_of_another_process_is_used_and_ended_through_it(places: Path) -> None:
    """A live box of another process, attached to by its id, is no error any more."""
    with workers(places, 2) as (first, second):
        box = first.ask(do="create", chat="a")
        assert second.ask(do="attach", chat="a", box=box)["code"] == "busy", "its session has it"
        second.ask(do="destroy", box=box)
        second.close()
        first.close()


def asked(path: Path, chat: int, command: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("GET", f"/?chat={chat}&command={command}")
    response = connection.getresponse()
    assert response.status == 200, response.read()
    answer: dict[str, Any] = json.loads(response.read())
    return answer


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(str(path)) == 0


def test_a_bot_with_two_workers(places: Path) -> None:
    """`uvicorn --workers 2`: every message is answered, by either worker, in the box of its chat."""
    path = places / "bot.sock"
    command = [sys.executable, "-m", "uvicorn", "tests.shared.bot:app", "--workers", "2", "--uds", str(path),
               "--log-level", "warning"]  # fmt: skip
    bot = subprocess.Popen(command, env=environment(places), cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + PATIENCE
        while not listens(path):
            assert time.monotonic() < deadline and bot.poll() is None
            time.sleep(0.05)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: (n % 4, asked(path, n % 4, "echo+x+>>+log;+wc+-l+<+log")), range(40)))
        boxes = {(chat, answer["box"]) for chat, answer in answers}
        assert len(boxes) == 4 == len({box for _, box in boxes})
        assert {answer["cause"] for _, answer in answers} == {"ok"}
        assert len({answer["pid"] for _, answer in answers}) == 2, "both workers have answered"
        assert {int(asked(path, chat, "wc+-l+<+log")["stdout"]) for chat in range(4)} == {10}
    finally:
        bot.terminate()
        bot.wait(PATIENCE)
