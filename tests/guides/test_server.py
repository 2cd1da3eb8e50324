"""The walkthrough of docs/guides/server.md, typed into a shell as it stands, answers what the guide shows."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import TIMEOUT_SECONDS, Server

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "server.md").read_text()


class HomeServer(Server):
    """A server whose directories are where an ordinary user's are."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**settings)
        self.state, self.run = self.top / ".local" / "state" / "hutch", self.top / "run" / "hutch"


@pytest.fixture
def server() -> Iterator[HomeServer]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed (tools/setup.sh)")
    started = HomeServer()
    try:
        started.start()
        yield started
    finally:
        started.close()


def walkthrough() -> list[tuple[str, str]]:
    """Each command of the first block with `curl`, and the answer that is shown below it; "" if none is."""
    (block,) = [text for text in GUIDE.split("```console\n")[1:] if text.startswith("$ key=")]
    steps = block.split("```")[0].removeprefix("$ ").split("\n$ ")
    return [(command, answer.strip()) for command, _, answer in (step.partition("\n") for step in steps)]


def shows(shown: Any, reply: Any) -> bool:
    """Return whether the real answer contains what the guide shows. A text with … matches anything."""
    if isinstance(shown, dict):
        return isinstance(reply, dict) and all(shows(value, reply.get(name)) for name, value in shown.items())
    return (isinstance(shown, str) and "…" in shown and isinstance(reply, str)) or bool(shown == reply)


def test_the_walkthrough_answers_what_it_shows(server: HomeServer) -> None:
    """Somebody with nothing but curl makes a box, uses it and ends it, without naming a session."""
    home = {**os.environ, "HOME": str(server.top), "XDG_RUNTIME_DIR": str(server.top / "run")}
    setup = ""
    box = "q8v…"
    address = server.announcement["url"].removeprefix("http://")
    asked = 0
    for command, answer in walkthrough():
        typed = command.replace("127.0.0.1:7300", address).replace("q8v…", box)
        if not command.startswith("curl"):
            setup += typed + "\n"
            continue
        done = subprocess.run(
            ["bash", "-ec", setup + typed], env=home, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        assert done.returncode == 0, done.stderr
        asked += 1
        if not answer:
            assert not done.stdout, done.stdout
            continue
        reply = json.loads(done.stdout)
        assert shows(json.loads(answer.replace(",…", "")), reply), (command, reply)
        box = reply.get("id", box)
    assert asked == 4


def test_a_box_that_is_held_through_another_door_is_refused_with_a_remedy(server: HomeServer) -> None:
    """The Unix socket and a key are two sessions; the refusal names the header that makes them one (P6, P4)."""
    keyed, plain = server.tcp(key=(server.state / "first-key").read_text().strip()), server.unix()
    path = "/v1/boxes/" + plain.good("POST", "/v1/boxes", {})["id"]
    refused = keyed.call("POST", f"{path}/exec", {"command": "true"})
    assert refused.status == 409 and "Hutch-Session" in refused.json()["remedy"]
    plain.good("DELETE", f"{path}/lease")
    both = {"Hutch_Session": "mine"}
    plain.good("POST", f"{path}/exec", {"command": "true"}, **both)
    assert keyed.good("POST", f"{path}/exec", {"command": "echo 42"}, **both)["stdout"] == "42\n"
