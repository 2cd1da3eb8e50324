"""Receipts over HTTP: who did what to which box, shown to its owner only, and still in order after a restart."""

import json
import signal

from hutch.keeper.receipts.export import check_export
from tests.server.serving import Client, Server, serving
from tests.server.test_websockets import attached


def listed(client: Client, box: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = client.good("GET", f"/v1/receipts?box={box.rpartition('/')[2]}")["receipts"]
    return found


def test_a_receipt_names_key_role_session_and_request(server: Server) -> None:
    """Receipts name the caller."""
    key = server.key("user", "receipts-who")
    user = server.tcp(key, hutch_session="agent-7")
    with user.box(memory_mb=64) as box:
        answer = user.call("POST", f"{box}/exec", {"command": "exit 4", "env": {"A": "hidden-value"}})
        assert answer.status == 200
        made, *_, last = listed(user, box)
        key_id = key.split("_")[1]
        assert made["op"] == "box.created"
        assert last["op"] == "exec" and (last["cause"], last["exit_code"]) == ("exit", 4)
        assert last["who"] == {
            "session": "agent-7", "role": "user", "key": key_id, "request": answer.headers["hutch-request"]
        }  # fmt: skip
        assert made["who"]["key"] == key_id  # type: ignore[index]
        assert "hidden-value" not in json.dumps(listed(user, box))
        assert key not in json.dumps(listed(user, box))


def test_observers_and_admins_leave_receipts_too(server: Server) -> None:
    """Admin operations on other owners' boxes are explicit and recorded, and so are reads (P8)."""
    user = server.tcp(server.key("user", "receipts-seen"))
    observer = server.tcp(server.key("observer", "receipts-seen"))
    admin = server.unix(hutch_admin="yes")
    with user.box(memory_mb=64) as box:
        user.good("PUT", f"{box}/files/content?path=a", b"text")
        assert observer.call("GET", f"{box}/files/content?path=a").body == b"text"
        seen = listed(user, box)[-1]
        assert (seen["op"], seen["who"]["role"], seen["details"]) == (  # type: ignore[index]
            "files.read", "observer", {"path": "a", "offset": 0, "limit": 4, "bytes": 4}
        )  # fmt: skip
        admin.good("POST", f"{box}/exec", {"command": "true"})
        who = listed(user, box)[-1]["who"]
        assert who["admin"] is True and who["role"] == "admin"  # type: ignore[index, call-overload]


def test_receipts_are_their_owners_alone(server: Server) -> None:
    """Neither pages nor exports, nor verify, nor notes reach over; an admin over all sees them (B13)."""
    user = server.tcp(server.key("user", "receipts-mine"))
    stranger = server.tcp(server.key("user", "receipts-other"))
    with user.box(memory_mb=64) as box:
        box_id = box.rpartition("/")[2]
        user.good("POST", f"{box}/exec", {"command": "true"})
        assert stranger.call("GET", f"/v1/receipts?box={box_id}").status == 404
        assert stranger.call("POST", "/v1/receipts/verify", {"box": box_id}).status == 404
        assert stranger.call("POST", f"{box}/receipts", {"op": "note.x"}).status == 404
        assert stranger.good("GET", "/v1/receipts")["chains"] == []
        assert stranger.good("POST", "/v1/receipts/verify") == {"ok": True, "chains": []}
        lines = stranger.call("GET", "/v1/receipts", accept="application/x-ndjson").body.splitlines()
        assert len(lines) == 1 and b'"receipts":0' in lines[0]
        assert stranger.call("GET", f"/v1/receipts?box={box_id}", accept="application/x-ndjson").status == 404
        observer = server.tcp(server.key("observer", "receipts-mine"))
        assert observer.good("GET", f"/v1/receipts?box={box_id}")["receipts"]
        assert observer.call("POST", f"{box}/receipts", {"op": "note.x"}).status == 403
        everything = server.unix(hutch_admin="yes").good("GET", "/v1/receipts")["chains"]
        assert box_id in [chain["box"] for chain in everything]


def test_pages_exports_and_notes(server: Server) -> None:
    user = server.tcp(server.key("user", "receipts-pages"))
    with user.box(memory_mb=64) as box:
        box_id = box.rpartition("/")[2]
        for number in range(5):
            user.good("POST", f"{box}/exec", {"command": f"true {number}"})
        user.good("POST", f"{box}/receipts", {"op": "tool.asked", "details": {"tool": "exec", "allowed": True}})
        noted = listed(user, box)[-1]
        assert (noted["op"], noted["details"]) == ("tool.asked", {"tool": "exec", "allowed": True})
        assert user.call("POST", f"{box}/receipts", {"op": "exec"}).status == 400
        first = user.good("GET", f"/v1/receipts?box={box_id}&limit=3")
        rest = user.good("GET", f"/v1/receipts?box={box_id}&after={first['last']}")
        numbers = [receipt["seq"] for receipt in first["receipts"] + rest["receipts"]]
        assert numbers == list(range(1, len(numbers) + 1))
    exported = user.call("GET", f"/v1/receipts?box={box_id}", accept="application/x-ndjson")
    assert exported.headers["content-type"] == "application/x-ndjson"
    [check] = check_export(exported.body.splitlines(keepends=True))
    assert check.ok and check.count > len(numbers), "it outlives the box"
    verified = user.good("POST", "/v1/receipts/verify", {"box": box_id})
    assert verified["ok"] and verified["chains"][0]["count"] == check.count
    assert server.tcp(server.key("user", "x")).call("GET", "/v1/receipts?box=A").status == 400


def test_streams_and_terminals_are_on_record_before_their_last_frame() -> None:
    """With `strict` the receipt is written before the caller gets the verdict."""
    with serving(HUTCH_RECEIPTS="strict") as server:
        assert "receipts are strict" in server.log.read_text()
        client = server.unix()
        with client.box(memory_mb=64) as box:
            connection, response = client.open("POST", f"{box}/exec", {"command": "echo a; exit 2"},
                                               accept="application/x-ndjson")  # fmt: skip
            lines = response.read().splitlines()
            connection.close()
            assert json.loads(lines[-1])["result"]["exit_code"] == 2
            assert (listed(client, box)[-1]["op"], listed(client, box)[-1]["exit_code"]) == ("exec", 2)
            with attached(client, f"{box}/terminal?command=exit%206") as socket:
                end = ""
                for frame in socket:
                    end = frame if isinstance(frame, str) else end
            assert json.loads(end)["exit_code"] == 6
            ended = [receipt for receipt in listed(client, box) if receipt["op"] == "job.ended"]
            assert [receipt["exit_code"] for receipt in ended] == [6]
            assert listed(client, box)[-1]["who"]["role"] == "admin"  # type: ignore[index]


def test_a_crash_records_a_gap_and_a_clean_restart_none() -> None:
    """A restart records its gap."""
    with serving() as server:
        client = server.unix()
        box = "/v1/boxes/" + client.good("POST", "/v1/boxes", {"memory_mb": 64})["id"]
        client.good("POST", f"{box}/exec", {"command": "true"})
        listed(client, box)
        server.end(signal.SIGTERM)
        server.start()
        client.good("POST", f"{box}/exec", {"command": "true"})
        reply = [receipt["op"] for receipt in listed(client, box)]
        assert reply[reply.index("box.left") + 1] == "box.handed_over" and "gap" not in reply
        server.end(signal.SIGKILL)
        (server.state / "server.json").unlink()
        server.start()
        reply = [receipt["op"] for receipt in listed(client, box)]
        assert reply.count("gap") == 1
        assert client.good("POST", "/v1/receipts/verify")["ok"]
        client.good("DELETE", f"{box}?force=true")
