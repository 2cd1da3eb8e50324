"""Apps at a server, seen through their previews; the box's own npm and pip install their packages."""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from tests import proofs
from tests.registries import registry_access
from tests.server.previews.preview_box import Preview
from tests.server.serving import TIMEOUT_SECONDS, Client, Server
from tests.server.test_browser import CHROMIUM, FLAGS

NODE = ("react", "vue", "next", "express")
TEMPLATES = (*NODE, "fastapi", "flask", "static")
INSTALL_SECONDS = 480
STEP_SECONDS = 20
"""A request waits this long, so that the client's own timeout does not decide."""
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")


@contextmanager
def made(client: Client, template: str) -> Iterator[dict[str, Any]]:
    """An app that answers; its box is destroyed at the end."""
    body = {"template": template, "name": f"{template}-app", "spec": registry_access()}
    app = client.good("POST", "/v1/apps", body)
    try:
        yield _answering(client, app["box_id"])
    finally:
        client.call("DELETE", f"/v1/boxes/{app['box_id']}?force=true")


def _answering(client: Client, box: str) -> dict[str, Any]:
    end = time.monotonic() + INSTALL_SECONDS
    while True:
        answer = client.call("POST", f"/v1/apps/{box}/wait", {"timeout_sec": STEP_SECONDS})
        if answer.status == 200:
            return dict(answer.json())
        assert answer.status == 408, answer.body
        assert time.monotonic() < end, answer.body


def _preview(client: Client, app: dict[str, Any]) -> Preview:
    path = f"/v1/boxes/{app['box_id']}"
    return Preview(client, path, client.good("POST", f"{path}/ports/{app['port']}/url", {}))


@contextmanager
def browsing() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser.new_page()
        browser.close()


def _edit(preview: Preview, path: str, old: str, new: str) -> None:
    preview.client.good("POST", f"{preview.path}/files/edit", {"path": path, "old": old, "new": new})


@pytest.mark.slow
def test_a_flask_app_shows_in_its_preview_and_follows_its_files(server: Server) -> None:
    """(S6) Installed in the box by pip, seen through the preview, restarted by itself when its program changes."""
    client = server.tcp(server.key("user", "apps"))
    with made(client, "flask") as app:
        preview = _preview(client, app)
        assert b"<h1>It works</h1>" in preview.visit("GET", "/").body
        assert preview.visit("GET", "/api/hello").json() == {"message": "Hello from Flask"}
        assert [each["state"] for each in client.good("GET", "/v1/apps")["apps"]] == ["running"]
        _edit(preview, "app.py", "Hello from Flask", "Hello again")
        end = time.monotonic() + TIMEOUT_SECONDS
        while (answer := preview.visit("GET", "/api/hello")).status != 200 or b"again" not in answer.body:
            assert time.monotonic() < end, answer
            time.sleep(0.2)


def test_a_repeated_request_makes_one_app(server: Server) -> None:
    """A client that lost the answer sends the request again and gets the same app."""
    client = server.tcp(server.key("user", "repeats"), idempotency_key="the-same")
    body = {"template": "static", "spec": {"memory_mb": 128}}
    first, second = client.good("POST", "/v1/apps", body), client.good("POST", "/v1/apps", body)
    assert (first["box_id"], first["job"]) == (second["box_id"], second["job"])
    assert len(client.good("GET", "/v1/apps")["apps"]) == 1
    client.good("DELETE", f"/v1/boxes/{first['box_id']}?force=true")


def test_two_requests_at_once_make_one_app(server: Server) -> None:
    """The second of two requests with one key waits for the first. It took the first one's app for a failure of its
    own, and ended it."""
    client = server.tcp(server.key("user", "at-once"), idempotency_key="twice")
    body = {"template": "static", "spec": {"memory_mb": 128}}
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: client.good("POST", "/v1/apps", body), range(4)))
    (box,) = {each["box_id"] for each in made}
    assert [each["box_id"] for each in client.good("GET", "/v1/apps")["apps"]] == [box]
    client.good("DELETE", f"/v1/boxes/{box}?force=true")


def test_a_box_without_the_programs_says_so(server: Server) -> None:
    client = server.tcp(server.key("user", "poor"))
    body = {"template": "express", "spec": {"env": {"PATH": "/nowhere"}, "network": "off"}}
    app = client.good("POST", "/v1/apps", body)
    failed = client.call("POST", f"/v1/apps/{app['box_id']}/wait", {"timeout_sec": TIMEOUT_SECONDS})
    assert failed.status == 424, failed.body
    error = failed.json()
    assert (error["code"], error["remedy"]) == ("app_failed", "choose an image that has node, npm")
    assert error["message"].endswith("the image of its box has no node")
    client.good("DELETE", f"/v1/boxes/{app['box_id']}?force=true")


@pytest.mark.slow
@needs_chromium
@needs_npm
def test_a_vite_app_hot_reloads_through_its_preview(server: Server) -> None:
    """(S6) npm makes it in the box. The page changes without being reloaded, so its module came over a WebSocket."""
    client = server.tcp(server.key("user", "vite"))
    with made(client, "react") as app, browsing() as page:
        _hot_reloads(page, _preview(client, app), "src/App.jsx")


def _hot_reloads(page: Page, preview: Preview, source: str) -> None:
    page.goto(preview.facts["url"], timeout=120_000)
    page.get_by_text("clicked 0 times").click(timeout=120_000)
    page.wait_for_selector("button:has-text('clicked 1 times')", timeout=60_000)
    page.evaluate("() => { window.marker = 'same page'; }")
    _edit(preview, source, "It works", "It changed")
    page.wait_for_selector("h1:has-text('It changed')", timeout=120_000)
    assert page.evaluate("() => window.marker") == "same page"


@pytest.mark.proof
@needs_chromium
@needs_npm
def test_next_hot_reloads_through_its_preview(server: Server) -> None:
    """(S6) A page of Next that the server renders follows its file, and the state of the browser stays."""
    client = server.tcp(server.key("user", "next"))
    with made(client, "next") as app, browsing() as page:
        _hot_reloads(page, _preview(client, app), "app/page.jsx")
        assert page.get_by_text("clicked 1 times").is_visible()


@pytest.mark.proof
@pytest.mark.timeout(1800)
@needs_chromium
@needs_npm
def test_all_templates_install_answer_and_show_in_a_preview(server: Server) -> None:
    """(S6) Each is made over HTTP, answers, shows its page in a browser, stops and starts again."""
    client = server.tcp(server.key("user", "templates"))
    shown: dict[str, dict[str, float | int]] = {}
    with browsing() as page:
        for template in TEMPLATES:
            begun = time.monotonic()
            with made(client, template) as app:
                answered = time.monotonic()
                page.goto(_preview(client, app).facts["url"], timeout=120_000)
                page.wait_for_selector("h1:has-text('It works')", timeout=120_000)
                path = f"/v1/apps/{app['box_id']}"
                assert client.good("POST", f"{path}/stop")["state"] == "stopped"
                client.good("POST", f"{path}/start")
                again = time.monotonic()
                _answering(client, app["box_id"])
                shown[template] = {
                    "port": app["port"],
                    "installed_and_answered_sec": round(answered - begun, 1),
                    "started_again_sec": round(time.monotonic() - again, 1),
                }
    assert set(shown) == {each["name"] for each in client.good("GET", "/v1/app-templates")["templates"]}
    proofs.write("apps", templates=shown)
