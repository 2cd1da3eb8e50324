"""Authentication: keys, roles, owners, the Unix socket's peers, Host and Origin."""

import os
import re
import subprocess
import sys
import time
from http.client import IncompleteRead
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from hutch.server.routes import ROUTES, May, Route
from tests.cli.cli_process import answer as cli
from tests.server.serving import TIMEOUT_SECONDS, Client, Server, serving, until
from tests.server.test_websockets import attached

ABSENT = "a" * 20


def test_tcp_always_needs_a_key(server: Server) -> None:
    """Only the two health checks answer without a key or with a wrong one; signing in takes a key in its body."""
    key = server.key("user", "matrix")
    wrong = (
        {},
        {"authorization": "Bearer nonsense"},
        {"authorization": f"Basic {key}"},
        {"hutch_key": key[:-1] + ("A" if key[-1] != "A" else "B")},
        {"hutch_key": "hutch_k000000000000_" + key.split("_", 2)[2]},
    )
    for route in ROUTES:
        for headers in wrong:
            got = server.tcp(**headers).call(route.method, _filled(route))
            if route.may is May.ANYBODY:
                assert got.status == (200 if route.method == "GET" else 400), route.op
            else:
                assert (got.status, got.json()["code"]) == (401, "unauthenticated"), (route.op, headers)
                assert got.headers["www-authenticate"] == "Bearer"
    assert server.tcp().call("GET", "/v1/nothing").status == 401, "strangers learn nothing about paths"
    assert server.tcp(hutch_key=key).call("GET", "/v1/status").status == 200
    assert server.tcp(key).call("GET", "/v1/status").status == 200


def test_observers_change_nothing(server: Server) -> None:
    """An observer may read its owner's boxes and nothing else; no route that changes lets it in (P8)."""
    user, observer = (server.tcp(server.key(role, "team")) for role in ("user", "observer"))
    with user.box() as box:
        before = user.good("GET", box)
        for route in ROUTES:
            if route.may in (May.CHANGE, May.ADMIN):
                got = observer.call(route.method, _filled(route, box.rpartition("/")[2]), b"{}")
                assert (got.status, got.json()["code"]) == (403, "refused"), route.op
        after = observer.good("GET", box)
        passing = {"used_at": 0, "remaining_sec": 0}
        assert {**after, **passing} == {**before, **passing}
        assert observer.good("POST", f"{box}/files/glob", {"pattern": "*"})["complete"]


def test_looking_extends_nothing(server: Server) -> None:
    """What an observer reads leaves the lease, the idle clock and a paused box as they were (P8)."""
    user, observer = (server.tcp(server.key(role, "watched")) for role in ("user", "observer"))
    with user.box() as box:
        user.good("PUT", f"{box}/files/content?path=f", b"content")
        before, used = user.good("GET", box), _used(observer, box)
        time.sleep(1)
        assert observer.call("GET", f"{box}/files/content?path=f").body == b"content"
        assert observer.good("GET", box)["lease"] == before["lease"]
        assert abs(_used(observer, box) - used) < 0.5
        user.good("POST", f"{box}/pause")
        got = observer.call("GET", f"{box}/files/content?path=f")
        assert (got.status, got.json()["details"]["state"]) == (409, "paused")
        assert user.call("GET", f"{box}/files/content?path=f").body == b"content", "its own session wakes it"


def test_only_the_owner_learns_that_a_box_is_gone(server: Server) -> None:
    """For another owner a destroyed box never existed; test_permissions.py shows the same for live ones."""
    owner, stranger = (server.tcp(server.key("user", name)) for name in ("mine", "yours"))
    with owner.box() as box:
        assert stranger.call("GET", box).status == 404
    assert stranger.call("GET", box).status == 404
    assert owner.call("GET", box).status == 410


