"""Previews in a real browser: they work, and a hostile page in one reaches no other and not the server."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.server.previews.preview_box import Preview, previewed, start_app
from tests.server.serving import Client, Server
from tests.server.test_browser import ATTEMPTS, CHROMIUM, FLAGS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@pytest.fixture(scope="module")
def owner(server: Server) -> Client:
    return server.tcp(server.key("user", "browsing"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def previews(owner: Client) -> Iterator[tuple[Preview, Preview]]:
    """One whose page is hostile, and one that has something to lose."""
    with previewed(owner) as hostile, previewed(owner) as victim:
        yield hostile, victim


def _caught(script: str) -> str:
    """A script that learns nothing where it is refused."""
    return f"async (given) => {{ try {{ return await ({script})(given); }} catch (error) {{ return ''; }} }}"


def visited(context: BrowserContext, preview: Preview) -> Page:
    """A page at the preview, where the browser was led without the token."""
    page = context.new_page()
    page.goto(preview.facts["url"])
    assert page.url == f"{preview.origin}/"
    assert page.inner_text("#hello") == "hello from the box"
    return page


def test_a_page_its_websocket_and_its_events(context: BrowserContext, previews: tuple[Preview, Preview]) -> None:
    """A preview is a whole place for a page: WebSocket echo, server-sent events, cookies and storage (S6)."""
    page = visited(context, previews[0])
    echoed = page.evaluate(
        """async () => {
            const socket = new WebSocket(location.origin.replace('http', 'ws') + '/ws', ['vite-hmr']);
            await new Promise((done, failed) => { socket.onopen = done; socket.onerror = failed; });
            const got = new Promise(done => socket.onmessage = event => done(event.data));
            socket.send('over the socket');
            return [socket.protocol, await got];
        }"""
    )
    assert echoed == ["vite-hmr", "over the socket"]
    events = page.evaluate(
        """async () => {
            const source = new EventSource('/sse');
            const seen = [];
            await new Promise(done => source.onmessage = event => {
                seen.push(event.data);
                if (seen.length == 3) done();
            });
            source.close();
            return seen;
        }"""
    )
    assert events == ["0", "1", "2"]
    kept = page.evaluate(
        "() => { localStorage.a = 1; document.cookie = 'own=2'; return [localStorage.a, document.cookie]; }"
    )
    assert kept == ["1", "own=2"]
    answer = page.evaluate("async () => (await fetch('/echo')).json()")
    assert {name.lower(): value for name, value in dict(answer["headers"]).items()}["cookie"] == "own=2"


# Each gets the victim's origin, and gives back whatever the hostile page could learn or do.
CROSSINGS = {
    "fetch": "async (victim) => (await fetch(victim + '/echo', {credentials: 'include'})).text()",
    "fetch as simple as a form": """async (victim) => {
        await fetch(victim + '/crossed', {method: 'POST', mode: 'no-cors', credentials: 'include', body: 'x'});
        return '';
    }""",
    "image": """async (victim) => {
        const image = new Image();
        image.src = victim + '/crossed';
        await new Promise(done => image.onload = image.onerror = done);
        return '';
    }""",
    "script": """async (victim) => {
        const script = document.createElement('script');
        script.src = victim + '/crossed';
        const ended = new Promise(done => script.onload = script.onerror = event => done(event.type));
        document.body.append(script);
        return await ended == 'load' ? 'loaded' : '';
    }""",
    "WebSocket": """async (victim) => {
        const socket = new WebSocket(victim.replace('http', 'ws') + '/crossed');
        const seen = await new Promise(done => socket.onopen = socket.onclose = event => done(event.type));
        return seen == 'open' ? 'open' : '';
    }""",
    "events": """async (victim) => {
        const source = new EventSource(victim + '/crossed', {withCredentials: true});
        const seen = await new Promise(done => source.onopen = source.onerror = event => done(event.type));
        source.close();
        return seen == 'open' ? 'open' : '';
    }""",
    "frame": """async (victim) => {
        const frame = document.createElement('iframe');
        const loaded = new Promise(done => frame.onload = done);
        frame.src = victim + '/';
        document.body.append(frame);
        await loaded;
        try { return frame.contentDocument.body.innerText; } catch (error) { return ''; }
    }""",
    "window": """async (victim) => {
        const opened = window.open(victim + '/');
        await new Promise(done => setTimeout(done, 500));
        try { return opened.document.body.innerText + opened.localStorage.secret; } catch (error) { return ''; }
    }""",
    "service worker": """async (victim) => {
        await navigator.serviceWorker.register(victim + '/');
        return 'registered';
    }""",
    "storage": "async (victim) => [localStorage.secret, sessionStorage.secret].join('').replaceAll('undefined', '')",
}


@pytest.fixture(scope="module")
def attacker(browser: Browser, previews: tuple[Preview, Preview]) -> Iterator[Page]:
    """A page at the hostile preview, in a browser where the other preview's page has secrets. Tests share it, because
    a browser profile of its own would cost each a second of CPU time; each loads its page anew."""
    hostile, victim = previews
    context = browser.new_context()
    page = visited(context, victim)
    page.evaluate(
        "() => { localStorage.secret = sessionStorage.secret = 'stolen'; document.cookie = 'secret=stolen'; }"
    )
    yield visited(context, hostile)
    context.close()


@pytest.mark.parametrize("name", CROSSINGS)
def test_a_hostile_page_reaches_no_other_preview(
    attacker: Page, previews: tuple[Preview, Preview], name: str
) -> None:  # fmt: skip
    """It reads nothing of the other, and no request of it reaches the other's program with the other's rights."""
    hostile, victim = previews
    victim.visit("GET", "/seen")
    attacker.goto(f"{hostile.origin}/")
    learned = attacker.evaluate(_caught(CROSSINGS[name]), victim.origin)
    assert not learned
    seen = json.loads(victim.visit("GET", "/seen").body)
    assert "/crossed" not in str(seen)
    assert "/echo" not in str(seen)


def test_cookies_do_not_cross(context: BrowserContext, previews: tuple[Preview, Preview]) -> None:
    """A page that sets cookies for the whole domain neither logs a visitor out elsewhere nor reaches the program."""
    hostile, victim = previews
    visited(context, victim)
    attacker = visited(context, hostile)
    attacker.evaluate(
        "() => { for (const domain of ['localhost', '.localhost', location.hostname])"
        " document.cookie = `hutch_preview=bad; path=/; domain=${domain}`;"
        " document.cookie = 'tossed=1; domain=localhost'; }"
    )
    page = context.new_page()
    page.goto(f"{victim.origin}/")
    assert page.inner_text("#hello") == "hello from the box"
    answer = page.evaluate("async () => (await fetch('/echo')).json()")
    assert "tossed" not in str(answer)
    assert page.evaluate("() => document.cookie").find("hutch_preview") == -1


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_hostile_page_cannot_use_the_server(
    attacker: Page, previews: tuple[Preview, Preview], owner: Client, name: str
) -> None:
    """Not even a page that knows a key: neither from an origin of its own, nor from the path form (Lesson 32)."""
    key = owner.headers["authorization"].split()[1]
    for start in (previews[0].facts["url"], previews[0].facts["path_url"]):
        attacker.goto(start)
        for url in (f"http://127.0.0.1:{previews[0].address[1]}", f"http://localhost:{previews[0].address[1]}"):
            learned = attacker.evaluate(_caught(ATTEMPTS[name]), [url, key, "stolen"])
            assert not learned or learned.startswith("403"), (start, url)
    assert "stolen" not in [each["name"] for each in owner.good("GET", "/v1/volumes")["volumes"]]


def test_the_path_form_has_an_origin_of_nobody(context: BrowserContext, previews: tuple[Preview, Preview]) -> None:
    """Without wildcard names a page shares the server's host name, so it gets no storage, no cookies, no origin."""
    preview = previews[0]
    page = context.new_page()
    server = f"http://127.0.0.1:{preview.address[1]}"
    page.goto(f"{server}/healthz")
    page.evaluate("() => { localStorage.secret = 'stolen'; document.cookie = 'secret=stolen'; }")
    page.goto(preview.facts["path_url"])
    assert page.inner_text("#hello") == "hello from the box"
    assert page.evaluate("() => window.origin") == "null"
    for script in ("localStorage.secret", "document.cookie", "sessionStorage.secret", "indexedDB.databases()"):
        assert not page.evaluate(f"async () => {{ try {{ return await {script}; }} catch (error) {{ return ''; }} }}")
    answer = page.evaluate("async () => (await fetch('echo?a=1', {headers: {'X-Own': '1'}})).json()")
    seen = {name.lower(): value for name, value in answer["headers"]}
    assert (answer["target"], seen["x-own"], seen["host"]) == ("/echo?a=1", "1", "localhost:8000")
    assert not {"cookie", "origin", "referer"} & set(seen)
    echoed = page.evaluate(
        """async () => {
            const socket = new WebSocket(location.href.replace('http', 'ws') + 'ws');
            await new Promise((done, failed) => { socket.onopen = done; socket.onerror = failed; });
            const got = new Promise(done => socket.onmessage = event => done(event.data));
            socket.send('by path');
            return await got;
        }"""
    )
    assert echoed == "by path"


def test_a_frame_of_another_site_may_show_a_preview(
    context: BrowserContext, previews: tuple[Preview, Preview]
) -> None:  # fmt: skip
    """A dashboard shows a preview in a frame: the token of its address becomes a cookie of that frame alone."""
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{previews[0].address[1]}/healthz")
    page.set_content(f'<iframe src="{previews[0].facts["url"]}"></iframe>')
    frame = page.frame_locator("iframe")
    assert frame.locator("#hello").inner_text() == "hello from the box"


def test_the_page_of_a_closed_port_becomes_the_program(context: BrowserContext, owner: Client) -> None:
    """A visitor who waits at a closed port sees the program when it listens, without doing anything."""
    with previewed(owner, start=False) as preview:
        page = context.new_page()
        page.goto(preview.facts["url"])
        assert "Nothing answers on this port yet" in page.inner_text("h1")
        start_app(owner, preview.path)
        page.wait_for_selector("#hello", timeout=60_000)
