"""`hutch events`: what happened to boxes, as it was and as it comes."""

import json
import signal

import pytest

from tests.cli.cli_process import TIMEOUT, read_until, started
from tests.cli.conftest import Home

pytestmark = pytest.mark.slow


def test_events_as_they_were_and_as_they_come(home: Home) -> None:
    """A box's events come in order, from a number on, and followed while other processes act (P10)."""
    box = home.good("box", "create", "--name", "told").strip()
    answer = home.json("events", "--box", "told")
    assert [(event["kind"], event["new"]) for event in answer["events"]] == [
        ("created", "creating"),
        ("state", "running"),
    ]
    after = str(answer["last"])
    home.good("box", "exec", "told", "true")
    assert home.json("events", "--after", after)["events"] == [], "a box that goes from hand to hand is no news"
    with started("events", "--follow", "--json", "--after", after, env=home.env) as process:
        assert process.stdout
        home.good("box", "destroy", "told")
        seen = read_until(process.stdout.fileno(), b'"gone"').splitlines()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
    assert [json.loads(line)["box_id"] for line in seen if line.endswith(b"}")] == [box] * len(seen)
    lines = home.good("events", "--after", after, "--box", box).splitlines()
    assert "running → stopping: destroyed by a call" in lines[0]
    assert lines[-1].endswith("gone: destroyed by a call")
