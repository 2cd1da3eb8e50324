"""The dashboard for everybody: screen readers, keyboard alone, all widths, two languages, a server that restarts."""

import gzip
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from hutch.server.dashboard.pages import load
from tests.dashboard.sample import Sample, asking
from tests.dashboard.test_pages import PAGES, TABS
from tests.dashboard.visitor import WAIT_MS, Visitor, press, visiting
from tests.proofs import ROOT
from tests.server.serving import Server, until

AXE = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
FIRST_LOAD_BYTES = 250_000

expect.set_options(timeout=WAIT_MS)


def _settled(page: Page) -> None:
    page.locator("main h1").first.wait_for()
    expect(page.locator(".loading")).to_have_count(0)


def test_axe_finds_no_serious_problem(visitor: Visitor, sample: Sample) -> None:
    """Names, roles, contrast and structure hold on every page, and contrast also in the dark theme."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed (tools/dashboard.sh)")
    page = visitor.sign_in(sample.admin)
    found: list[str] = []
    # A terminal takes the lease, so it is opened in a box of its own.
    own = sample.server.tcp(sample.admin).good("POST", "/v1/boxes", {})["id"]
    boxed = (*(f"/boxes/{sample.box}{tab}" for tab in TABS), f"/boxes/{own}/terminal")
    dialogs = {"/boxes": "New box", "/apps": "New app", "/keys": "New key", "/skills": "Install a skill"}
    for path in (*PAGES, *boxed, "/skills/greeting", "/mcp-servers/clock"):
        visitor.go(path)
        _settled(page)
        if path in dialogs:
            press(page, dialogs[path])
            page.get_by_role("dialog").wait_for()
            expect(page.locator(".loading")).to_have_count(0)
        # By the debugger, which the page's policy does not bind.
        visitor.context.new_cdp_session(page).send("Runtime.evaluate", {"expression": AXE.read_text()})
        found += _serious(page, f"{path} light", "{resultTypes: ['violations']}")
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        found += _serious(page, f"{path} dark", "{resultTypes: ['violations'], runOnly: ['color-contrast']}")
    assert found == []


def _serious(page: Page, where: str, options: str) -> list[str]:
    report = page.evaluate(f"axe.run(document, {options})")
    return [
        f"{where}: {each['id']} {node['target']}"
        for each in report["violations"] if each["impact"] in ("serious", "critical") for node in each["nodes"]
    ]  # fmt: skip


def test_by_keyboard_alone(visitor: Visitor, sample: Sample) -> None:
    """Find a box by the palette, open its terminal, run a command; make and destroy a box without a mouse."""
    page = visitor.go("/")
    page.get_by_label("Key").wait_for()
    page.keyboard.type(sample.user)
    page.keyboard.press("Enter")
    _settled(page)
    page.keyboard.press("Control+k")
    page.keyboard.type("terminal: research")
    page.get_by_role("option", name=re.compile("research")).first.wait_for()
    page.keyboard.press("Enter")
    page.locator("[data-phase=open]").wait_for()
    page.keyboard.type("echo by-$((1 + 1))-hands\n")
    expect(page.locator(".screen")).to_contain_text("by-2-hands")
    visitor.go("/boxes")
    _settled(page)
    page.get_by_role("button", name="New box").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.type("keyed")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/boxes/[a-z0-9]{20}"))
    expect(page.locator(".bar .state")).to_have_text("running")
    page.get_by_role("button", name="Destroy…").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Destroy…").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Destroy").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("This box is gone.")).to_be_visible()


def test_the_palette_before_the_page(visitor: Visitor, sample: Sample) -> None:
    """Ctrl K pressed while the page is still asking who is signed in opens the palette with the page."""
    page = visitor.sign_in(sample.observer)
    held: list[Route] = []
    page.route("**/v1/dashboard/session", lambda route: held.append(route))
    with page.expect_request("**/v1/dashboard/session"):
        visitor.go("/boxes")
    page.keyboard.press("Control+k")
    assert page.get_by_role("dialog").count() == 0
    until(lambda: page.evaluate("true") and held)[0].continue_()
    page.get_by_role("option", name=re.compile("research")).first.wait_for()


def test_files_and_answers_by_keyboard_alone(visitor: Visitor, sample: Sample) -> None:
    """With Tab and Enter only: skip the navigation, go to a box, open and edit a file; answer an agent's question."""
    page = visitor.sign_in(sample.user, "/boxes")
    page.get_by_role("link", name="research").wait_for()
    _tab_to(page, "Skip to the content")
    page.keyboard.press("Enter")
    _tab_to(page, "research")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/boxes/{sample.box}$"))
    _tab_to(page, "Files")
    page.keyboard.press("Enter")
    page.get_by_role("button", name=re.compile("^data")).wait_for()
    _tab_to(page, "data")
    page.keyboard.press("Enter")
    page.get_by_role("button", name=re.compile("^notes.txt")).wait_for()
    _tab_to(page, "notes.txt")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Edit", exact=True)).to_be_enabled()
    _tab_to(page, "Edit")
    page.keyboard.press("Enter")
    page.locator("textarea.editor").wait_for()
    _tab_to(page, "", tag="TEXTAREA")
    page.keyboard.press("Control+End")
    page.keyboard.type("four")
    page.keyboard.press("Shift+Tab")
    _tab_to(page, "Save", back=True)
    page.keyboard.press("Enter")
    expect(page.locator("pre.code")).to_contain_text("four")
    with asking(sample.server.tcp(sample.user), "", agent="typist", what="make release"):
        visitor.go("/approvals")
        question = page.locator(".question", has_text="make release")
        question.wait_for()
        question.get_by_role("button", name="Deny").focus()
        page.keyboard.press("Enter")
        expect(question).to_have_count(0)


