"""What passes through a preview: bodies, streams, WebSockets, redirects, cookies; sleeping boxes and closed ports."""

import base64
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.server.previews.preview_box import APP, PORT, Preview, previewed, start_app
from tests.server.serving import TIMEOUT_SECONDS, Client, Server, until

HTML = "text/html,*/*"


@pytest.fixture(scope="module")
def owner(server: Server) -> Client:
    return server.tcp(server.key("user", "proxied"))


@pytest.fixture(scope="module")
def preview(owner: Client) -> Iterator[Preview]:
    with previewed(owner) as made:
        yield made


@contextlib.contextmanager
def websocket(preview: Preview, path: str = "/ws", **options: object) -> Iterator[ClientConnection]:
    headers = {"Hutch-Preview": preview.token}
    given = {"additional_headers": headers, "open_timeout": TIMEOUT_SECONDS, **options}
    stream = socket.create_connection(preview.address, TIMEOUT_SECONDS)
    with connect(f"ws://{preview.host}{path}", sock=stream, **given) as opened:  # type: ignore[arg-type]
        yield opened


def test_requests_arrive_as_they_were_sent(preview: Preview) -> None:
    """Works with network off: the way in is the guest (S6)."""
    seen = preview.echo("/echo?a=%20b&c=d/e", "PUT", b"body", Content_Type="text/x-odd", X_Own="1")
    assert (seen["method"], seen["target"], seen["body"]) == ("PUT", "/echo?a=%20b&c=d/e", "body")
    assert seen["headers"]["host"] == preview.host
    assert (seen["headers"]["content-type"], seen["headers"]["x-own"]) == ("text/x-odd", "1")
    assert (seen["headers"]["x-forwarded-host"], seen["headers"]["x-forwarded-proto"]) == (preview.host, "http")


def test_bodies_pass_both_ways_in_chunks_and_whole(preview: Preview) -> None:
    pieces = [b"a" * 70_000, b"b" * 5]
    seen = preview.echo("/echo", "POST", iter(pieces))
    assert seen["body"] == "a" * 70_000 + "b" * 5
    assert preview.visit("GET", "/chunks?n=300").body == b"".join(b"piece %d\n" % each for each in range(300))
    assert preview.visit("POST", "/count", bytes(5_000_000)).body == b"5000000"
    assert len(preview.visit("GET", "/bytes?n=5000000").body) == 5_000_000
    assert preview.visit("HEAD", "/bytes?n=50").headers["content-length"] == "50"


def test_an_early_answer_ends_a_long_upload(preview: Preview) -> None:
    connection = http.client.HTTPConnection(*preview.address, timeout=TIMEOUT_SECONDS)
    connection.putrequest("POST", "/early", skip_host=True)
    for name, value in (("Host", preview.host), ("Hutch-Preview", preview.token), ("Content-Length", "100000000")):
        connection.putheader(name, value)
    connection.endheaders()
    with contextlib.suppress(ConnectionError):
        for _ in range(20):
            connection.send(bytes(100_000))
    assert connection.getresponse().status == 413
    connection.close()


def test_events_arrive_while_the_answer_is_open(preview: Preview) -> None:
    with preview.open("GET", "/sse", Hutch_Preview=preview.token) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        got = b""
        while b"data: 3\n" not in got:
            got += stream.read1(4096)


def test_websocket_messages_pass_both_ways(preview: Preview) -> None:
    with websocket(preview, subprotocols=["vite-hmr", "other"]) as inner:
        assert inner.subprotocol == "vite-hmr"
        for message in ("text ü", b"bytes \xff", "x" * 200_000, b"y" * 1_000_000):
            inner.send(message)
            assert inner.recv(TIMEOUT_SECONDS) == message
        inner.close(4001, "mine")
        assert inner.close_code == 4001


