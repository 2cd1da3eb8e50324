"""Who reaches a preview: tokens, cookies, public previews, revocation, and pages of other origins."""

import base64
import json
import time
from collections.abc import Iterator
from http.client import IncompleteRead

import pytest

from tests.server.previews.preview_box import PORT, Preview, previewed
from tests.server.serving import Client, Server, serving

HTML = "text/html,*/*"


@pytest.fixture(scope="module")
def owner(server: Server) -> Client:
    return server.tcp(server.key("user", "previewer"))


@pytest.fixture(scope="module")
def preview(owner: Client) -> Iterator[Preview]:
    with previewed(owner) as made:
        yield made


def test_a_first_visit_turns_the_token_into_a_cookie_of_that_origin(preview: Preview) -> None:
    """The box never sees the token: the browser is led on before anything of the box is served (Lesson 32)."""
    with preview.open("GET", f"/echo?a=1&hutch_preview={preview.token}&b=2", Accept=HTML) as first:
        assert first.status == 307
        assert first.headers["location"] == "/echo?a=1&b=2"
        cookie = first.headers["set-cookie"]
        first.read()
    assert {"HttpOnly", "Path=/", "SameSite=Lax"} <= {part.strip() for part in cookie.split(";")}
    assert "domain" not in cookie.lower()
    seen = preview.echo("/echo?a=1&b=2", Hutch_Preview="", Cookie=f"own=1; {cookie.split(';')[0]}; other=2")
    assert seen["target"] == "/echo?a=1&b=2"
    assert seen["headers"]["cookie"] == "own=1; other=2"


def test_a_link_of_another_page_brings_no_cookie(preview: Preview) -> None:
    """Any page can lead a visitor to the preview, with what it likes in the address: that neither takes the visitor's
    cookie away nor widens it, and the box does not see it."""
    mine = f"hutch_preview={preview.token}"
    for planted in ("nonsense", "x;Domain=localhost", "x;Max-Age=0"):
        with preview.open("GET", f"/echo?hutch_preview={planted}&a=1", Accept=HTML, Cookie=mine) as answer:
            assert answer.status == 200 and "set-cookie" not in answer.headers, (planted, answer.headers)
            assert json.loads(answer.read())["target"] == "/echo?a=1"


def test_a_program_may_show_the_token_each_time(preview: Preview) -> None:
    for target, headers in (("/echo", {}), (f"/echo?hutch_preview={preview.token}", {"Hutch_Preview": ""})):
        seen = preview.echo(target, **headers)
        assert preview.token not in str(seen)


@pytest.mark.parametrize("token", ["", "nonsense", "p0123456789abcdef." + "0" * 48, "ü" * 20, "a" * 5000])
def test_without_the_right_token_there_is_a_page_that_says_so(preview: Preview, token: str) -> None:
    answer = preview.visit("GET", "/", Hutch_Preview=token, Accept=HTML)
    assert answer.status == 401
    assert b"does not open the preview" in answer.body
    assert answer.headers["hutch-error"] == "unauthenticated"
    assert preview.visit("GET", "/", Hutch_Preview=token).json()["error"]["code"] == "unauthenticated"


def test_a_token_opens_its_own_port_and_box_only(owner: Client, preview: Preview) -> None:
    box = preview.facts["box_id"]
    with previewed(owner, start=False) as other:
        assert other.visit("GET", "/", Hutch_Preview=preview.token).status == 401
    for host in (f"{PORT + 1}-{box}", f"{PORT}-{'a' * 20}", box, f"x-{box}", f"0-{box}", f"99999-{box}", "www", "api"):
        with preview.open("GET", "/", Hutch_Preview=preview.token, Host=f"{host}.localhost:1") as response:
            assert response.status in (401, 404), host
            response.read()


def test_a_public_preview_needs_no_token(owner: Client, preview: Preview) -> None:
    with previewed(owner) as other:
        facts = owner.good("POST", f"{other.path}/ports/{PORT}/url", {"public": True})
        assert facts["token"] == ""
        assert other.visit("GET", "/", Hutch_Preview="").status == 200
        owner.good("DELETE", f"{other.path}/previews/{facts['id']}")
        assert other.visit("GET", "/", Hutch_Preview="").status == 401


