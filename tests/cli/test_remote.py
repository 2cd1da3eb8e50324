"""`hutch box …`, `volume …`, `events` at a server: the very tests of the commands that need none, run once more at the
server that owns the state directory and at one that is named."""

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.cli_process import TIMEOUT, hutch, read_until, started
from tests.cli.conftest import Home
from tests.cli.test_box import (
    test_a_box_made_by_one_process_is_used_by_others,
    test_a_job_outlives_the_process_that_started_it,
    test_a_persistent_box_stops_and_comes_back,
    test_a_program_that_is_not_there,
    test_a_terminal_job_is_joined_and_left,
    test_files_go_in_out_and_across,
    test_the_lease_between_sessions,
)
from tests.cli.test_left_boxes import KEEP, at_work, test_every_command_says_that_a_box_was_destroyed
from tests.server.serving import Server, serving

pytestmark = pytest.mark.slow

__all__ = [
    "test_a_box_made_by_one_process_is_used_by_others",
    "test_a_job_outlives_the_process_that_started_it",
    "test_a_persistent_box_stops_and_comes_back",
    "test_a_program_that_is_not_there",
    "test_a_terminal_job_is_joined_and_left",
    "test_every_command_says_that_a_box_was_destroyed",
    "test_files_go_in_out_and_across",
    "test_the_lease_between_sessions",
]


@dataclass(frozen=True)
class ServedHome(Home):
    """A place whose commands go to a server."""

    more: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return super().env | self.more


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def home(server: Server, hutch_directories: Path) -> Iterator[Home]:
    """Commands that get the address of a server from the environment, with a key."""
    more = {"HUTCH_SERVER": server.announcement["url"], "HUTCH_KEY": server.key("user", "cli")}
    place = ServedHome(hutch_directories / "ns", hutch_directories / "nr", more)
    yield place
    left = place.hutch("box", "destroy", "--all", "--force")
    assert left.returncode == 0, left
    assert place.json("box", "list")["boxes"] == []
    assert not (place.state / "hutch.db").exists(), "nothing was kept here"


@pytest.fixture(params=["named", "owner"])
def either(request: pytest.FixtureRequest, server: Server, home: Home) -> Home:
    """The same, or commands on the state directory that the server owns, which get no address."""
    return home if request.param == "named" else ServedHome(server.state, server.run)


def test_a_detached_job_keeps_its_box_at_a_server(home: Home) -> None:
    """Nobody holds either box any more; the idle one ends and the one at work does not, until its job has ended.
    Afterwards every command reports what happened (B8, P4)."""
    working, job = at_work(home)
    home.good("box", "release", "working")
    idle = home.json("box", "create", "--name", "idle", "--keep", f"{KEEP:g}")["id"]
    assert f"box {idle} (idle) has been destroyed: idle for 2 s" in ended(home, "idle")
    time.sleep(2 * KEEP)
    assert home.good("box", "logs", "working", job) == "begun\n"
    home.good("box", "exec", "working", "--", "rm", "go-on")
    home.good("box", "release", "working")
    assert f"box {working} (working) has been destroyed: idle for 2 s" in ended(home, "working")
    assert home.answer("box", "logs", working[:8], job)[1]["error"]["code"] == "gone"


def ended(home: Home, name: str) -> str:
    """Return what is reported of a box when it has ended by itself. Listing does not keep it."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        code, answer = home.answer("box", "show", name)
        if code:
            return str(answer["error"]["message"])
        time.sleep(0.2)
    raise AssertionError(f"box {name} did not end")


def test_boxes_are_the_servers(either: Home, server: Server) -> None:
    """They are made there, with its clocks: --keep is how long they may be idle."""
    box = either.json("box", "create", "--name", "served", "--keep", "2h", "--label", "task=42")
    admin = server.unix(hutch_admin="yes")
    assert admin.good("GET", f"/v1/boxes/{box['id']}")["spec"]["idle_timeout_sec"] == 7200
    assert box["labels"]["task"] == "42"
    for text in (box["id"], box["id"][:6], "served"):
        assert either.json("box", "show", text)["id"] == box["id"]
    either.good("box", "rename", "served", "named-again")
    assert {"named-again", box["id"]} <= set(either.good("box", "list", "--names").split())
    assert either.json("box", "pause", "named-again")["state"] == "paused"
    assert either.json("box", "resume", "named-again")["state"] == "running"


def test_a_box_moves_through_a_file(either: Home, server: Server, tmp_path: Path) -> None:
    """Out of a server and back, with another name and --keep; what is wrong with the caller's own file is reported as
    that, and nothing of the server's own paths (S10)."""
    file = tmp_path / "mover.hutch"
    either.good("box", "create", "--name", "mover", "--label", "a=b")
    either.good("box", "exec", "mover", "--", "sh", "-c", "echo content >file")
    answer = either.json("box", "export", "mover", str(file))
    assert (answer["parts"], answer["size"]) == (["workspace", "home"], file.stat().st_size)
    assert file.stat().st_mode & 0o077 == 0, "what is in a box is its owner's"
    moved = either.good("box", "import", str(file), "--name", "moved", "--keep", "2h").strip()
    assert either.good("box", "exec", "moved", "--", "cat", "file") == "content\n"
    shown = server.unix(hutch_admin="yes").good("GET", f"/v1/boxes/{moved}")["spec"]
    assert (shown["labels"]["a"], shown["idle_timeout_sec"]) == ("b", 7200)
    code, refused = either.answer("box", "import", str(file), "--name", "moved")
    assert (code, refused["error"]["code"]) == (125, "conflict")
    (tmp_path / "text").write_text("no box")
    for words, wrong in (
        (("export", "mover", str(tmp_path / "none" / "file")), "file_failed"),
        (("export", "mover", str(tmp_path)), "file_failed"),
        (("import", str(tmp_path)), "file_failed"),
        (("import", str(tmp_path / "none")), "file_not_found"),
        (("import", str(tmp_path / "text")), "invalid"),
    ):
        code, refused = either.answer("box", *words)
        assert (code, refused["error"]["code"]) == (125, wrong), refused
        assert "hutch-moving" not in refused["error"]["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mover.hutch", "text"], "no drafts"
    either.good("box", "destroy", "mover")
    either.good("box", "destroy", "moved")