def test_a_refused_websocket_is_answered_as_the_program_did(preview: Preview) -> None:
    with pytest.raises(InvalidStatus) as refused, websocket(preview, "/no-websocket"):
        pass
    assert refused.value.response.status_code == 403
    assert refused.value.response.body == b"no websocket here"


def test_a_websocket_needs_the_token_too(preview: Preview) -> None:
    with pytest.raises(InvalidStatus) as refused, websocket(preview, additional_headers={}):
        pass
    assert refused.value.response.status_code == 401


def test_redirects_are_not_followed_and_lead_to_the_visitors_own_place(preview: Preview) -> None:
    for to, shown in (
        ("/login", "/login"),
        (f"http://localhost:{PORT}/login?a=1", "/login?a=1"),
        (f"http://127.0.0.1:{PORT}", "/"),
        ("http://127.0.0.1:9/metadata", "http://127.0.0.1:9/metadata"),
        ("https://example.org/", "https://example.org/"),
    ):
        answer = preview.visit("GET", f"/redirect?to={to.replace('?', '%3F')}")
        assert (answer.status, answer.headers["location"]) == (302, shown)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("a=1; Path=/; HttpOnly", "a=1; Path=/; HttpOnly"),
        ("a=1; Domain=localhost; Path=/", "a=1; Path=/"),
        ("a=1;DOMAIN=.localhost", "a=1"),
        ("hutch_preview=stolen; Path=/", None),
    ],
)
def test_cookies_of_a_box_stay_at_its_origin(preview: Preview, sent: str, shown: str | None) -> None:
    answer = preview.visit("GET", f"/cookie?set={sent.replace(';', '%3B').replace(' ', '%20')}")
    assert answer.headers.get("set-cookie") == shown


def test_headers_that_act_beyond_an_origin_do_not_come_out(preview: Preview) -> None:
    raw = b'HTTP/1.1 200 OK\r\nClear-Site-Data: "*"\r\nAlt-Svc: h3=":443"\r\nX-Own: 1\r\nContent-Length: 0\r\n\r\n'
    answer = preview.visit("GET", f"/raw?answer={base64.urlsafe_b64encode(raw).decode()}")
    assert (answer.status, answer.headers["x-own"]) == (200, "1")
    assert not {"clear-site-data", "alt-svc"} & set(answer.headers)


@pytest.mark.parametrize(("path", "code"), [("/nothing", "port_closed"), ("/endless", "not_proxied")])
def test_a_program_that_misbehaves_gives_a_page(preview: Preview, path: str, code: str) -> None:
    answer = preview.visit("GET", path, Accept=HTML)
    assert (answer.status, answer.headers["hutch-error"]) == (502, code)
    assert preview.visit("GET", "/").status == 200


def test_an_answer_that_is_cut_off_is_seen_as_cut_off(preview: Preview) -> None:
    with pytest.raises(http.client.IncompleteRead):
        preview.visit("GET", "/cut")


def test_a_closed_port_has_a_page_that_tries_again(owner: Client) -> None:
    with previewed(owner, start=False) as preview:
        answer = preview.visit("GET", "/", Accept=HTML)
        assert (answer.status, answer.headers["hutch-error"]) == (502, "port_closed")
        assert b"Nothing answers on this port yet" in answer.body
        assert b'http-equiv="refresh"' in answer.body
        assert preview.visit("GET", "/").json()["error"]["remedy"]
        start_app(owner, preview.path)
        assert preview.visit("GET", "/", Accept=HTML).status == 200


def test_a_port_that_the_spec_names_is_waited_for(owner: Client) -> None:
    """A request to a promised port waits for it, and so does a caller who asks for the ports with `wait`."""
    with previewed(owner, start=False, ports=[PORT]) as preview:
        assert owner.call("GET", f"{preview.path}/ports?wait=0.3").json()["code"] == "timeout"
        owner.good("PUT", f"{preview.path}/files/content?path=app.py", APP)
        command = f"sleep 1; exec python3 app.py {PORT}"
        owner.good("POST", f"{preview.path}/jobs", {"command": command})
        assert preview.visit("GET", "/").status == 200
        ports = owner.good("GET", f"{preview.path}/ports?wait=30")["ports"]
        assert [(each["port"], each["process"]) for each in ports] == [(PORT, "python3")]