def test_a_preview_ends_at_its_time(owner: Client, preview: Preview) -> None:
    facts = owner.good("POST", f"{preview.path}/ports/{PORT}/url", {"ttl_sec": 1.5})
    assert preview.visit("GET", "/", Hutch_Preview=facts["token"]).status == 200
    with preview.open("GET", "/sse", Hutch_Preview=facts["token"]) as stream, pytest.raises(IncompleteRead):
        while stream.read1(4096):
            continue
    assert time.time() >= facts["expires_at"]
    assert preview.visit("GET", "/", Hutch_Preview=facts["token"]).status == 401
    assert facts["id"] not in [each["id"] for each in owner.good("GET", f"{preview.path}/previews")["previews"]]


def test_revoking_cuts_what_still_runs(owner: Client, preview: Preview) -> None:
    facts = owner.good("POST", f"{preview.path}/ports/{PORT}/url", {"ttl_sec": 0})
    assert facts["expires_at"] == 0
    with preview.open("GET", "/sse", Hutch_Preview=facts["token"]) as stream:
        assert b"data: 0" in stream.read1(4096)
        owner.good("DELETE", f"{preview.path}/previews/{facts['id']}")
        with pytest.raises(IncompleteRead):
            while stream.read1(4096):
                continue
    assert preview.visit("GET", "/", Hutch_Preview=facts["token"]).status == 401
    assert owner.call("DELETE", f"{preview.path}/previews/{facts['id']}").status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://8000-aaaaaaaaaaaaaaaaaaaa.localhost:7300"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "empty"},
    ],
)
def test_the_cookie_counts_for_no_page_of_another_origin(preview: Preview, headers: dict[str, str]) -> None:
    """Previews below one domain may be one site to a browser, which then sends cookies between them."""
    cookie = {"Hutch_Preview": "", "Cookie": f"hutch_preview={preview.token}"}
    assert preview.visit("GET", "/", **cookie, **headers).status == 401
    own = {"Origin": preview.origin, "Sec_Fetch_Site": "same-origin"}
    assert preview.visit("GET", "/", **cookie, **own).status == 200
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert preview.visit("GET", "/", **cookie, **link).status == 200


@pytest.mark.parametrize("path", ["//evil.example/", "///evil.example/", "/\\evil.example/", "/\\/evil.example/"])
def test_a_first_visit_leads_to_no_other_host(preview: Preview, path: str) -> None:
    """A link to a preview with its token is no open redirect: to a browser `//` and `/\\` begin a host name."""
    with preview.open("GET", f"{path}?hutch_preview={preview.token}", Accept=HTML) as first:
        assert (first.status, first.headers["location"]) == (307, "/evil.example/")
        first.read()


def test_the_program_gets_no_host_but_a_name(preview: Preview) -> None:
    """Programs write it into links, so nothing may stand in it that begins a user, a path or a query."""
    name, _, port = preview.host.rpartition(":")
    for host in (f"evil@{name}:{port}", f"{name}:{port}/evil", f"{name}:{port}#", f"{name}:{port}?a", f"{name}:evil"):
        with preview.open("GET", "/echo", Hutch_Preview=preview.token, Host=host) as response:
            assert response.status == 403, host
            response.read()
    assert preview.echo(Host=f"{name.upper()}.:{port}", X_Forwarded_Host="evil")["headers"]["x-forwarded-host"] == (
        f"{name.upper()}.:{port}"
    )


def test_a_rebound_name_reaches_no_preview_by_its_path(preview: Preview, owner: Client) -> None:
    """A page of such a name would be of one origin with the preview, and read a public one (DNS rebinding)."""
    public = owner.good("POST", f"{preview.path}/ports/{PORT}/url", {"public": True})
    for facts in (preview.facts, public):
        path = "/" + facts["path_url"].split("/", 3)[3]
        for host, status in (("evil.example", 403), (f"127.0.0.1:{preview.address[1]}", 200)):
            with preview.open("GET", path, Host=host) as response:
                assert response.status == status, host
                response.read()
    owner.good("DELETE", f"{preview.path}/previews/{public['id']}")


def test_answers_are_kept_for_no_other_visitor(preview: Preview, owner: Client) -> None:
    """A cache on the way gives what one visitor saw by a token to nobody without it; everybody may see a public one."""
    raw = base64.urlsafe_b64encode(b"HTTP/1.1 200 OK\r\nCache-Control: public, max-age=9\r\nContent-Length: 0\r\n\r\n")
    target = f"/raw?answer={raw.decode()}"
    assert cache_control(preview, target, Hutch_Preview=preview.token) == ["public, max-age=9", "private"]
    public = owner.good("POST", f"{preview.path}/ports/{PORT}/url", {"public": True})
    assert cache_control(preview, target) == ["public, max-age=9"]
    owner.good("DELETE", f"{preview.path}/previews/{public['id']}")
    assert cache_control(preview, target) == ["no-store"]


