"""One log: no module of ours writes past it, and no secret leaves a process of ours through anybody's words
(lesson 37, B30)."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import Server, serving

import hutch
from hutch import logs

SECRET = "correct-horse-battery-4471"
SOURCE = Path(hutch.__file__).parent
SPEAKS = {
    "cli",  # the command line's answers; its errors are redacted in cli/output.py
    "providers/native/network/helper_process.py",  # a process that is given no secret
    "providers/guest_bundle/boot.py",  # as the next one
    "providers/guest_bundle/relay.py",  # runs in a container, whose engine carries its words to us
    "images/programs/sudo.py",  # runs in a box
    "logs",
}
"""Where something may be written to a standard stream without the log."""


def written_past_the_log(path: Path) -> list[str]:
    """Each place of a module where it logs, prints or shows a traceback by itself."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [f"{node.lineno}: import {name.name}" for name in node.names if name.name == "logging"]
        elif isinstance(node, ast.ImportFrom) and node.module == "logging":
            found.append(f"{node.lineno}: from logging")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "sys.stderr.write", "sys.stdout.write", "warnings.warn") or (
                called.startswith("traceback.print")
            ):
                found.append(f"{node.lineno}: {called}")
    return found


def test_every_module_logs_through_the_redacting_log() -> None:
    """Class: a second logging system knows nothing of the secrets that the first one hides."""
    past = {
        str(path.relative_to(SOURCE)): places
        for path in sorted(SOURCE.rglob("*.py"))
        if (places := written_past_the_log(path))
    }
    allowed = {name for name in past if name in SPEAKS or name.split("/")[0] in SPEAKS}
    assert {name: places for name, places in past.items() if name not in allowed} == {}
    assert {name for name in SPEAKS if not (SOURCE / name).exists()} == set()


def test_the_lint_notices(tmp_path: Path) -> None:
    """Its control."""
    (tmp_path / "a.py").write_text(
        "import logging\nfrom logging import getLogger\nimport traceback, sys\nprint(1)\ntraceback.print_exc()\n"
        "sys.stderr.write('x')\n"
    )
    assert len(written_past_the_log(tmp_path / "a.py")) == 5


@pytest.fixture(scope="module")
def server() -> Any:
    with serving(HUTCH_LOG_FORMAT="json") as started:
        yield started


def test_a_file_named_by_a_secret_does_not_bring_it_into_the_log(server: Server) -> None:
    """A box names a pipe after its secret; an export copies its tree, leaves the pipe out and says so in the log."""
    client = server.unix()
    with client.box(memory_mb=64, secrets={"TOKEN": SECRET}) as box:
        client.good("POST", f"{box}/exec", {"command": 'mkfifo "$TOKEN" control-pipe; mkdir d; mkfifo "d/x$TOKEN"'})
        assert client.call("GET", f"{box}/export").status == 200
    text = server.log.read_text()
    assert "special files were left out" in text and "control-pipe" in text, "the control: it is told"
    assert SECRET not in text


def test_no_event_contains_a_secret(server: Server) -> None:
    """What is kept of a change says why, often in an error's words."""
    client = server.unix()
    with client.box(memory_mb=64, secrets={"TOKEN": SECRET}) as box:
        client.good("PATCH", box, {"name": f"x-{SECRET}"})
    answer = client.call("GET", "/v1/events?limit=1000").body
    assert b"named x-***" in answer and SECRET.encode() not in answer


TALKATIVE = """
import asyncio, gc, logging, sys, threading, warnings
from hutch import logs

SECRET = {secret!r}
logs.configure(level="debug", format="json")
logs.conceal([SECRET])
logs.take_over()

class Lost:
    def __del__(self):
        raise ValueError("unraisable " + SECRET)

async def fail():
    raise ValueError("never retrieved " + SECRET)

async def main():
    task = asyncio.create_task(fail())
    await asyncio.sleep(0.01)
    del task
    gc.collect()

def raising():
    raise ValueError("thread " + SECRET)

try:
    raise KeyError(SECRET)
except KeyError:
    logging.getLogger("some.library").exception("library %s", SECRET, extra={{"more": SECRET}})
logging.getLogger("some.library").warning("unfit %d", SECRET)
logging.getLogger("some.library").info("below the level")
warnings.warn("warned " + SECRET)
Lost()
asyncio.run(main())
thread = threading.Thread(target=raising)
thread.start()
thread.join()
raise RuntimeError("uncaught " + SECRET)
"""


@pytest.mark.parametrize("secret", [SECRET, 'quote\'s and "both"\\ ä', "two-lines-77aa\nof-a-pem-99bb"])
def test_what_others_log_in_our_process_is_redacted_too(secret: str) -> None:
    """Loggers of libraries, tracebacks, warnings, errors of tasks, threads and finalizers: each is a line of ours."""
    done = subprocess.run([sys.executable, "-c", TALKATIVE.format(secret=secret)], capture_output=True, text=True)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    answer = " ".join(f"{line['event']} {line.get('error', '')}" for line in lines)
    for each in ("library", "unfit", "warned", "unraisable", "exception was never retrieved", "thread", "uncaught"):
        assert each in answer, each
    assert "below the level" not in answer
    shown = json.dumps(lines, ensure_ascii=False) + done.stderr
    for part in secret.splitlines():
        assert part not in shown and repr(part)[1:-1] not in shown and json.dumps(part)[1:-1] not in shown
    assert logs.HIDDEN in shown


def test_the_command_line_hides_secrets_in_its_errors(tmp_path: Path) -> None:
    """A program named by a secret cannot be run; the error names the program, when its box is gone."""
    environ = {"PATH": "/usr/bin:/bin", "HUTCH_STATE_DIR": f"{tmp_path}/s", "HUTCH_RUN_DIR": f"{tmp_path}/r"}
    for options in ((), ("--json",)):
        done = subprocess.run(
            [sys.executable, "-m", "hutch.cli.main", "run", *options, "--secret", "TOKEN", "--", f"/no/{SECRET}"],
            capture_output=True, text=True, env={**environ, "TOKEN": SECRET},
        )  # fmt: skip
        assert done.returncode == 127 and "/no/***" in done.stdout + done.stderr, done
        assert SECRET not in done.stdout + done.stderr