def test_an_exported_box_is_its_owners(home: Home, server: Server, tmp_path: Path) -> None:
    """Another owner's box is not there, an observer may neither take nor bring one (P8)."""
    home.good("box", "create", "--name", "private")
    home.good("box", "export", "private", str(tmp_path / "box"))
    box = home.json("box", "show", "private")["id"]
    for role, owner, words, wrong in (
        ("user", "other", ("export", box, str(tmp_path / "theirs")), "not_found"),
        ("observer", "cli", ("export", box, str(tmp_path / "theirs")), "refused"),
        ("observer", "cli", ("import", str(tmp_path / "box")), "refused"),
    ):
        env = home.env | {"HUTCH_KEY": server.key(role, owner)}
        done = hutch("box", *words, "--json", env=env)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (125, wrong), done
    assert [path.name for path in tmp_path.iterdir()] == ["box"]
    home.good("box", "destroy", "private")


def test_volumes_and_events(either: Home) -> None:
    """A volume is shared by boxes and outlives them; what happened is listed in order, and followed as it comes."""
    either.good("volume", "create", "shared")
    assert either.answer("volume", "create", "shared")[1]["error"]["code"] == "conflict"
    box = either.good("box", "create", "--workspace", "volume:shared").strip()
    either.good("box", "exec", box, "--", "sh", "-c", "echo for all > file")
    (volume,) = either.json("volume", "list")["volumes"]
    assert (volume["name"], volume["boxes"]) == ("shared", [box])
    last = either.json("events", "--box", box)["last"]
    with started("events", "--follow", "--json", "--after", str(last), env=either.env) as process:
        assert process.stdout
        either.good("box", "destroy", box)
        read_until(process.stdout.fileno(), b'"gone"')
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
    kinds = [event["kind"] for event in either.json("events", "--box", box)["events"]]
    assert (kinds[0], kinds[-1]) == ("created", "gone")
    shown = either.json("volume", "show", "shared")
    local = "HUTCH_SERVER" not in either.env
    assert (shown["bytes"], bool(shown["path"])) == ((len("for all\n"), True) if local else (None, False))
    either.good("volume", "remove", "shared")
    assert either.json("volume", "list")["volumes"] == []


def test_the_status(either: Home, server: Server, tmp_path: Path) -> None:
    """Ready, unreachable and disabled are distinguished, by exit code, text and JSON (B25)."""
    answer = either.json("status")
    assert (answer["state"], answer["available"], answer["provider"]) == ("ready", True, "native")
    assert answer["server"].startswith(("unix:", "http://"))
    assert "state:    ready" in either.good("status")
    nobody = {"HUTCH_SERVER": f"unix:{tmp_path}/none"}
    done = hutch("status", "--json", env=nobody)
    assert (done.returncode, json.loads(done.stdout)["state"]) == (1, "unreachable")
    done = hutch("status", env={"HUTCH_ENABLED": "false"})
    assert (done.returncode, b"disabled" in done.stdout) == (1, True)
    done = hutch("status", "--json")
    assert (done.returncode, json.loads(done.stdout)["server"]) == (0, None)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """A command that cannot reach its server says so, and does not fall back to this machine."""
    for words in (("box", "list"), ("box", "create"), ("volume", "list"), ("events",)):
        done = hutch(*words, "--json", "--server", f"unix:{tmp_path}/none")
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["code"]) == (125, "unavailable"), words
    done = hutch("--server", "nonsense", "box", "list")
    assert (done.returncode, b"is no address" in done.stderr) == (125, True)


def test_a_key_is_needed_over_tcp(server: Server) -> None:
    done = hutch("box", "list", "--json", "--server", server.announcement["url"])
    assert json.loads(done.stdout)["error"]["code"] == "unauthenticated"