def test_admins_act_on_foreign_boxes_only_when_they_say_so(server: Server) -> None:
    """An admin must ask for it, needs no lease, and is logged (P8)."""
    owner = server.tcp(server.key("user", "customer"))
    admin = server.tcp(server.key("admin", "operators"))
    with owner.box() as box:
        assert admin.call("POST", f"{box}/exec", {"command": "true"}).status == 404
        over = admin.saying(hutch_admin="yes")
        lease = owner.good("GET", f"{box}/lease")
        assert over.good("POST", f"{box}/exec", {"command": "echo looked"})["stdout"] == "looked\n"
        left = {"lease_expires_in_seconds": 0}
        assert {**owner.good("GET", f"{box}/lease"), **left} == {**lease, **left}, "the lease is not touched"
        logged = server.log.read_text()
        assert "admin acts past owner and lease" in logged
        assert box.rpartition("/")[2] in logged
        assert box.rpartition("/")[2] in {each["id"] for each in over.good("GET", "/v1/boxes")["boxes"]}
        over.good("DELETE", f"{box}/lease")
        assert owner.good("GET", f"{box}/lease")["lease"] is None, "force release"
    got = owner.saying(hutch_admin="yes").call("GET", "/v1/boxes")
    assert (got.status, got.json()["code"]) == (403, "refused")


def test_only_admins_have_keys_to_give(server: Server) -> None:
    user = server.tcp(server.key("user", "x"))
    for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", "/v1/keys/k1")):
        assert user.call(method, path).status == 403
    assert user.call("GET", "/metrics").status == 403
    assert server.tcp(server.key("observer", "x")).call("GET", "/metrics").status == 200


