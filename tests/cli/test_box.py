"""`hutch box …`: boxes that stay between commands, each command a process of its own."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.cli.commands.box.files import End, end_of
from hutch.errors import Conflict, Invalid, NotFound
from hutch.keeper.access import lookup
from hutch.keeper.store.store import MemoryStore
from hutch.model import units
from hutch.model.boxes import Event
from hutch.model.capabilities import Pause
from hutch.providers.native.provider import NativeProvider
from tests.cli.cli_process import TIMEOUT, read_until
from tests.cli.conftest import Home
from tests.cli.test_terminals import on_terminal
from tests.keeper.sample_records import record

pytestmark = pytest.mark.slow


def test_a_box_made_by_one_process_is_used_by_others(home: Home) -> None:
    """Create, exec with streams and exit code, files stay, output is put away, destroy."""
    box = home.good("box", "create", "--name", "first").strip()
    done = home.hutch("box", "exec", "first", "--", "sh", "-c", "cat > f; echo err >&2; pwd; exit 7", stdin=b"in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"/workspace\n", b"err\n")
    options = ("--env", "A=1", "--cwd", "/tmp", "--json")
    code, result = home.answer("box", "exec", *options, "first", "sh", "-c", "cat /workspace/f; echo $A $PWD")
    assert (code, result["stdout"], result["box"]["id"]) == (0, "in\n1 /tmp\n", box)
    assert home.json("box", "jobs", box)["jobs"] == []
    assert home.good("box", "destroy", "first").strip() == box
    code, answer = home.answer("box", "show", box)
    assert (code, answer["error"]["code"]) == (125, "gone")
    assert "destroyed by a call" in answer["error"]["message"]


def test_a_program_that_is_not_there(home: Home) -> None:
    """The exit codes of `hutch run`; a timeout that makes no sense is refused, not defaulted (P17)."""
    home.good("box", "create", "--name", "codes")
    assert home.hutch("box", "exec", "codes", "no-such-program").returncode == 127
    done = home.hutch("box", "exec", "--timeout", "0.3s", "codes", "sleep", "60")
    assert (done.returncode, done.stderr.startswith(b"hutch: timeout: ")) == (124, True)
    done = home.hutch("box", "exec", "--timeout", "soon", "codes", "true")
    assert (done.returncode, b"'soon' is not a time" in done.stderr) == (125, True)


def test_a_job_outlives_the_process_that_started_it(home: Home) -> None:
    """A job's output from an earlier process is read by the next, its input fed by a third, its end seen by all."""
    home.good("box", "create", "--name", "jobs")
    script = "echo out; echo err >&2; read line; echo got $line; exit 5"
    job = home.good("box", "exec", "--detach", "--name", "work", "jobs", "--", "sh", "-c", script).strip()
    (shown,) = home.json("box", "show", "jobs")["jobs"]
    assert (shown["id"], shown["name"], shown["state"]) == (job, "work", "running")
    _wait_for_output(home, "jobs", job, "err\n")
    done = home.hutch("box", "logs", "jobs", "work")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert home.good("box", "logs", "--stderr", "jobs", job) == "err\n"
    done = home.hutch("box", "attach", "jobs", job, stdin=b"this\n")
    assert (done.returncode, done.stdout.endswith(b"got this\n")) == (5, True), done
    assert home.good("box", "logs", "--follow", "jobs") == "out\ngot this\n"
    code, answer = home.answer("box", "logs", "jobs", "other")
    assert (code, answer["error"]["code"]) == (125, "not_found")


def _wait_for_output(home: Home, box: str, job: str, wanted: str) -> None:
    end = time.monotonic() + TIMEOUT
    while wanted not in home.json("box", "logs", box, job)["stderr"]:
        assert time.monotonic() < end


