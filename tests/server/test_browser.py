"""A real browser: pages of other sites cannot drive a local server, whatever they know; a page that is allowed can."""

import http.server
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.server.serving import Server, serving

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP evil.example 127.0.0.1",
    # New browsers ask a person before a page reaches this machine. The server must hold without their help.
    "--disable-features=LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets",
)  # fmt: skip
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

# Each gets the server's address, a key and a name, and gives back whatever the page could learn.
ATTEMPTS = {
    "fetch with the key": """async ([url, key, name]) => {
        const answer = await fetch(`${url}/v1/volumes`, {method: 'POST', headers: {'Hutch-Key': key},
                                                        body: JSON.stringify({name})});
        return answer.status + await answer.text();
    }""",
    "fetch that reads with the key": """async ([url, key, name]) => {
        const answer = await fetch(`${url}/v1/boxes`, {headers: {'Authorization': `Bearer ${key}`}});
        return answer.status + await answer.text();
    }""",
    "fetch as simple as a form": """async ([url, key, name]) => {
        const answer = await fetch(`${url}/v1/volumes`, {method: 'POST', mode: 'no-cors', credentials: 'include',
                                                        body: JSON.stringify({name})});
        return answer.type == 'opaque' ? '' : answer.status + await answer.text();
    }""",
    "fetch with credentials": """async ([url, key, name]) => {
        const answer = await fetch(`${url}/v1/boxes`, {credentials: 'include'});
        return answer.status + await answer.text();
    }""",
    "fetch of what needs no key": """async ([url, key, name]) => {
        const answer = await fetch(`${url}/healthz`);
        return answer.status + await answer.text();
    }""",
    "user and password in the address": """async ([url, key, name]) => {
        const answer = await fetch(url.replace('//', `//admin:${key}@`) + '/v1/boxes').catch(error => null);
        return answer ? answer.status + await answer.text() : '';
    }""",
    "beacon": """async ([url, key, name]) => {
        navigator.sendBeacon(`${url}/v1/volumes`, JSON.stringify({name}));
        await new Promise(done => setTimeout(done, 300));
        return '';
    }""",
    "form": """async ([url, key, name]) => {
        document.body.innerHTML = `<iframe name=target></iframe><form method=post enctype=text/plain target=target
            action="${url}/v1/volumes"><input></form>`;
        document.querySelector('input').name = `{"name": "${name}", "rest": "`;
        document.querySelector('input').value = '"}';
        const loaded = new Promise(done => document.querySelector('iframe').onload = done);
        document.querySelector('form').submit();
        await loaded;
        try { return document.querySelector('iframe').contentDocument.body.innerText; } catch (error) { return ''; }
    }""",
    "frame": """async ([url, key, name]) => {
        document.body.innerHTML = '<iframe></iframe>';
        const loaded = new Promise(done => document.querySelector('iframe').onload = done);
        document.querySelector('iframe').src = `${url}/healthz`;
        await loaded;
        try { return document.querySelector('iframe').contentDocument.body.innerText; } catch (error) { return ''; }
    }""",
    "script": """async ([url, key, name]) => {
        const script = document.createElement('script');
        script.src = `${url}/v1/openapi.json`;
        const ended = new Promise(done => script.onload = script.onerror = event => done(event.type));
        document.body.append(script);
        return await ended == 'load' ? 'loaded' : '';
    }""",
    "event stream": """async ([url, key, name]) => {
        const events = new EventSource(`${url}/v1/events`, {withCredentials: true});
        const seen = await new Promise(done => events.onopen = events.onerror = event => done(event.type));
        events.close();
        return seen == 'open' ? 'open' : '';
    }""",
    "WebSocket": """async ([url, key, name]) => {
        const socket = new WebSocket(url.replace('http', 'ws') + `/v1/boxes/${name}/terminal`);
        const seen = await new Promise(done => socket.onopen = socket.onclose = event => done(event.type));
        return seen == 'open' ? 'open' : '';
    }""",
    "frame without an origin": """async ([url, key, name]) => {
        const frame = document.createElement('iframe');
        frame.sandbox = 'allow-scripts';
        frame.srcdoc = `<script>
            fetch('${url}/v1/volumes', {method: 'POST', headers: {'Hutch-Key': '${key}'},
                                        body: JSON.stringify({name: '${name}'})})
                .then(answer => answer.text()).catch(error => '')
                .then(text => parent.postMessage(text, '*'));
        </` + `script>`;
        const told = new Promise(done => window.onmessage = event => done(event.data));
        document.body.append(frame);
        return await told;
    }""",
}


class Pages(http.server.BaseHTTPRequestHandler):
    """An empty page, for whatever is asked."""

    def do_GET(self) -> None:
        content = b"<!doctype html><body></body>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Not to stderr."""


