"""A real Chromium on a real server: signs in as each role, and notes every console error and every foreign request."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.server.serving import Server, until

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
WAIT_MS = 60_000
NOTE_TOASTS = """window.toasts = [];
new MutationObserver((changes) => changes.forEach((change) => change.addedNodes.forEach((node) => {
  if (node instanceof Element && node.classList.contains("toast")) window.toasts.push(node.textContent);
}))).observe(document, {childList: true, subtree: true});"""


@dataclass
class Visitor:
    """One browser profile and what went wrong in it."""

    server: Server
    context: BrowserContext
    page: Page
    errors: list[str] = field(default_factory=list)
    """Errors of the console and uncaught ones, but for refused requests, which a page shows itself."""
    foreign: list[str] = field(default_factory=list)
    """Requests that left the dashboard's origin."""

    def __post_init__(self) -> None:
        self.url = str(self.server.announcement["url"])

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._check(request.url))

    def _note(self, text: str) -> None:
        if not text.startswith("Failed to load resource"):
            self.errors.append(text)

    def _check(self, url: str) -> None:
        if urlsplit(url).scheme in ("http", "https", "ws", "wss") and not url.split("//")[1].startswith(
            self.url.split("//")[1]
        ):
            self.foreign.append(url)

    def sign_in(self, key: str, path: str = "/") -> Page:
        self.page.goto(self.url + path)
        self.page.get_by_label("Key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("navigation", name="Pages").wait_for()
        return self.page

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def check(self) -> None:
        """Nothing went wrong in the page, and nothing left the origin."""
        assert self.errors == []
        assert self.foreign == []


def press(page: Page, name: str) -> None:
    """Press the first button of exactly this name."""
    page.get_by_role("button", name=name, exact=True).first.click()


def confirm(page: Page, name: str) -> None:
    """Press the button of the open dialog that does it, which closes the dialog unless there is an error."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=name, exact=True).click()
    refused = dialog.get_by_role("alert")
    page.locator("dialog [role=alert], body:not(:has(dialog[open]))").first.wait_for(state="attached")
    assert refused.count() == 0, refused.inner_text()
    dialog.wait_for(state="detached")


def expect_toast(page: Page, text: str) -> None:
    """A message in the corner said this, whether or not it has vanished meanwhile."""
    until(lambda: any(text in each for each in page.evaluate("window.toasts")), WAIT_MS / 1000)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: Browser, server: Server, **options: object) -> Iterator[Visitor]:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, "locale": "en-GB", **options})  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(NOTE_TOASTS)
    visitor = Visitor(server, context, context.new_page())
    visitor.watch(visitor.page)
    try:
        yield visitor
    finally:
        context.close()