def test_files_go_in_out_and_across(home: Home, tmp_path: Path) -> None:
    """Trees both ways, into a directory that is there, a file through pipes, and from box to box."""
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(bytes(range(256)) * 300)
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("deep/file")
    home.good("box", "create", "--name", "giver")
    home.good("box", "create", "--name", "taker")
    assert home.json("box", "cp", str(tree), "giver:")["bytes"] >= 256 * 300
    home.good("box", "cp", "giver:tree", "taker:copy")
    home.good("box", "cp", "giver:tree/run.sh", "taker:copy/deep")
    assert (
        home.good("box", "exec", "taker", "--", "sh", "-c", "copy/deep/run.sh; readlink copy/link")
        == "ran\ndeep/file\n"
    )
    home.good("box", "cp", "taker:copy", str(tmp_path / "back"))
    home.good("box", "cp", "taker:copy/deep/.", str(tmp_path / "back"))
    assert (tmp_path / "back" / "file").exists()
    assert (tmp_path / "back" / "deep" / "file").read_bytes() == (tree / "deep" / "file").read_bytes()
    data = bytes(range(256)) * 5000
    home.good("box", "cp", "-", "taker:/tmp/piped", stdin=data)
    assert home.hutch("box", "cp", "taker:/tmp/piped", "-").stdout == data
    done = home.hutch("box", "cp", "taker:nowhere", str(tmp_path))
    assert (done.returncode, b"nowhere" in done.stderr) == (125, True)
    assert home.hutch("box", "cp", str(tree), str(tmp_path / "b")).returncode == 125


def test_boxes_are_found_by_name_and_by_the_beginning_of_an_id(home: Home) -> None:
    """Every detail, by each way to name the box; a name is one box's (B13)."""
    box = home.json("box", "create", "--name", "named", "--label", "task=42", "--memory", "256", "--ttl", "1h")
    for text in (box["id"], box["id"][:6], "named"):
        code, shown = home.answer("box", "show", text)
        assert (code, shown["id"]) == (0, box["id"])
    wanted = {"image": "host", "provider": "native", "network": "off", "mount_path": "/workspace", "name": "named"}
    assert wanted.items() <= shown.items()
    assert (shown["limits"]["memory_mb"], shown["labels"]["task"], shown["jobs"]) == (256, "42", [])
    assert 0 < shown["remaining_seconds"] <= 900 == shown["kept_without_use_sec"]
    assert shown["created_at"] <= shown["last_used_at"]
    text = home.good("box", "show", "named")
    assert all(word in text for word in ("backend:    native", "256 MB", "task=42", "remaining:", "held by cli-"))
    code, refused = home.answer("box", "create", "--name", "named")
    assert (code, refused["error"]["code"]) == (125, "conflict")
    home.good("box", "rename", "named", "renamed")
    assert home.answer("box", "show", "named")[1]["error"]["code"] == "not_found"
    lines = home.good("box", "list").splitlines()
    assert lines[0].startswith("ID ") and any(box["id"][:12] in line and "renamed" in line for line in lines)
    assert {"renamed", box["id"]} <= set(home.good("box", "list", "--names").split())


def test_the_lease_between_sessions(home: Home) -> None:
    """Consecutive commands hold one lease; others are refused until they take over or it is released (P6)."""
    home.good("box", "create", "--name", "leased")
    held = home.json("box", "lease", "leased")
    assert held["lease"]["holder"] == held["session"] == f"cli-{os.getuid()}"
    assert 0 < held["lease"]["lease_expires_in_seconds"] <= 600
    assert held["lease"]["lease_expires_at"] > time.time()
    assert held["lease"]["auto_renew_interval_seconds"] == 30
    done = home.hutch("box", "exec", "--session", "other", "leased", "true")
    assert (done.returncode, b"held by another session" in done.stderr) == (125, True)
    assert home.answer("box", "destroy", "--session", "other", "leased")[1]["errors"][0]["code"] == "busy"
    assert home.json("box", "takeover", "--session", "other", "leased")["lease"]["holder"] == "other"
    assert home.answer("box", "lease", "--renew", "leased")[1]["error"]["code"] == "conflict"
    home.good("box", "release", "--session", "other", "leased")
    home.good("box", "exec", "leased", "true")
    assert home.json("box", "lease", "--renew", "leased")["lease"]["holder"] == held["session"]


def test_paused_boxes_stand_still_until_they_are_used(home: Home) -> None:
    """A pause outlives its process; looking does not wake, use does. Without a freezer it is refused."""
    home.good("box", "create", "--name", "sleepy")
    code, answer = home.answer("box", "pause", "sleepy")
    native = NativeProvider(state_dir=str(home.state), run_dir=str(home.run))
    if asyncio.run(native.probe()).pause is not Pause.FREEZE:
        assert (code, answer["error"]["code"]) == (125, "unsupported")
        return
    assert (code, answer["state"]) == (0, "paused")
    assert home.json("box", "show", "sleepy")["state"] == "paused"
    assert home.good("box", "exec", "sleepy", "echo", "awake") == "awake\n"
    assert home.json("box", "resume", "sleepy")["state"] == "running"


