"""Receipts against their own callers: nothing is dated by them, cut away or hidden without a trace (lesson 37, P8)."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.serving import Client, Server, serving

SECRET = "correct-horse-battery-4471"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def receipts(client: Client, chain: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.good("GET", f"/v1/receipts?box={chain}")["receipts"]
    return found


def hutch(server: Server, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)}
    command = [sys.executable, "-m", "hutch.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environ, input=stdin)


def test_a_note_is_dated_by_the_server(server: Server) -> None:
    """8g: with a long enough duration a note came before everything that had happened, in a day that was over."""
    client = server.tcp(server.key("user", "historian"))
    before = time.time()
    with client.box(memory_mb=64) as box:
        for path in ("/v1/receipts", f"{box}/receipts"):
            client.good("POST", path, {"op": "note.approved", "duration_ms": 9e8})
        client.good("POST", f"{box}/exec", {"command": "true"})
        chain = receipts(client, box.rpartition("/")[2])
        [head] = [each for each in client.good("GET", "/v1/receipts")["chains"] if each["box"] in box]
    [day] = [each["box"] for each in client.good("GET", "/v1/receipts")["chains"] if each["box"].startswith("daybook")]
    assert day.split("-")[1] >= time.strftime("%Y%m%d", time.gmtime(before))
    notes = [*receipts(client, day), *(each for each in chain if each["op"] == "note.approved")]
    assert len(notes) == 2
    for note in notes:
        assert before <= note["at"] <= time.time() and note["duration_ms"] == 9e8, (
            "its duration stays the caller's word"
        )
    assert head["last_at"] <= time.time(), "and dates nothing that follows"
    for wrong in ("-1", "1e10", '"x"'):
        body = f'{{"op": "note.x", "duration_ms": {wrong}}}'.encode()
        assert client.call("POST", "/v1/receipts", body, content_type="application/json").status == 400


def test_the_whole_command_is_proven_also_where_it_is_not_shown(server: Server) -> None:
    """8g: what stood past 2,000 characters, and what was hidden, could be anything. Each has a keyed digest now: the
    holder of the state directory can prove the text, and nobody else can try guesses."""
    client = server.tcp(server.key("user", "prover"))
    long = "true " + "x" * 3000
    hidden = ("true --password guess-me", f"true {SECRET}")
    with client.box(memory_mb=64, secrets={"TOKEN": SECRET}) as box:
        for command in (f"{long}a", f"{long}b", *hidden, "true plain"):
            client.good("POST", f"{box}/exec", {"command": command})
        name = box.rpartition("/")[2]
        ran = [each for each in receipts(client, name) if each["op"] == "exec"]
        first, second, masked, redacted, plain = ran
        assert first["details"] == second["details"], "the control: what is shown is the same"
        assert first["digests"]["command"] != second["digests"]["command"]
        assert "guess-me" not in str(masked) and SECRET not in str(redacted)
        for receipt, text in zip(ran, (f"{long}a", f"{long}b", *hidden, "true plain"), strict=True):
            digest = receipt["digests"]["command"].partition(":")[2]
            assert digest not in {
                hashlib.new(kind, form.encode()).hexdigest()
                for kind in ("sha256", "blake2b", "blake2s")
                for form in (text, f"command\0{text}")
            }, "no digest that anybody could compute"
            for tried, code in ((text, 0), (text + "!", 1)):
                done = hutch(server, "receipts", "show", name, str(receipt["seq"]), "--matches", "-", stdin=tried)
                assert (done.returncode, json.loads(done.stdout)["matches"]) == (code, code == 0), done
        assert client.good("POST", "/v1/receipts/verify", {"box": name})["ok"]
    assert plain["details"]["command"] == "true plain"


def test_details_of_other_operations_are_proven_too(server: Server) -> None:
    """A path that is cut or hidden is no less the caller's word than a command."""
    client = server.tcp(server.key("user", "pather"))
    with client.box(memory_mb=64, secrets={"TOKEN": SECRET}) as box:
        client.good("PUT", f"{box}/files/content?path=x-{SECRET}", b"1")
        client.good("PUT", f"{box}/files/content?path=file", b"1")
        reads = [each for each in receipts(client, box.rpartition("/")[2]) if "path" in each.get("details", {})]
    assert [sorted(each.get("digests", {})) for each in reads] == [["path"], []]
    assert reads[0]["details"]["path"] == "x-***"
