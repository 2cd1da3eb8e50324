"""Web applications in boxes, made, seen, stopped and removed in the browser."""

import re

from playwright.sync_api import expect

from tests.dashboard.sample import Sample
from tests.dashboard.visitor import WAIT_MS, Visitor, confirm, press

expect.set_options(timeout=WAIT_MS)


def test_an_app_from_its_template_to_its_end(visitor: Visitor, sample: Sample) -> None:
    """An app is made from a template, shown once it answers, stopped, started and removed (S6)."""
    page = visitor.sign_in(sample.user, "/apps")
    expect(page.get_by_text("No app yet.")).to_be_visible()
    press(page, "New app")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("radio")).to_have_count(7)
    dialog.get_by_role("radio", name=re.compile("Static", re.IGNORECASE)).check()
    dialog.get_by_label("Name").fill("brochure")
    confirm(page, "Create")
    page.wait_for_url(re.compile("/apps/[a-z0-9]{20}$"))
    expect(page.frame_locator("iframe.preview").locator("h1").first).to_be_visible()
    expect(page.locator(".panel .state").first).to_have_text("running")
    expect(page.locator(".job pre.output")).not_to_be_empty()
    press(page, "Stop")
    expect(page.locator(".panel .state").first).to_have_text("stopped")
    press(page, "Start")
    expect(page.locator(".panel .state").first).to_have_text("running")
    expect(page.frame_locator("iframe.preview").locator("h1").first).to_be_visible()
    press(page, "Remove")
    confirm(page, "Remove")
    expect(page.get_by_text("No app yet.")).to_be_visible()


def test_observers_only_see_apps(visitor: Visitor, sample: Sample) -> None:
    page = visitor.sign_in(sample.observer, "/apps")
    expect(page.get_by_role("button", name="New app")).to_be_disabled()