def test_pausing_and_stopping_do_not_point_at_each_other(home: Home) -> None:
    """A remedy is something that works here. Without a freezer neither does for a temporary box (lesson 34)."""
    home.good("box", "create", "--name", "idle")
    stopped = home.answer("box", "stop", "idle")[1]["error"]
    code, paused = home.answer("box", "pause", "idle")
    assert ("pause it" in stopped["remedy"]) == (code == 0), (stopped, paused)
    if code:
        assert "stop it" not in paused["error"]["remedy"] and "hutch serve" in paused["error"]["remedy"]
        home.good("box", "create", "--name", "kept", "--persistent")
        assert "stop it" in home.answer("box", "pause", "kept")[1]["error"]["remedy"]
        assert home.json("box", "stop", "kept")["state"] == "stopped"


def test_a_persistent_box_stops_and_comes_back(home: Home) -> None:
    """Its files are there again with the next use; a temporary box cannot be stopped (P16)."""
    home.good("box", "create", "--name", "lasting", "--persistent")
    home.good("box", "exec", "lasting", "--", "sh", "-c", "echo kept > file")
    assert home.json("box", "stop", "lasting")["state"] == "stopped"
    assert home.good("box", "exec", "lasting", "cat", "file") == "kept\n"
    home.good("box", "create", "--name", "fleeting")
    assert home.answer("box", "stop", "fleeting")[1]["error"]["code"] == "conflict"


def test_an_unused_box_ends_and_the_next_command_reports_it(home: Home) -> None:
    """DESIGN §5, nobody forgotten: its own clock ends it, looking does not extend it, and the record says why."""
    box = home.good("box", "create", "--keep", "0.5s").strip()
    end = time.monotonic() + TIMEOUT
    while box in home.good("box", "list", "--names"):
        assert time.monotonic() < end
    code, answer = home.answer("box", "exec", box, "true")
    assert (code, answer["error"]["code"]) == (125, "gone")
    assert "nobody used it" in answer["error"]["message"]
    done = home.hutch("box", "create", "--keep", "2d")
    assert (done.returncode, b"24h" in done.stderr) == (125, True)


async def test_a_box_of_a_live_process_is_left_alone(home: Home) -> None:
    """Its use is refused as `held_elsewhere`, with a remedy; it can be observed, and used once its process is gone."""
    async with Hutch(state_dir=home.state, run_dir=home.run) as hutch, hutch.box(name="theirs") as box:
        code, answer = await asyncio.to_thread(home.answer, "box", "exec", "theirs", "true")
        assert (code, answer["error"]["code"]) == (125, "held_elsewhere")
        assert answer["error"]["remedy"]
        shown = await asyncio.to_thread(home.json, "box", "show", "theirs")
        assert (shown["id"], shown["in_use_by_a_process"], shown["jobs"]) == (box.id, True, None)
        code, answer = await asyncio.to_thread(home.answer, "box", "destroy", "theirs", "--force")
        assert (code, answer["errors"][0]["code"]) == (125, "held_elsewhere")
        assert (await box.exec("true")).ok


async def test_kept_boxes_are_left_alone_by_other_programs(home: Home) -> None:
    """A program with a Hutch of its own on the same directories, and `hutch prune`, leave them to themselves; asked
    for by id, the program may use one, and it stays all the same."""
    box = (await asyncio.to_thread(home.good, "box", "create", "--name", "staying")).strip()
    async with Hutch(state_dir=home.state, run_dir=home.run) as hutch:
        assert await asyncio.to_thread(home.good, "box", "exec", "staying", "echo", "here") == "here\n"
        await asyncio.to_thread(home.good, "box", "release", "staying")
        handle = await hutch.attach(box)
        assert (await handle.exec("echo used > file")).ok
        await handle.release()
    assert box not in await asyncio.to_thread(home.good, "prune")
    assert await asyncio.to_thread(home.good, "box", "exec", "staying", "cat", "file") == "used\n"