def test_pages_of_other_sites_are_refused(server: Server) -> None:
    """No web page controls a local server, even with a key or a name that resolves to this machine."""
    key = server.key("user", "pages")
    for headers in (
        {"host": "evil.example"},
        {"host": "evil.example:7300"},
        {"host": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        got = server.tcp(key, **headers).call("GET", "/v1/boxes")
        assert (got.status, got.json()["code"]) == (403, "refused"), headers
        assert not any(name.startswith("access-control") for name in got.headers)
    preflight = server.tcp(origin="https://evil.example").call("OPTIONS", "/v1/boxes")
    assert preflight.status == 403
    assert server.unix(origin="https://evil.example").call("GET", "/v1/boxes").status == 403
    host = server.announcement["url"].removeprefix("http://")
    assert server.tcp(key, origin=f"http://{host}").call("GET", "/v1/boxes").status == 200, "its own pages may"
    assert server.tcp(key, host="localhost:1").call("GET", "/v1/boxes").status == 200


def test_forwarded_headers_make_no_caller_local(server: Server) -> None:
    """A TCP caller cannot claim to be a peer of the Unix socket."""
    got = server.tcp(x_forwarded_for="unix", x_forwarded_proto="unix", forwarded="for=unix").call("GET", "/v1/boxes")
    assert got.status == 401


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_are_nobody_on_the_unix_socket() -> None:
    """The peer's credentials decide, not who can reach the socket."""
    with serving("--host", "") as server:
        server.run.chmod(0o755)
        path = server.run / "server.sock"
        path.chmod(0o666)
        asking = (
            "import os, socket, sys\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            "s.sendall(b'GET /v1/boxes HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n"
            "sys.stdout.write(s.makefile().readline())\n"
        )
        said = subprocess.run([sys.executable, "-c", asking, str(path)], capture_output=True, text=True, timeout=60)
        assert said.stdout.startswith("HTTP/1.1 401"), said
        server.run.chmod(0o700)
        assert server.unix().call("GET", "/v1/boxes").status == 200
        assert server.announcement["url"] == "", "no TCP was asked for"


def test_revoked_keys_open_nothing(server: Server, client: Client) -> None:
    """A key revoked over the API fails at once; one revoked by the command line fails within moments."""
    made = client.good("POST", "/v1/keys", {"role": "user", "owner": "leaver"})
    caller = server.tcp(made["text"])
    assert caller.call("GET", "/v1/status").status == 200
    client.good("DELETE", f"/v1/keys/{made['key']['id']}")
    assert caller.call("GET", "/v1/status").status == 401

    environ = {"HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)}
    code, reply = cli("key", "create", "--role", "user", "--owner", "by-cli", env=environ)
    assert code == 0
    caller = server.tcp(reply["text"])
    assert caller.call("GET", "/v1/status").status == 200, "a new key works at once"
    code, _ = cli("key", "revoke", reply["key"]["id"], env=environ)
    assert code == 0
    until(lambda: caller.call("GET", "/v1/status").status == 401)
    _, listed = cli("key", "list", env=environ)
    by_id = {key["id"]: key for key in listed["keys"]}
    assert by_id[reply["key"]["id"]]["revoked_at"] is not None


def test_what_a_revoked_key_has_open_ends(server: Server, client: Client) -> None:
    """A terminal and a stream of events went on for as long as their client liked. Those of another key do."""
    made = client.good("POST", "/v1/keys", {"role": "user", "owner": "leaver"})
    stays = server.tcp(server.key("user", "leaver"), hutch_session="s")
    leaves = server.tcp(made["text"], hutch_session="s")
    with stays.box() as box, attached(stays, f"{box}/terminal") as kept, attached(leaves, f"{box}/terminal") as lost:
        connection, events = leaves.open("GET", "/v1/events", accept="text/event-stream")
        assert events.readline() == b": hutch\n"
        client.good("DELETE", f"/v1/keys/{made['key']['id']}")
        with pytest.raises(ConnectionClosed):
            while lost.recv(TIMEOUT_SECONDS):
                pass
        with pytest.raises((IncompleteRead, ConnectionError)):
            events.read()
        connection.close()
        kept.send(b"echo still $((6 * 7))\n")
        seen = b""
        while b"still 42" not in seen:
            frame = kept.recv(TIMEOUT_SECONDS)
            assert isinstance(frame, bytes)
            seen += frame


def test_the_store_holds_no_key(server: Server) -> None:
    """A stolen store opens nothing; nor does the log."""
    secret = server.key("user", "thief").split("_", 2)[2].encode()
    first = (server.state / "first-key").read_text().strip()
    assert (server.state / "first-key").stat().st_mode & 0o777 == 0o600
    assert server.tcp(first).call("GET", "/v1/keys").status == 200, "the first key is an admin's"
    files: list[Path] = [*server.state.glob("hutch.db*"), server.log]
    for path in files:
        assert secret not in path.read_bytes()
        assert first.split("_", 2)[2].encode() not in path.read_bytes()


def test_each_key_has_its_rate(tmp_path: Path) -> None:
    """Too many requests get a Retry-After; other keys are not affected."""
    (tmp_path / "hutch.toml").write_text("[server]\nrate_per_sec = 2\n")
    with serving(HUTCH_CONFIG=str(tmp_path / "hutch.toml")) as server:
        one, two = (server.tcp(server.key("user", name)) for name in ("one", "two"))
        answers = [one.call("GET", "/v1/session/current") for _ in range(40)]
        refused = [each for each in answers if each.status == 429]
        assert refused
        assert (refused[0].json()["code"], refused[0].json()["retryable"]) == ("quota", True)
        assert int(refused[0].headers["retry-after"]) >= 1
        assert two.call("GET", "/v1/session/current").status == 200
        until(lambda: one.call("GET", "/v1/session/current").status == 200)


def _used(client: Client, box: str) -> float:
    """Two clocks are read for it; a process that is interrupted between them reports a smaller number."""
    return max(client.good("GET", box)["used_at"] for _ in range(5))


def _filled(route: Route, box: str = ABSENT, job: str = "j") -> str:
    path = re.sub(r"{\w+}", "x", route.path.replace("{box}", box).replace("{job}", job))
    takes = route.query is not None and "path" in route.query.__struct_fields__
    return f"{path}?path=f" if takes else path
