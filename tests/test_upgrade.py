"""Upgrade from release 0.1.0: its state opens, verifies, starts and exports; what cannot be kept is reported
(`tests/fixtures/upgrade`)."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch.keeper.receipts.export import check_export
from tests.server.serving import Client, Server

pytestmark = pytest.mark.slow

ARCHIVES = Path(__file__).with_name("fixtures") / "upgrade"
NDJSON = "application/x-ndjson"
AGES = "100000"
"""Days for which receipts are kept: those of the archive are old, and retention must not remove them."""


class Upgraded(Server):
    """A server of this release on a state directory of release 0.1.0."""

    def __init__(self, *, rootless: bool) -> None:
        super().__init__(HUTCH_RECEIPTS_DAYS=AGES)
        archive = ARCHIVES / f"{'user' if rootless else 'root'}-0.1.0.tar.gz"
        subprocess.run(["tar", "--numeric-owner", "-xpzf", archive, "-C", self.top], check=True)
        (self.top / "state").rename(self.state)
        self.facts: dict[str, Any] = json.loads((self.top / "facts.json").read_text())
        self._move_records()

    def _move_records(self) -> None:
        """Records name the directories that they were written in."""
        database = sqlite3.connect(self.state / "hutch.db")
        for old, new in ((self.facts["state"], self.state), (self.facts["run"], self.run)):
            for table in ("boxes", "notes"):
                database.execute(
                    f"UPDATE {table} SET body = CAST(replace(CAST(body AS TEXT), ?, ?) AS BLOB)", (old, str(new))
                )
        database.commit()
        database.close()

    def caller(self, name: str, **headers: str) -> Client:
        return self.tcp(self.facts[f"{name}_key"], **headers)

    def database(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.state.glob("hutch.db*")))


@pytest.fixture(scope="module")
def server(rootless: bool) -> Iterator[Upgraded]:
    server = Upgraded(rootless=rootless)
    try:
        server.state.chmod(0o755)  # as an operator may have made it; the databases are 0644 in the archive
        assert server.facts["env"].encode() in server.database(), "the control: it was in the open"
        server.start()
        yield server
    finally:
        server.close()


def run(client: Client, box: str, command: str) -> str:
    ended = client.good("POST", f"/v1/boxes/{box}/exec", {"command": command})
    assert ended["exit_code"] == 0, ended
    return str(ended["stdout"])


def test_keys_open_the_server(server: Upgraded) -> None:
    assert server.caller("admin").good("GET", "/v1/keys")
    boxes = server.caller("alice").good("GET", "/v1/boxes")["boxes"]
    assert {box["id"] for box in boxes} == {server.facts["desk"], server.facts["scoped"]}
    assert server.caller("bob").good("GET", "/v1/boxes")["boxes"] == []
    assert server.caller("alice").call("GET", "/v1/keys").status == 403


def test_receipts_verify_and_go_on(server: Upgraded) -> None:
    """The export of the old release is part of the new one, and both verify."""
    everything = server.caller("admin", hutch_admin="yes")
    before = (server.top / "receipts.jsonl").read_bytes().splitlines(keepends=True)
    assert all(check.ok for check in check_export(before))
    checked = everything.good("POST", "/v1/receipts/verify", {})
    assert checked["ok"], checked
    counts = {chain["box"]: chain["count"] for chain in checked["chains"]}
    assert all(counts[box] >= count for box, count in server.facts["chains"].items())
    now = everything.call("GET", "/v1/receipts", accept=NDJSON).body.splitlines(keepends=True)
    assert all(check.ok for check in check_export(now))
    assert {line for line in before if line.startswith(b'{"box"')} <= set(now)
    server.caller("bob").good("POST", "/v1/receipts", {"op": "note.after", "details": {"upgrade": True}})
    assert everything.good("POST", "/v1/receipts/verify", {})["ok"]


def test_persistent_boxes_start_with_their_files_and_environment(server: Upgraded) -> None:
    alice = server.caller("alice", hutch_session="chat")
    desk = server.facts["desk"]
    alice.good("POST", f"/v1/boxes/{desk}/lease", {"takeover": True})
    assert run(alice, desk, "cat notes.txt d/inner; echo $REGION") == f"kept\ninner\n{server.facts['env']}\n"
    run(alice, desk, "echo more >> notes.txt")
    before = alice.good("POST", f"/v1/boxes/{desk}/checkpoints", {})["id"]
    run(alice, desk, "rm -r *")
    alice.good("POST", f"/v1/boxes/{desk}/rollback", {"checkpoint": before})
    assert run(alice, desk, "cat notes.txt d/inner") == "kept\nmore\ninner\n", "an old box can be checkpointed"
    exported = alice.call("GET", f"/v1/boxes/{desk}/export")
    assert exported.status == 200, exported.body
    moved = alice.good("POST", "/v1/boxes/import?name=moved", exported.body)["box"]["id"]
    assert run(alice, moved, "cat notes.txt; echo $REGION") == f"kept\nmore\n{server.facts['env']}\n"
    alice.good("DELETE", f"/v1/boxes/{moved}")
    spec = {"retention": "persistent", "limits": {"memory_mb": 64, "disk_mb": 16}}
    found = alice.good("POST", "/v1/scopes", {"template": "{chat}", "values": {"chat": "c-7"}, "spec": spec})
    assert found["box"]["id"] == server.facts["scoped"], "the conversation finds its box"
    assert run(alice, server.facts["scoped"], "cat here") == "scoped\n"
    local = server.unix()
    local.good("POST", f"/v1/boxes/{server.facts['running']}/lease", {"takeover": True})
    assert run(local, server.facts["running"], "cat alive") == "survived\n", "it ran when the machine went down"


def test_volumes_skills_and_mcp_servers_are_there(server: Upgraded) -> None:
    alice = server.caller("alice")
    with alice.box(memory_mb=64, workspace={"source": "volume:shelf"}) as box:
        assert run(alice, box.rpartition("/")[2], "cat item") == "on-the-shelf\n"
    assert [skill["name"] for skill in alice.good("GET", "/v1/skills")["skills"]] == ["greet"]
    [clock] = alice.good("GET", "/v1/mcp-servers")["servers"]
    assert (clock["name"], clock["env"]) == ("clock", ["CLOCK_TOKEN"])


def test_a_bundle_is_imported_and_exported_again(server: Upgraded) -> None:
    bob = server.caller("bob")
    for _ in range(2):
        bundle = (server.top / "box.hutch").read_bytes()
        made = bob.good("POST", "/v1/boxes/import", bundle, content_type="application/octet-stream")["box"]["id"]
        assert run(bob, made, "cat notes.txt d/inner; echo $REGION") == f"kept\ninner\n{server.facts['env']}\n"
        exported = bob.call("GET", f"/v1/boxes/{made}/export")
        assert exported.status == 200
        (server.top / "box.hutch").write_bytes(exported.body)
        bob.good("DELETE", f"/v1/boxes/{made}")


def test_what_was_open_is_closed_and_said(server: Upgraded) -> None:
    """The directory and its databases become private and environments sealed, which older releases cannot read."""
    assert server.facts["env"].encode() not in server.database()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (server.state, *server.state.glob("*.db"))}
    assert modes == {"s": 0o700, "hutch.db": 0o600, "receipts.db": 0o600}
    assert (server.state / "state.key").stat().st_mode & 0o777 == 0o600
    text = server.log.read_text()
    assert "others could look into a directory" in text
    assert "environments that an earlier release kept in plain text are sealed now" in text
    assert "no root and no private ranges beyond their profile, and no image pulled" in text, "keys had no bounds then"
    assert os.path.exists(server.state / "first-key")