def test_a_terminal_job_is_joined_and_left(home: Home) -> None:
    """attach on a terminal: keys go in raw, Ctrl-] leaves, the job keeps running."""
    home.good("box", "create", "--name", "screen")
    job = home.good("box", "exec", "--detach", "--tty", "screen", "sh").strip()
    with on_terminal("box", "attach", "screen", job, env=home.env) as (process, screen):
        os.write(screen, b"stty size; echo sum $((40+2))\n")
        assert b"33 101" in read_until(screen, b"sum 42")
        os.write(screen, b"\x1d")
        read_until(screen, b"it goes on")
        assert process.wait(TIMEOUT) == 0
    (shown,) = home.json("box", "jobs", "screen")["jobs"]
    assert shown["state"] == "running"


def test_a_table_that_lives(home: Home) -> None:
    """`list --watch` on a terminal draws the table again in its place."""
    home.good("box", "create", "--name", "watched")
    with on_terminal("box", "list", "--watch", env=home.env) as (process, screen):
        read_until(screen, b"watched")
        home.good("box", "rename", "watched", "seen-again")
        assert b"\x1b[J" in read_until(screen, b"seen-again")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130


def test_what_cannot_be_asked(home: Home) -> None:
    """Bad input is named with a remedy; help lists the commands of the group."""
    done = home.hutch("box", "crate")
    assert (done.returncode, b"did you mean `hutch box create`?" in done.stderr) == (125, True)
    assert home.answer("box", "exec", "none-such", "true")[1]["error"]["code"] == "not_found"
    assert "hutch box COMMAND --help" in home.good("box", "--help")
    assert home.hutch("box", "destroy").returncode == 125


# --- without a process ------------------------------------------------------------------------------------------------


async def test_two_candidates_are_an_error_not_a_guess() -> None:
    """A prefix needs four characters and one box; a name wins over a prefix; other owners' boxes are not there."""
    store = MemoryStore()
    boxes = {"abcd" + "a" * 16: "", "abcd" + "b" * 16: "", "wxyz" + "c" * 16: "abcd"}
    for box_id, name in boxes.items():
        box = record().but(id=box_id)
        event = Event(seq=0, at=0.0, box_id=box.id, owner=box.owner, kind="created")
        await store.insert(box.but(spec=box.spec.but(name=name)), event)
    assert (await lookup.find(store, "abcd")).id.startswith("wxyz")
    assert (await lookup.find(store, "abcda")).id.startswith("abcda")
    assert (await lookup.find(store, "wxyz")).id.startswith("wxyz")
    await lookup.check_name_free(store, "free")
    with pytest.raises(Conflict):
        await lookup.check_name_free(store, "abcd")
    with pytest.raises(NotFound, match="wxy"):
        await lookup.find(store, "wxy")
    with pytest.raises(NotFound):
        await lookup.find(store, "wxyz", owner="somebody")
    await store.insert(record().but(id="wxyz" + "d" * 16), event)
    with pytest.raises(Invalid, match="2 boxes"):
        await lookup.find(store, "wxyz")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("1h0.5s", 3600.5), ("0", 0)],
)
def test_times_as_people_write_them(text: str, seconds: float) -> None:
    """Parsed in one place (P17)."""
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "5x", "30m1h", "1e3", "nan", "inf", "m", "5 m"])
def test_times_that_are_none(text: str) -> None:
    """An invalid value is refused, not defaulted (P17)."""
    with pytest.raises(Invalid, match="is not a time"):
        units.parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "0.2s"),
        (59, "59s"),
        (60, "1m"),
        (90.7, "1m30s"),
        (5400, "1h30m"),
        (90061, "1d1h"),
        (-60, "-1m"),
    ],
)
def test_times_as_people_read_them(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("dev:a/b", End("dev", "a/b")),
        ("dev:", End("dev", ".")),
        ("dev:/tmp/x:y", End("dev", "/tmp/x:y")),
        ("./dev:a", End("", "./dev:a")),
        ("/dev:a", End("", "/dev:a")),
        ("a/dev:b", End("", "a/dev:b")),
        ("file", End("", "file")),
        ("-", End("", "-")),
    ],
)
def test_which_side_of_a_copy_is_a_box(text: str, end: End) -> None:
    assert end_of(text) == end
