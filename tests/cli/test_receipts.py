"""`hutch receipts`: list, show, verify and export, beside the processes that write them."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.cli_process import hutch
from tests.cli.conftest import Home

pytestmark = pytest.mark.slow


def test_receipts_list_what_was_done_to_a_box(home: Home) -> None:
    """What commands did, in which session, also when the box is gone."""
    box = home.good("box", "create", "--name", "told").strip()
    home.hutch("box", "exec", "told", "--", "sh", "-c", "exit 3")
    listed = home.json("receipts", "list", "told")["receipts"]
    ops = [receipt["op"] for receipt in listed]
    assert ops[:4] == ["box.created", "box.running", "box.left", "box.handed_over"] and ops[-1] == "box.left"
    assert "gap" not in ops, "commands hand the box over to each other"
    [ran] = [receipt for receipt in listed if receipt.get("cause")]
    assert (ran["details"]["command"], ran["cause"], ran["exit_code"]) == ("sh -c 'exit 3'", "exit", 3)
    assert ran["who"]["session"].startswith("cli-")
    brief = home.good("receipts", "list", "told").splitlines()
    assert [line.split()[4] for line in brief[1:]] == ["box.created", "exec"], brief
    table = home.good("receipts", "list", "--all", "told").splitlines()
    assert table[0].split()[:4] == ["NO", "TIME", "WHO", "OPERATION"] and len(table) == len(listed) + 1
    assert home.json("receipts", "show", "told", "1")["op"] == "box.created"
    assert home.hutch("receipts", "show", "told", "99").returncode == 125
    home.good("box", "destroy", "told")
    assert home.json("receipts", "list", box[:8])["receipts"][-1]["op"] == "box.gone"
    assert box in home.good("receipts", "list")
    assert home.hutch("receipts", "list", "nothing").returncode == 125


def test_verify_and_export(home: Home, tmp_path: Path) -> None:
    """Exit code 1 names the first broken receipt; an export verifies where there is no ledger."""
    box = home.good("box", "create", "--name", "proven").strip()
    home.good("box", "exec", "proven", "true")
    home.good("box", "destroy", "proven")
    assert "all in order" in home.good("receipts", "verify", box)
    assert home.json("receipts", "verify", "--all")["ok"]
    export = tmp_path / "receipts.jsonl"
    export.write_bytes(home.hutch("receipts", "export", box).stdout)
    elsewhere = {"HUTCH_STATE_DIR": str(tmp_path / "s"), "HUTCH_RUN_DIR": str(home.run)}
    assert hutch("receipts", "verify", "--file", str(export), env=elsewhere).returncode == 0
    assert hutch("receipts", "verify", "--file", "-", stdin=export.read_bytes(), env=elsewhere).returncode == 0
    assert hutch("receipts", "verify", "--file", str(tmp_path / "none"), env=elsewhere).returncode == 125
    lines = export.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[1])["op"] == "box.running"
    export.write_bytes(b"".join([lines[0], lines[1].replace(b"created", b"crested"), *lines[2:]]))
    broken = hutch("receipts", "verify", "--file", str(export), env=elsewhere)
    assert broken.returncode == 1 and f"{box}: BROKEN at receipt 2".encode() in broken.stdout

    with sqlite3.connect(home.state / "receipts.db") as db:
        [[body]] = db.execute("SELECT body FROM receipts WHERE box = ? AND seq = 2", (box,)).fetchall()
        db.execute("UPDATE receipts SET body = ? WHERE box = ? AND seq = 2", (body.replace(b"box.", b"bix."), box))
    broken = home.hutch("receipts", "verify")
    assert broken.returncode == 1 and f"{box}: BROKEN at receipt 2".encode() in broken.stdout
    code, answer = home.answer("receipts", "verify", box)
    assert (code, answer["ok"], answer["chains"][0]["broken"]) == (1, False, 2)
