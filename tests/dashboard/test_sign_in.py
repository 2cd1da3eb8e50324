"""Signing in: by a key or a one-time link, for a cookie that ends with its key and that no other page can use."""

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys

import pytest
from websockets.exceptions import InvalidStatus

from hutch.server.dashboard.sign_ins import CACHE_SECONDS, MAX_SESSIONS
from tests.dashboard.sample import Sample
from tests.dashboard.visitor import Visitor
from tests.server.serving import Client, Server, serving, until
from tests.server.test_websockets import attached


def signed_in(server: Server, key: str) -> tuple[Client, str]:
    """A client that has only the cookie, and the session's token."""
    answer = server.tcp().call("POST", "/v1/dashboard/session", {"key": key})
    assert answer.status == 200, answer
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    return server.tcp(cookie=cookie.split(";")[0]), answer.json()["csrf"]


def test_changes_need_the_token_and_the_own_origin(server: Server) -> None:
    """The cookie alone reads; a change without its token, and any call from another origin, is refused."""
    browser, token = signed_in(server, server.key("user", "csrf"))
    assert browser.good("GET", "/v1/dashboard/session")["owner"] == "csrf"
    assert browser.call("POST", "/v1/volumes", {"name": "a"}).status == 403
    assert browser.call("POST", "/v1/volumes", {"name": "a"}, hutch_csrf="0" * 40).status == 403
    assert browser.call("POST", "/v1/volumes", {"name": "a"}, hutch_csrf=token).status == 201
    host, port = browser.address[0], int(browser.address[1])
    for origin in (f"http://{host}:{port + 1}", "http://evil.example", "null"):
        assert browser.call("GET", "/v1/boxes", origin=origin).status == 403
    assert browser.call("GET", "/v1/boxes", origin=f"http://{host}:{port}").status == 200


def test_other_origins_that_may_call_cannot_use_the_session() -> None:
    """A page of `server.origins` calls with a key of its own; the dashboard's cookie is not for it."""
    with serving(HUTCH_SERVER_ORIGINS="http://bots.example") as server:
        key = server.key("user", "a")
        browser, token = signed_in(server, key)
        assert browser.call("GET", "/v1/boxes", origin="http://bots.example", hutch_csrf=token).status == 403
        assert server.tcp(key).call("GET", "/v1/boxes", origin="http://bots.example").status == 200


def test_a_websocket_must_name_the_own_origin(server: Server) -> None:
    """Browsers send cookies with a WebSocket from any page, and name that page's origin."""
    key = server.key("user", "sockets")
    with server.tcp(key).box(memory_mb=64) as box:
        server.tcp(key).good("DELETE", f"{box}/lease")
        browser, _ = signed_in(server, key)
        own = "http://{}:{}".format(*browser.address)
        for headers in ({}, {"origin": "http://evil.example"}):
            with pytest.raises(InvalidStatus), attached(browser.saying(**headers), f"{box}/terminal?command=true"):
                pass
        with attached(browser.saying(origin=own), f"{box}/terminal?command=true") as socket:
            assert '"exit_code":0' in "".join(each for each in socket if isinstance(each, str))


def test_a_session_ends_with_its_key(server: Server) -> None:
    """A revoked key ends its sessions; so does another role, and signing out ends one or all."""
    made = server.unix().good("POST", "/v1/keys", {"role": "user", "owner": "ends"})
    first, token = signed_in(server, made["text"])
    second, _ = signed_in(server, made["text"])
    first.good("DELETE", "/v1/dashboard/session", hutch_csrf=token)
    assert first.call("GET", "/v1/dashboard/session").status == 401
    assert second.call("GET", "/v1/dashboard/session").status == 200
    third, token = signed_in(server, made["text"])
    third.good("DELETE", "/v1/dashboard/session?all=true", hutch_csrf=token)
    assert second.call("GET", "/v1/dashboard/session").status == 401
    last, _ = signed_in(server, made["text"])
    server.unix().good("DELETE", f"/v1/keys/{made['key']['id']}")
    assert last.call("GET", "/v1/dashboard/session").status == 401
    assert server.tcp().call("POST", "/v1/dashboard/session", {"key": made["text"]}).status == 401


def test_a_session_outlives_the_server_and_not_a_change_of_role() -> None:
    """A restart signs nobody out; a key whose role was changed in the store does."""
    server = Server()
    try:
        server.start()
        made = server.unix().good("POST", "/v1/keys", {"role": "user", "owner": "roles"})
        browser, _ = signed_in(server, made["text"])
        cookie, port = browser.headers["cookie"], browser.address[1]
        server.end()
        server.start("--port", str(port))
        browser = server.tcp(cookie=cookie)
        assert browser.call("GET", "/v1/dashboard/session").status == 200
        _change_role(server, made["key"]["id"])
        until(lambda: browser.call("GET", "/v1/dashboard/session").status == 401)
    finally:
        server.close()


def _change_role(server: Server, key_id: str) -> None:
    """As another release, or an operator by hand, could do it."""
    assert CACHE_SECONDS <= 1.0
    with sqlite3.connect(server.state / "hutch.db") as store:
        (body,) = store.execute("SELECT body FROM notes WHERE kind = 'key' AND key = ?", (key_id,)).fetchone()
        stored = json.loads(body)
        stored["key"]["role"] = "observer"
        changed = json.dumps(stored).encode()
        store.execute("UPDATE notes SET body = ? WHERE kind = 'key' AND key = ?", (changed, key_id))