def cache_control(preview: Preview, target: str, **headers: str) -> list[str]:
    with preview.open("GET", target, **headers) as response:
        response.read()
        return response.headers.get_all("cache-control") or []


def test_no_program_asks_for_a_password_in_the_servers_name(preview: Preview) -> None:
    """In the path form all programs share the server's origin, and browsers would give each the others' password."""
    raw = b'HTTP/1.1 401 X\r\nWWW-Authenticate: Basic realm="Hutch"\r\nContent-Length: 0\r\n\r\n'
    target = f"raw?answer={base64.urlsafe_b64encode(raw).decode()}"
    path = "/" + preview.facts["path_url"].split("/", 3)[3]
    for start, host, asked in (("/", preview.host, True), (path, f"127.0.0.1:{preview.address[1]}", False)):
        with preview.open("GET", start + target, Hutch_Preview=preview.token, Host=host) as response:
            assert (response.status, "www-authenticate" in response.headers) == (401, asked)
            response.read()


def test_keys_and_cookies_of_the_server_stay_outside(preview: Preview, owner: Client) -> None:
    """A key of Hutch goes into no box, whatever header it comes in; the page's own authorization does (Lesson 32)."""
    key = owner.headers["authorization"]
    seen = preview.echo(
        Authorization=key, Hutch_Key=key.split()[1], Hutch_Session="s", X_Api_Key=key.split()[1],
        Proxy_Authorization="Basic x", X_Forwarded_For="1.2.3.4", Forwarded="for=1.2.3.4",
    )  # fmt: skip
    assert key.split()[1] not in str(seen)
    assert not [name for name in seen["headers"] if name.startswith(("hutch-", "proxy-")) or name == "forwarded"]
    assert "x-forwarded-for" not in seen["headers"]
    for name in ("X_LangBot_Box_Control_Token", "X_Access_Token", "X_Own"):
        assert name.lower().replace("_", "-") not in preview.echo(**{name: key.split()[1]})["headers"]
    for name in ("Referer", "E2b_Traffic_Access_Token", "X_Own"):
        assert preview.token not in str(preview.echo(**{name: f"http://x/?a={preview.token}"}))
    cookies = f"own=1; hutch-dashboard-7300=x; hutch_preview={preview.token}"
    assert preview.echo(Cookie=cookies)["headers"]["cookie"] == "own=1"
    assert preview.echo(Authorization="Bearer of-the-page")["headers"]["authorization"] == "Bearer of-the-page"


def test_the_api_is_not_served_at_the_names_of_previews(preview: Preview, owner: Client) -> None:
    """Nothing of the server answers below the domain of previews, so their pages cannot call it as their own origin."""
    for host in (preview.host, "www.localhost", f"a.{preview.host}"):
        with preview.open("GET", "/v1/status", Host=host, Authorization=owner.headers["authorization"]) as response:
            assert response.status in (401, 404)
            response.read()


def test_no_header_opens_another_door_at_the_origin_of_a_preview(preview: Preview) -> None:
    """A page may send any header to its own origin; what it reaches there is its own program."""
    seen = preview.echo(E2b_Sandbox_Id=preview.facts["box_id"], E2b_Sandbox_Port="49983")
    assert seen["target"] == "/echo"
    for path in ("/sandboxes", "/v2/sandboxes", "/files?path=x", "/process.Process/List"):
        assert b"hello from the box" in preview.visit("GET", path).body


def test_a_page_of_a_preview_may_not_call_the_api(preview: Preview, owner: Client) -> None:
    refused = owner.call("GET", "/v1/status", origin=preview.origin)
    assert refused.status == 403
    assert owner.call("GET", "/v1/status", host="8000-x.evil.example").status == 403


def test_a_preview_outlives_the_server_but_not_its_box() -> None:
    with serving() as server:
        owner = server.tcp(server.key("user", "previewer"))
        with previewed(owner, ttl_sec=600) as preview:
            server.end()
            server.start()
            owner.address = server.tcp().address
            moved = Preview(owner, preview.path, {**preview.facts, "url": _at(preview, server)})
            assert moved.visit("GET", "/").status == 200
        gone = moved.visit("GET", "/", Accept=HTML)
        assert gone.status == 410
        assert b"This box is gone" in gone.body


def _at(preview: Preview, server: Server) -> str:
    """The address of the preview at the port of a server that was started again."""
    return str(preview.facts["url"]).replace(preview.host.rpartition(":")[2], str(server.tcp().address[1]))
