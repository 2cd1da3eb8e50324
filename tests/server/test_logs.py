"""The server's log: each line a JSON object, those of one request under one id, no secret anywhere; and what it says
at its start."""

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.server.serving import Server, serving, until
from tests.server.test_websockets import attached

SECRET = "correct-horse-battery"


def lines(server: Server) -> list[dict[str, Any]]:
    """Whole ones."""
    whole = server.log.read_text().rpartition("\n")[0].splitlines()
    return [json.loads(line) for line in whole if not line.startswith("hutch: ")]


def test_every_line_of_a_request_carries_its_id_and_no_line_a_secret() -> None:
    """DESIGN 13, B30: structured logs with an operation id, secrets redacted."""
    with serving(HUTCH_LOG_FORMAT="json") as server:
        client = server.unix()
        key = server.key("user", "logged")
        with client.box(memory_mb=64, secrets={"KEY": SECRET}) as box:
            seen = []
            for body in ({"command": f"echo {SECRET}"}, {"command": ["/no/such", SECRET]}, {"command": ""}):
                seen.append(client.call("POST", f"{box}/exec", body))
            seen.append(client.call("GET", f"{box}/files/content?path={SECRET}"))
            seen.append(server.tcp(key + "x").call("GET", "/v1/boxes"))
            seen.append(server.unix(hutch_admin="yes").call("GET", f"{box}/usage"))
            with attached(client, f"{box}/terminal?command=exit%206") as socket:
                assert [frame for frame in socket if isinstance(frame, str)]
            until(lambda: any(line.get("status") == 101 for line in lines(server)))
            with pytest.raises(InvalidStatus):
                with attached(client, f"{box}/jobs/none/ws"):
                    pass
        reply = lines(server)
        sockets = [line for line in reply if str(line.get("operation", "")).startswith("WS ")]
        assert [(line["event"], line["status"]) for line in sockets] == [
            ("served", 101), ("refused", 404), ("served", 404)
        ]  # fmt: skip
        assert len({line["op"] for line in sockets}) == 2
        for answer in seen:
            own = [line for line in reply if line.get("op") == answer.headers["hutch-request"]]
            assert own, answer
            served = own[-1]
            assert (served["event"], served["status"]) == ("served", answer.status)
            if answer.status >= 400:
                assert any(line["event"] == "refused" and line["code"] for line in own)
        requests = [line for line in reply if line["log"] == "server" and line["event"] in ("served", "refused")]
        assert all(line["op"] for line in requests)
        text = server.log.read_text()
        assert SECRET not in text and key not in text and key.split("_", 2)[2] not in text


def test_what_runs_by_itself_is_no_part_of_the_request_that_started_it() -> None:
    """Clocks begin with the first box; their lines must not carry its request's id, nor its receipts its caller."""
    with serving(HUTCH_LOG_FORMAT="json") as server:
        client = server.unix(hutch_session="maker")
        made = client.call("POST", "/v1/boxes", {"memory_mb": 64, "ttl_sec": 1})
        box = made.json()["id"]
        while client.call("GET", f"/v1/boxes/{box}").status != 410:
            pass
        receipts = client.good("GET", f"/v1/receipts?box={box}")["receipts"]
        gone = receipts[-1]
        assert gone["op"] == "box.gone" and gone["who"] == {"role": "keeper"}
        assert receipts[0]["who"]["request"] == made.headers["hutch-request"]


def test_the_first_lines_say_what_works_and_why_not() -> None:
    """What is available, and the reason and the remedy for what is not (B30)."""
    with serving() as server:
        text = server.log.read_text()
        assert "hutch: boxes by native (namespaces)" in text
        assert "hutch: listening on " in text and "http://127.0.0.1:" in text
        assert "first admin key" in text
        server.end()
    with serving(HUTCH_PROVIDER="no-such-engine", HUTCH_RECEIPTS="off", OTEL_TRACES_EXPORTER="pigeon") as server:
        text = server.log.read_text()
        assert "hutch: no boxes: no-such-engine cannot be used" in text and "fix:" in text
        assert "hutch: no receipts are kept" in text
        assert "hutch: no spans are sent: there is no exporter 'pigeon'" in text
    with serving(HUTCH_ENABLED="false") as server:
        assert "boxes are switched off" in server.log.read_text()


def test_only_boxes_of_an_earlier_server_are_taken_over(tmp_path: Path) -> None:
    """A fresh state directory has nothing to take over, though the pool has made boxes by then (B30)."""
    config = tmp_path / "hutch.toml"
    config.write_text("[pool]\ndefault = 1\n")
    with serving(HUTCH_CONFIG=str(config)) as server:
        server.unix(hutch_session="s").good("POST", "/v1/boxes", {})
        server.end()
        assert "taken over" not in server.log.read_text()
        before = len(server.log.read_text())
        server.start()
        assert "taken over" in server.log.read_text()[before:]
