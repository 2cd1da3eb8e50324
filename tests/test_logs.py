"""Structured logs: one line for each event, with the operation's id, without secrets (lesson 37)."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch import logs
from hutch.errors import Refused


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged, as text; the settings of the process are put back."""
    written: list[str] = []
    logs.configure(level="debug", write=written.append)
    yield written
    logs.configure()


def test_a_line_says_when_how_bad_who_what_and_with_which_fields(lines: list[str]) -> None:
    logs.log("keeper").warning("box not ended", box="abc", tries=3, grace=0.5, forced=True, reason=None)
    [line] = lines
    when, _, rest = line.partition(" ")
    assert when.endswith("Z") and when[10] == "T"
    assert rest == "WARNING keeper: box not ended box=abc tries=3 grace=0.5 forced=true reason=none\n"


def test_json_lines_hold_the_same(lines: list[str]) -> None:
    logs.configure(level="info", format="json", write=lines.append)
    with logs.operation("op1"):
        logs.log("keeper").info("made", box="abc", mounts=["/a", "/b"], time="not ours")
    line = json.loads(lines[0])
    assert line.pop("time")[10] == "T", "a field cannot replace what a reader filters by"
    assert line == {
        "level": "info", "log": "keeper", "event": "made", "box": "abc", "mounts": ["/a", "/b"], "op": "op1",
        "field_time": "not ours",
    }  # fmt: skip


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1), ("off", 0)])
def test_the_level_decides_what_is_written(lines: list[str], level: str, count: int) -> None:
    logs.configure(level=level, write=lines.append)
    log = logs.log("x")
    for write in (log.debug, log.info, log.warning, log.error):
        write("event")
    assert len(lines) == count


def test_unknown_level_and_format_are_errors() -> None:
    with pytest.raises(ValueError, match="log level 'loud'"):
        logs.configure(level="loud")
    with pytest.raises(ValueError, match="log format 'xml'"):
        logs.configure(format="xml")


@pytest.mark.parametrize(
    "text", ["two\nlines", "\r", "\x1b[31mred", 'say "hi"', "a b", "", "a=b", "\\", "\u202eback", "\u2028", "\udc80"]
)
@pytest.mark.parametrize("format", logs.FORMATS)
def test_nothing_that_a_box_wrote_can_forge_a_line(lines: list[str], format: str, text: str) -> None:
    logs.configure(level="info", format=format, write=lines.append)
    logs.log("x").info(f"event {text}", output=text, after="z")
    [line] = lines
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert line.encode()
    if format == "text":
        assert line.endswith(" after=z\n")


def test_fields_whose_name_suggests_a_secret_are_hidden(lines: list[str]) -> None:
    names = ("secret", "api_key", "apikey", "key", "ssh_key", "token", "access_token", "password", "PASSWD", "Cookie",
             "authorization", "credentials", "passphrase")  # fmt: skip
    logs.log("x").info("event", **dict.fromkeys(names, "hunter2"), nested={"deep": [{"token": "hunter2"}]})
    assert "hunter2" not in lines[0]
    assert lines[0].count(logs.HIDDEN) == len(names) + 1


def test_names_that_only_look_similar_are_shown(lines: list[str]) -> None:
    logs.log("x").info("event", keeper="k1", keyboard="us", monkey="m", passed=True)
    assert "keeper=k1 keyboard=us monkey=m passed=true" in lines[0]


def test_concealed_texts_are_hidden_wherever_they_stand(lines: list[str]) -> None:
    pem = "-----BEGIN-----\nMIIEvQIBADAN\n-----END-----"
    given = ["hunter2000", "hunter2000-longer", pem, "42"]
    logs.conceal(given)
    try:
        logs.log("x").info("saw hunter2000", where={"hunter2000": b"x hunter2000"}, url="http://u:hunter2000@h/")
        logs.log("x").error("failed", error=Refused("no hunter2000-longer"), line="…MIIEvQIBADAN…", short="42", n="142")
        assert "hunter2000" not in "".join(lines)
        assert "longer" not in lines[1]
        assert "MIIE" not in lines[1]
        assert "short=*** n=142" in lines[1]
        assert logs.redact("x hunter2000 y") == "x *** y"
    finally:
        logs.reveal(given)
    assert logs.redact("x hunter2000 y") == "x hunter2000 y"


def test_a_secret_that_two_boxes_hold_stays_hidden_until_both_are_gone() -> None:
    logs.conceal(["hunter2000"])
    logs.conceal(["hunter2000"])
    logs.reveal(["hunter2000"])
    assert logs.redact("hunter2000") == logs.HIDDEN
    logs.reveal(["hunter2000"])
    assert logs.redact("hunter2000") == "hunter2000"


def test_an_error_is_shown_with_its_kind(lines: list[str]) -> None:
    logs.log("x").error("failed", error=Refused("not that", remedy="this"), empty=ValueError())
    assert 'error="Refused: not that (this)" empty=ValueError' in lines[0]


def test_lines_of_one_operation_carry_its_id(lines: list[str]) -> None:
    assert logs.current_operation() == ""
    with logs.operation() as outer:
        logs.log("x").info("one")
        with logs.operation() as inner:
            assert inner == outer, "a step of an operation is part of it"
        with logs.operation("given"):
            logs.log("x").info("two")
    logs.log("x").info("three")
    assert lines[0].endswith(f" op={outer}\n")
    assert lines[1].endswith(" op=given\n")
    assert lines[2].endswith("three\n")


async def test_concurrent_operations_do_not_mix(lines: list[str]) -> None:
    async def work(name: str) -> None:
        with logs.operation(name):
            await asyncio.sleep(0)
            logs.log("x").info(name)

    await asyncio.gather(*(work(f"op{number}") for number in range(5)))
    assert all(f"{line.split()[3]}" == line.split("op=")[1].strip() for line in lines)


def test_it_writes_to_stderr_and_survives_a_closed_one() -> None:
    program = """
import os, sys
from hutch import logs
assert "logging" not in sys.modules and "json" not in sys.modules
logs.log("x").error("first")
os.close(2)
logs.log("x").error("second")
sys.stderr = None
logs.log("x").error("third")
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "alive\n"
    assert done.stderr.endswith("ERROR x: first\n")


EMBEDDING = """
import logging, sys
from hutch import Hutch, logs
logging.basicConfig(level=logging.INFO, format="app %(name)s %(levelname)s %(message)s", stream=sys.stdout)
logging.getLogger("hutch").setLevel(logging.INFO)
Hutch(store="memory", state_dir=sys.argv[1], run_dir=sys.argv[1], log_level="error")
logs.conceal(["hunter2000"])
logs.log("keeper").info("saw hunter2000", box="abc", token="x")
logs.log("keeper").debug("below the level that the application has set")
logging.getLogger("hutch.keeper").handlers = [logging.NullHandler()]
logs.log("keeper").info("second")
"""


def test_an_application_configures_our_loggers_as_any_other(tmp_path: Path) -> None:
    """Its handlers get each record once, under `hutch.*`, with secrets hidden; the level that it has set stays."""
    done = subprocess.run(
        [sys.executable, "-c", EMBEDDING, str(tmp_path / "s")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "app hutch.keeper INFO saw *** box=abc token=***",
        "app hutch.keeper INFO second",
    ]
    assert done.stderr == "", "our own lines are for processes that have no handler"