def test_links_work_once(server: Server) -> None:
    """`hutch dashboard` prints a link that signs in once; a second visitor is refused."""
    command = [sys.executable, "-m", "hutch.cli.main", "dashboard", "--no-open"]
    environ = {**os.environ, "HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)}
    _signs_in_once(server, subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)


def _signs_in_once(server: Server, printed: str) -> None:
    found = re.search(r"(http://\S+)/sign-in#(\S+)", printed)
    assert found and found[1] == server.announcement["url"]
    first = server.tcp().call("POST", "/v1/dashboard/session", {"code": found[2]})
    assert (first.status, first.json()["role"]) == (200, "admin")
    again = server.tcp().call("POST", "/v1/dashboard/session", {"code": found[2]})
    assert (again.status, again.json()["code"]) == (401, "unauthenticated")


def test_a_server_shows_its_link_in_a_terminal_only(server: Server) -> None:
    """A reader of a server's log would be its admin for ten minutes after each start."""
    assert "dashboard: http" in server.log.read_text() and "sign-in#" not in server.log.read_text()
    shown = Server()
    controller, terminal = pty.openpty()
    environ = {**os.environ, "HUTCH_STATE_DIR": str(shown.state), "HUTCH_RUN_DIR": str(shown.run)}
    command = [sys.executable, "-m", "hutch.cli.main", "serve", "--port", "0"]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environ, stdin=nowhere, stdout=nowhere, stderr=terminal)
    try:
        printed = b""
        while b"signs in once" not in printed:
            printed += os.read(controller, 4096)
        until((shown.state / "server.json").exists)
        _signs_in_once(shown, printed.decode())
    finally:
        process.terminate()
        process.wait()
        os.close(controller)
        os.close(terminal)
        shown.close()


def test_a_key_has_so_many_sessions_and_links_at_most(server: Server) -> None:
    """Sessions are read from the store again and again, and links wait in memory: the oldest of the same key ends for
    a new one, and nobody else's."""
    other, _ = signed_in(server, server.key("user", "other"))
    theirs = server.tcp(server.key("observer", "other")).good("POST", "/v1/dashboard/links", {})["path"]
    key = server.key("observer", "greedy")
    first, _ = signed_in(server, key)
    for _ in range(MAX_SESSIONS):
        last, _ = signed_in(server, key)
        server.tcp(key).good("POST", "/v1/dashboard/links", {})
    assert first.call("GET", "/v1/dashboard/session").status == 401
    assert last.call("GET", "/v1/dashboard/session").status == 200
    assert other.call("GET", "/v1/dashboard/session").status == 200
    with sqlite3.connect(server.state / "hutch.db") as store:
        sessions = [json.loads(body) for (body,) in store.execute("SELECT body FROM notes WHERE kind = 'sign_in'")]
    assert sum(each["owner"] == "greedy" for each in sessions) == MAX_SESSIONS
    code = theirs.partition("#")[2]
    assert server.tcp().call("POST", "/v1/dashboard/session", {"code": code}).status == 200


def test_pages_carry_the_policy(sample: Sample) -> None:
    """The page is never kept, its assets are kept for ever, and neither may load, run or be framed by anything else."""
    client = sample.server.tcp()
    page = client.call("GET", "/boxes/anything")
    policy = page.headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "connect-src 'self'"):
        assert part in policy
    assert "unsafe-eval" not in policy and "script-src 'self' " not in policy
    assert page.headers["cache-control"] == "no-cache"
    (script,) = re.findall(r'src="(/assets/[^"]+\.js)"', page.body.decode())
    asset = client.call("GET", script, accept_encoding="gzip")
    assert "immutable" in asset.headers["cache-control"] and asset.headers["content-encoding"] == "gzip"
    assert client.call("GET", "/assets/../pages.py").status in (401, 404)
    assert client.call("GET", "/assets/nothing.js").status == 404


def test_by_key_in_the_browser(visitor: Visitor, sample: Sample) -> None:
    """A wrong key is said plainly; the right one opens the page, whose scripts can read neither key nor cookie."""
    page = visitor.go("/boxes")
    page.get_by_label("Key").fill("hutch_k000000000000_nothing")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("this key opens nothing").wait_for()
    page.get_by_label("Key").fill(sample.user)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="research").wait_for()
    kept = page.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
    assert sample.user not in kept and "hutch-dashboard" not in kept
    page.locator(".account summary").click()
    page.get_by_role("button", name="Sign out", exact=True).click()
    page.get_by_label("Key").wait_for()


def test_by_link_in_the_browser(visitor: Visitor, sample: Sample) -> None:
    """A link signs in and leaves no code in the address; used again it says so and offers the key."""
    path = sample.server.unix().good("POST", "/v1/dashboard/links")["path"]
    page = visitor.go(path)
    page.get_by_role("heading", name="Overview").wait_for()
    assert page.url == visitor.url + "/"
    visitor.context.clear_cookies()
    page.goto("about:blank")
    visitor.go(path)
    page.get_by_text("this link was used already").wait_for()
    page.get_by_label("Key").wait_for()


def test_a_revoked_key_ends_the_open_page(visitor: Visitor, sample: Sample) -> None:
    """The page that is open says that the session has ended, instead of going blank."""
    made = sample.server.unix().good("POST", "/v1/keys", {"role": "user", "owner": "team"})
    page = visitor.sign_in(made["text"])
    page.get_by_role("heading", name="Overview").wait_for()
    sample.server.unix().good("DELETE", f"/v1/keys/{made['key']['id']}")
    page.get_by_text("You were signed out.").wait_for()