def test_a_visit_wakes_a_paused_box(owner: Client, preview: Preview) -> None:
    """An open connection does not keep a box from being paused, and the next visit wakes it."""
    with preview.open("GET", "/sse", Hutch_Preview=preview.token) as stream:
        stream.read1(4096)
        assert owner.good("POST", f"{preview.path}/pause")["state"] == "paused"
        assert preview.visit("GET", "/").status == 200
        assert owner.good("GET", preview.path)["state"] == "running"
        stream.read1(4096)


def test_open_connections_keep_a_box_from_idling(owner: Client) -> None:
    """Nothing else keeps it: no lease, no job, only a program that a command left behind."""
    with owner.box(idle_timeout_sec=2) as path:
        owner.good("PUT", f"{path}/files/content?path=app.py", APP)
        owner.good("POST", f"{path}/exec", {"command": f"setsid python3 app.py {PORT} >/dev/null 2>&1 &"})
        until(lambda: PORT in [each["port"] for each in owner.good("GET", f"{path}/ports")["ports"]])
        other = Preview(owner, path, owner.good("POST", f"{path}/ports/{PORT}/url", {}))
        owner.good("DELETE", f"{path}/lease")
        with other.open("GET", "/sse", Hutch_Preview=other.token) as stream:
            ends = time.monotonic() + 5
            while time.monotonic() < ends:
                assert stream.read1(4096)
            assert owner.saying(hutch_observe="yes").good("GET", path)["state"] == "running"
        until(lambda: _has_ended(owner, path))


def _has_ended(owner: Client, path: str) -> bool:
    answer = owner.call("GET", path)
    return answer.status in (404, 410) or answer.json()["state"] == "paused"


def test_ports_are_events_when_they_appear_and_go(owner: Client) -> None:
    with owner.box() as path:
        owner.good("GET", f"{path}/ports")
        job = start_app(owner, path)

        def reply() -> list[tuple[str, str, str]]:
            box = path.rpartition("/")[2]
            events = owner.good("GET", f"/v1/events?box={box}&limit=1000")["events"]
            return [(each["old"], each["new"], each["reason"]) for each in events if each["kind"] == "port"]

        until(lambda: reply() == [("", str(PORT), f"port {PORT} opened by python3")])
        owner.good("POST", f"{path}/jobs/{job}/signal", {"number": 9})
        until(lambda: reply()[1:] == [(str(PORT), "", f"port {PORT} closed")])


def test_receipts_and_metrics_know_previews(server: Server, owner: Client) -> None:
    with previewed(owner) as preview:
        preview.open("GET", f"/?hutch_preview={preview.token}", Accept=HTML).close()
        preview.visit("GET", "/")
        owner.good("DELETE", f"{preview.path}/previews/{preview.facts['id']}")
        box = preview.path.rpartition("/")[2]
        until(lambda: len(_ops(owner, box)) >= 3)
        assert _ops(owner, box) == ["preview.open", "preview.visit", "preview.revoke"]
    text = server.unix().call("GET", "/metrics").body.decode()
    assert 'hutch_requests_total{op="previews",status="200"}' in text
    for name in ("hutch_port_connections ", "hutch_port_connections_opened_total ", "hutch_port_bytes_total{"):
        assert f"\n{name}" in text


def _ops(owner: Client, box: str) -> list[str]:
    receipts = owner.good("GET", f"/v1/receipts?box={box}")["receipts"]
    assert json.dumps(receipts).count("hutch_preview") == 0
    return [each["op"] for each in receipts if each["op"].startswith("preview.")]
