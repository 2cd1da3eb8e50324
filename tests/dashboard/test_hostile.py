"""Whatever a box says stays text: names, files, output and pages of a box cannot run script or use the session."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.dashboard.sample import Sample, asking
from tests.dashboard.visitor import WAIT_MS, Visitor
from tests.server.serving import Client, until

EVIL = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
PAGE = """<h1>evil page</h1><script>
const told = [];
const note = (name, value) => { told.push(name + "=" + value); document.title = told.join(";"); };
(async () => {
  try { note("cookie", document.cookie || "none"); } catch { note("cookie", "refused"); }
  try { note("parent", parent.document.title); } catch { note("parent", "refused"); }
  for (const path of ["/v1/boxes", "/v1/dashboard/session"]) {
    try { note(path, (await fetch(path, {credentials: "include"})).status); } catch { note(path, "refused"); }
  }
  try { top.location = "/keys"; } catch { note("top", "refused"); }
  document.body.append(Object.assign(document.createElement("p"), {id: "told", textContent: told.join(";")}));
})();
</script>"""

expect.set_options(timeout=WAIT_MS)


@pytest.fixture
def box(sample: Sample) -> Iterator[tuple[Client, str]]:
    client = sample.server.tcp(sample.user, hutch_session="dashboard-" + sample.user.split("_")[1])
    made = client.good("POST", "/v1/boxes", {"memory_mb": 128, "labels": {"scope": EVIL, "note": EVIL}})["id"]
    yield client, made
    client.call("DELETE", f"/v1/boxes/{made}?force=true")


def test_text_of_a_box_stays_text(visitor: Visitor, sample: Sample, box: tuple[Client, str]) -> None:
    """Markup in labels, file names, file content, job output, terminal output and questions is shown, never run."""
    client, box_id = box
    path = f"/v1/boxes/{box_id}"
    client.good("POST", f"{path}/exec", {"command": ["touch", f"/workspace/{EVIL.replace('/', '_')}"]})
    client.good("PUT", f"{path}/files/content?path=page.html", EVIL.encode())
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hacked=1'>{EVIL}</svg>"
    client.good("PUT", f"{path}/files/content?path=drawn.svg", svg.encode())
    job = client.good("POST", f"{path}/jobs", {"command": ["echo", EVIL], "name": EVIL[:100]})["id"]
    page = visitor.sign_in(sample.user, f"/boxes/{box_id}")
    expect(page.get_by_text("onerror").first).to_be_visible()
    visitor.go(f"/boxes/{box_id}/files")
    for name in ("page.html", "drawn.svg"):
        page.get_by_role("button", name=re.compile(f"^{name}")).first.click()
        page.locator(".file pre, .file img").first.wait_for()
    visitor.go(f"/boxes/{box_id}/jobs")
    page.locator(".choices button").first.click()
    expect(page.locator(".job pre.output")).to_contain_text("onerror")
    assert job
    visitor.go(f"/boxes/{box_id}/terminal")
    page.locator("[data-phase=open]").wait_for()
    page.locator(".screen textarea").focus()
    page.keyboard.type("cat page.html\n")
    expect(page.locator(".screen")).to_contain_text("onerror")
    visitor.go("/boxes")
    expect(page.locator(".rows")).to_contain_text("onerror")
    with asking(client, box_id, agent=EVIL[:60], what=EVIL, reason=EVIL):
        visitor.go("/approvals")
        expect(page.locator(".question").last).to_contain_text("onerror")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img[src=x], main script").count() == 0


def test_a_page_in_a_preview_has_no_session(visitor: Visitor, sample: Sample, box: tuple[Client, str]) -> None:
    """A hostile page in a preview reads neither cookie nor dashboard, calls no API, and moves no window (Lesson 32)."""
    client, box_id = box
    client.good("PUT", f"/v1/boxes/{box_id}/files/content?path=index.html", PAGE.encode())
    client.good("POST", f"/v1/boxes/{box_id}/jobs", {"command": "exec python3 -m http.server 8124"})
    until(lambda: client.good("GET", f"/v1/boxes/{box_id}/ports")["ports"])
    page = visitor.sign_in(sample.user, f"/boxes/{box_id}/ports")
    page.get_by_role("button", name="Preview", exact=True).click()
    answer = page.frame_locator("iframe.preview").locator("#told").inner_text()
    facts = dict(each.split("=", 1) for each in answer.split(";"))
    assert facts["cookie"] in ("none", "refused") and facts["parent"] == "refused"
    assert facts["/v1/boxes"] == "refused" and facts["/v1/dashboard/session"] == "refused"
    assert page.url.endswith("/ports")
    # The browser reports what it refused; nothing else may have gone wrong.
    visitor.errors = [each for each in visitor.errors if "CORS" not in each and "navigat" not in each.lower()]


def test_a_large_file_is_shown_in_part(visitor: Visitor, sample: Sample, box: tuple[Client, str]) -> None:
    """A file of gigabytes opens at once: only its beginning is read."""
    client, box_id = box
    client.good(
        "POST",
        f"/v1/boxes/{box_id}/exec",
        {"command": "head -c 600000 /dev/zero | tr '\\\\0' a > big.txt; truncate -s 2G big.txt"},
    )
    page = visitor.sign_in(sample.user, f"/boxes/{box_id}/files")
    page.get_by_role("button", name=re.compile("^big.txt")).first.click()
    expect(page.get_by_text("Only the first 524 KB of 2.1 GB are shown.")).to_be_visible()
    expect(page.get_by_role("button", name="Edit", exact=True)).to_be_disabled()


def test_a_box_that_dies_under_its_page(visitor: Visitor, sample: Sample, box: tuple[Client, str]) -> None:
    """The page says that the box is gone and why, on every tab, and keeps its records."""
    client, box_id = box
    page = visitor.sign_in(sample.user, f"/boxes/{box_id}/terminal")
    page.locator("[data-phase=open]").wait_for()
    client.good("DELETE", f"/v1/boxes/{box_id}?force=true")
    expect(page.get_by_text("This box is gone.")).to_be_visible()
    page.get_by_role("navigation", name="Parts of this box").get_by_role("link", name="Events").click()
    expect(page.locator(".events li").first).to_be_visible()
    visitor.go(f"/boxes/{box_id}")
    expect(page.get_by_text(re.compile("destroyed|gone"))).to_be_visible()