@pytest.fixture(scope="module")
def page_ports() -> Iterator[tuple[int, int]]:
    """Two web servers: that of a friend and that of somebody else."""
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) for _ in range(2)]
    for each in servers:
        threading.Thread(target=each.serve_forever, daemon=True).start()
    yield servers[0].server_port, servers[1].server_port
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.fixture(scope="module")
def local(page_ports: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that allows the friend's pages."""
    config = tmp_path_factory.mktemp("browser") / "hutch.toml"
    config.write_text(f'[server]\norigins = ["http://127.0.0.1:{page_ports[0]}"]\n')
    with serving(HUTCH_CONFIG=str(config)) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        launched.close()


class Target:
    """What a page could harm: an owner with a key that the page has got hold of."""

    def __init__(self, server: Server, owner: str) -> None:
        self._server = server
        self.key = server.key("admin", owner)
        self.client = server.tcp(self.key)
        self.url: str = server.announcement["url"]
        self.box: str = self.client.good("POST", "/v1/boxes", {"memory_mb": 128})["id"]

    def state(self) -> dict[str, Any]:
        over = self._server.unix(hutch_admin="yes")
        box = self.client.good("GET", f"/v1/boxes/{self.box}")
        return {
            "boxes": sorted(each["id"] for each in over.good("GET", "/v1/boxes")["boxes"]),
            "lease": box["lease"],
            "jobs": self.client.good("GET", f"/v1/boxes/{self.box}/jobs"),
            "volumes": over.good("GET", "/v1/volumes"),
            "keys": over.good("GET", "/v1/keys"),
        }


def _refused(server: Server) -> int:
    return server.log.read_text().count("server: refused")


def _tried(page: Page, name: str, target: Target, *, url: str = "") -> str:
    """What the page learned; an error of the browser is nothing."""
    volume_or_box = target.box if name == "WebSocket" else f"page-{abs(hash(name))}"
    script = f"async given => {{ try {{ return await ({ATTEMPTS[name]})(given); }} catch (error) {{ return ''; }} }}"
    return str(page.evaluate(script, [url or target.url, target.key, volume_or_box]) or "")


@pytest.mark.parametrize("site", ["127.0.0.1", "localhost", "evil.example"])
@pytest.mark.parametrize("cookie", [False, True], ids=["", "with cookies"])
def test_pages_of_others(browser: Browser, local: Server, page_ports: tuple[int, int], site: str, cookie: bool) -> None:
    """Neither another port of this machine, nor another site, nor a frame without an origin: nothing is
    changed and nothing is read, even if the page knows a key, or the browser holds cookies for the server's host."""
    target = Target(local, "browsing")
    context = browser.new_context()
    if cookie:
        names = ("Hutch-Key", "Authorization", "hutch-session")
        context.add_cookies([{"name": name, "value": target.key, "url": target.url} for name in names])
    page = context.new_page()
    page.goto(f"http://{site}:{page_ports[1]}/")
    before, refused = target.state(), _refused(local)
    for name in ATTEMPTS:
        assert _tried(page, name, target) == "", (site, name)
        assert target.state() == before, (site, name)
    assert _refused(local) - refused >= 8, "the server has seen most of them"
    context.close()
    target.client.good("DELETE", f"/v1/boxes/{target.box}")


def test_names_that_were_made_to_point_here(browser: Browser, local: Server) -> None:
    """DNS rebinding. To the browser page and server are one origin; the server knows its own names."""
    target = Target(local, "rebound")
    port = target.url.rpartition(":")[2]
    url = f"http://evil.example:{port}"
    page = browser.new_page()
    # The first answer came from the attacker's own machine; from then on the name leads here.
    page.route(f"{url}/page", lambda route: route.fulfill(body="<body></body>", content_type="text/html"))
    page.goto(f"{url}/page")
    before = target.state()
    for name in ATTEMPTS:
        answer = _tried(page, name, target, url=url)
        if name in ("fetch of what needs no key", "frame"):
            assert '"ok":true' in answer.replace(" ", ""), "the browser does let it through: the server has to refuse"
        else:
            assert answer == "" or answer.startswith("403") or '"code":"refused"' in answer, (name, answer)
            assert target.box not in answer
        assert target.state() == before, name
    page.close()
    target.client.good("DELETE", f"/v1/boxes/{target.box}")


def test_pages_that_are_allowed(browser: Browser, local: Server, page_ports: tuple[int, int]) -> None:
    """`server.origins`: the very same calls work from a page that the configuration names, if it has a key; and from a
    client that is no browser."""
    target = Target(local, "friend")
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{page_ports[0]}/")
    before = target.state()
    assert _tried(page, "fetch with the key", target).startswith("201")
    assert target.state()["volumes"] != before["volumes"]
    assert target.box in _tried(page, "fetch that reads with the key", target)
    answer = _tried(page, "fetch with credentials", target)
    assert target.box not in answer, "without a key an allowed page is nobody"
    page.close()
    assert target.client.call("GET", "/v1/boxes").status == 200
    target.client.good("DELETE", f"/v1/boxes/{target.box}")