def _tab_to(page: Page, text: str, *, tag: str = "", back: bool = False) -> None:
    """Press Tab until an element whose text begins like this has the focus."""
    here = "[document.activeElement.tagName, document.activeElement.textContent]"
    for _ in range(80):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        name, shown = page.evaluate(here)
        if name != "BODY" and name != "MAIN" and (name == tag if tag else shown.strip().startswith(text)):
            return
    raise AssertionError(f"Tab does not reach {text or tag}")


def test_widths_and_languages(browser: Browser, sample: Sample) -> None:
    """From 360 to 1920 pixels no page scrolls sideways; in Chinese no English word of ours is left over."""
    with visiting(browser, sample.server, locale="zh-CN") as visitor:
        page = visitor.go("/")
        page.get_by_label("密钥").fill(sample.admin)
        page.get_by_role("button", name="登录").click()
        page.get_by_role("navigation", name="页面").wait_for()
        for path in (*PAGES, *(f"/boxes/{sample.box}{tab}" for tab in TABS)):
            visitor.go(path)
            _settled(page)
            for width in (360, 1024, 1920):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            assert not re.search(
                r"[A-Za-z]", page.locator("main h1").first.inner_text().replace("MCP", "").replace("research", "")
            )
        assert page.locator("html").get_attribute("lang") == "zh-CN"
        visitor.check()


def test_every_text_has_its_translation() -> None:
    """TypeScript refuses a text without one; and no translation is empty or left in English."""
    table = (ROOT / "dashboard" / "src" / "i18n" / "zh.ts").read_text()
    rows = re.findall(r'^  (?:"((?:[^"\\]|\\.)*)"|(\w+)): "((?:[^"\\]|\\.)*)",$', table, flags=re.M)
    assert len(rows) > 300
    assert [row for row in rows if not re.search(r"[\u4e00-\u9fff]", row[2])] == []
    for quoted, plain, shown in rows:
        assert set(re.findall(r"\{\w+\}", quoted or plain)) == set(re.findall(r"\{\w+\}", shown)), quoted


def test_a_server_that_restarts_under_an_open_page(browser: Browser) -> None:
    """The page says that it is disconnected, keeps what it showed, and is live again by itself, still signed in."""
    if not load():
        pytest.skip("the dashboard is not built (tools/dashboard.sh)")
    server = Server()
    try:
        server.start()
        key, port = server.key("user", "restart"), server.announcement["url"].rpartition(":")[2]
        client = server.tcp(key, hutch_session="dashboard-" + key.split("_")[1])
        box = client.good("POST", "/v1/boxes", {"name": "stays", "memory_mb": 64})["id"]
        with visiting(browser, server) as visitor:
            page = visitor.sign_in(key, f"/boxes/{box}/terminal")
            page.locator("[data-phase=open]").wait_for()
            server.end()
            expect(page.get_by_text("Disconnected")).to_be_visible()
            expect(page.get_by_role("heading", name="stays")).to_be_visible()
            server.start("--port", port)
            expect(page.get_by_text("Disconnected")).to_have_count(0)
            expect(page.locator(".bar .state")).to_have_text("running")
            page.get_by_role("button", name="Open another").click()
            page.locator("[data-phase=open]").wait_for()
            visitor.errors = [each for each in visitor.errors if "WebSocket" not in each]
            visitor.check()
    finally:
        server.close()


def test_what_is_loaded_first_is_small(sample: Sample) -> None:
    """The page, its scripts, its style and its font weigh at most 250 KB compressed."""
    assets = load()
    page = assets["/index.html"].data.decode()
    first = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page)
    assert any(name.endswith(".js") for name in first)
    (style,) = (assets[name].data.decode() for name in first if name.endswith(".css"))
    first += re.findall(r"url\((/assets/[^)]+)\)", style)
    assert any(name.endswith(".woff2") for name in first)
    assert sum(len(assets[name].packed) for name in ("/index.html", *first)) < FIRST_LOAD_BYTES


def test_the_wheel_carries_the_dashboard(sample: Sample, tmp_path: Path) -> None:
    """What pip installs holds the built page and the licences of what it is made of; pip needs no Node."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if "dashboard/static/" in name}
        licences = packed.read("hutch/server/dashboard/static/THIRD_PARTY.txt").decode()
    assert {f"hutch/server/dashboard/static{path}" for path in load()} <= names
    for part in ("react", "react-dom", "@xterm/xterm", "SIL OPEN FONT LICENSE"):
        assert part in licences
    assert len(gzip.compress(licences.encode())) > 500
