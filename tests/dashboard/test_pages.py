"""Every page and action in a real browser on a real server, as admin, user and observer."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.dashboard.sample import Sample, asking
from tests.dashboard.visitor import WAIT_MS, Visitor, confirm, expect_toast, press
from tests.server.serving import until

PAGES = ("/", "/boxes", "/apps", "/approvals", "/skills", "/mcp-servers", "/tools", "/profiles", "/audit", "/keys")
TABS = ("", "/jobs", "/files", "/changes", "/ports", "/notebook", "/events", "/receipts")

expect.set_options(timeout=WAIT_MS)


@pytest.mark.parametrize("role", ["admin", "user", "observer"])
def test_every_page_opens(visitor: Visitor, sample: Sample, role: str) -> None:
    """Each role sees each page, and keys are for admins only (P15)."""
    page = visitor.sign_in(getattr(sample, role))
    for path in (*PAGES, *(f"/boxes/{sample.box}{tab}" for tab in TABS)):
        visitor.go(path)
        page.locator("main h1").first.wait_for()
        expect(page.locator(".loading")).to_have_count(0)
        assert page.get_by_text("Something went wrong").count() == 0, path
    visitor.go("/keys")
    refused = page.get_by_text("Only administrators see keys.")
    expect(refused).to_have_count(0 if role == "admin" else 1)
    assert page.get_by_role("navigation", name="Pages").get_by_role("link", name="Keys").count() == (role == "admin")


def test_the_status_card(visitor: Visitor, sample: Sample) -> None:
    """Connected, engine, number of boxes; the box that ends soon counts down, amber under a minute (B41)."""
    page = visitor.sign_in(sample.user)
    card = page.locator(".status-card")
    expect(card).to_contain_text("yes, live")
    expect(card).to_contain_text("native")
    short = sample.server.tcp(sample.user).good("POST", "/v1/boxes", {"name": "short", "memory_mb": 64, "ttl_sec": 59})
    ending = page.locator("li", has_text="short").locator(".countdown.soon").first
    first = ending.inner_text()
    expect(ending).not_to_have_text(first)
    sample.server.tcp(sample.user).call("DELETE", f"/v1/boxes/{short['id']}?force=true")
    expect(page.get_by_role("link", name="short", exact=True)).to_have_count(0)


def test_charts_begin_with_a_past(visitor: Visitor, sample: Sample) -> None:
    """A page that opens now shows what the server did before anybody watched."""

    def samples() -> list[dict[str, float]]:
        connection, response = sample.server.tcp(sample.admin).open("GET", "/v1/dashboard/live")
        try:
            answer = next(line for line in iter(response.readline, b"") if line.startswith(b"data: "))
            found: list[dict[str, float]] = json.loads(answer[6:])["numbers"]["samples"]
            return found
        finally:
            connection.close()

    past = until(lambda: found if len(found := samples()) > 3 else [])
    assert sum(each["requests"] for each in past) > 0 and all(each["requests"] >= 0 for each in past)
    assert any(each["request_ms"] for each in past)
    page = visitor.sign_in(sample.admin)
    drawn = page.locator(".chart polyline").first
    drawn.wait_for(state="attached")
    assert len((drawn.get_attribute("points") or "").split()) > 3


def test_the_life_of_a_box(visitor: Visitor, sample: Sample) -> None:
    """A box made here shows what policy makes of it, then `creating`, and is paused, resumed, renamed and destroyed,
    each action guarded by its state (P5, P15)."""
    page = visitor.sign_in(sample.user, "/boxes")
    press(page, "New box")
    page.get_by_label("Name").fill("made-here")
    page.get_by_label("Memory (MB)").fill("96")
    expect(page.get_by_text("What policy makes of it")).to_be_visible()
    expect(page.locator(".plan")).to_contain_text("96 MB")
    press(page, "Create")
    page.wait_for_url(re.compile(r"/boxes/[a-z0-9]{20}$"))
    expect(page.locator(".bar .state")).to_have_text("running")
    press(page, "Pause")
    expect(page.locator(".bar .state")).to_have_text("paused")
    assert page.get_by_role("button", name="Pause", exact=True).count() == 0
    press(page, "Resume")
    expect(page.locator(".bar .state")).to_have_text("running")
    press(page, "Change…")
    page.get_by_role("dialog").get_by_label("Name").fill("renamed")
    page.get_by_role("dialog").get_by_label("Idle timeout (s)").fill("700")
    confirm(page, "Save")
    expect(page.get_by_role("heading", name="renamed")).to_be_visible()
    expect(page.get_by_text("11 min 40 s").first).to_be_visible()
    press(page, "Make default")
    expect_toast(page, "It is the default box now")
    press(page, "Renew")
    press(page, "Release")
    expect(page.locator(".facts")).to_contain_text(["nobody"])
    press(page, "Destroy…")
    confirm(page, "Destroy")
    expect(page.get_by_text("This box is gone.")).to_be_visible()
    expect(page.locator(".bar .state")).to_have_text("gone")


def test_a_held_box_is_taken_over(visitor: Visitor, sample: Sample) -> None:
    """A box that an agent holds cannot be changed until it is taken over, which asks first (P15)."""
    agent = sample.server.tcp(sample.user, hutch_session="agent-9")
    box = agent.good("POST", "/v1/boxes", {"name": "held", "memory_mb": 64})["id"]
    page = visitor.sign_in(sample.user, f"/boxes/{box}")
    pause = page.get_by_role("button", name="Pause", exact=True)
    expect(pause).to_be_disabled()
    assert "agent-9" in (pause.get_attribute("title") or "")
    press(page, "Take over")
    confirm(page, "Take over")
    expect(pause).to_be_enabled()
    assert agent.call("POST", f"/v1/boxes/{box}/exec", {"command": "true"}).status == 409
    sample.server.unix(hutch_admin="yes").good("DELETE", f"/v1/boxes/{box}?force=true")


def test_observers_change_nothing(visitor: Visitor, sample: Sample) -> None:
    """An observer's page offers no change, and looking at everything extends no clock and takes no lease (P8)."""
    admin = sample.server.unix(hutch_admin="yes")
    before = admin.good("GET", f"/v1/boxes/{sample.box}")
    page = visitor.sign_in(sample.observer, f"/boxes/{sample.box}")
    for name in ("Pause", "Change…", "Destroy…"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    for tab in TABS:
        visitor.go(f"/boxes/{sample.box}{tab}")
        page.locator("main h1").first.wait_for()
        expect(page.locator(".loading")).to_have_count(0)
    visitor.go(f"/boxes/{sample.box}/terminal")
    expect(page.get_by_text("Observers have no terminal.")).to_be_visible()
    after = admin.good("GET", f"/v1/boxes/{sample.box}")
    assert (after["lease"], after["epoch"]) == (before["lease"], before["epoch"])
    assert abs(after["used_at"] - before["used_at"]) < 1


def test_the_terminal(visitor: Visitor, sample: Sample) -> None:
    """What is typed runs in the box, its output comes back, and its end is said."""
    page = visitor.sign_in(sample.user, f"/boxes/{sample.box}/terminal")
    page.locator("[data-phase=open]").wait_for()
    page.locator(".screen textarea").focus()
    page.keyboard.type("echo $((6 * 7))-here\n")
    expect(page.locator(".screen")).to_contain_text("42-here")
    page.keyboard.type("exit 3\n")
    expect(page.get_by_text("ended with exit code 3")).to_be_visible()
    press(page, "Open another")
    page.locator("[data-phase=open]").wait_for()
    visitor.go(f"/boxes/{sample.box}")
    release = page.get_by_role("button", name="Release", exact=True)
    release.click()
    release.wait_for(state="detached")


def test_an_admins_shell_is_explicit_and_a_receipt(visitor: Visitor, sample: Sample) -> None:
    """An admin opens a shell in another owner's box only after saying so, and its receipt names the admin (P8)."""
    admin = sample.server.unix(hutch_admin="yes")
    box = next(each for each in admin.good("GET", "/v1/boxes")["boxes"] if each["owner"] == "acme")
    page = visitor.sign_in(sample.admin, f"/boxes/{box['id']}/terminal")
    expect(page.get_by_text("This box belongs to acme.")).to_be_visible()
    assert page.locator("[data-phase]").count() == 0
    press(page, "Open an administrator's shell")
    page.locator("[data-phase=open]").wait_for()

    def seen() -> list[dict[str, object]]:
        found = admin.good("GET", f"/v1/receipts?box={box['id']}")["receipts"]
        return [each for each in found if each["op"] == "job.start" and each["who"].get("admin")]

    assert until(seen)
    assert admin.good("GET", f"/v1/boxes/{box['id']}")["lease"]["holder"] == box["lease"]["holder"]


def test_files(visitor: Visitor, sample: Sample, tmp_path: Path) -> None:
    """Browse, see with colours, edit, upload, make a directory, remove; binary bytes are shown as such."""
    page = visitor.sign_in(sample.user, f"/boxes/{sample.box}/files")
    page.get_by_role("button", name=re.compile("count.py")).first.click()
    expect(page.locator(".code-word").first).to_be_visible()
    press(page, "Edit")
    page.locator("textarea.editor").fill("print('edited')\n")
    press(page, "Save")
    expect(page.locator("pre.code")).to_contain_text("edited")
    (tmp_path / "sent.bin").write_bytes(bytes(range(256)) * 8)
    page.locator("input[type=file]").set_input_files(tmp_path / "sent.bin")
    page.get_by_role("button", name=re.compile("^sent.bin")).click()
    expect(page.get_by_text("This is not text.")).to_be_visible()
    expect(page.get_by_role("button", name="Edit", exact=True)).to_be_disabled()
    with page.expect_download() as download:
        press(page, "Download")
    assert Path(download.value.path()).read_bytes() == bytes(range(256)) * 8
    press(page, "New directory")
    page.get_by_role("dialog").get_by_label("Name").fill("made")
    confirm(page, "Create")
    expect(page.get_by_role("button", name=re.compile("made")).first).to_be_visible()
    page.get_by_role("button", name="Remove sent.bin").click()
    confirm(page, "Remove")
    expect(page.get_by_role("button", name=re.compile("^sent.bin"))).to_have_count(0)


def test_several_files_are_uploaded_at_once(visitor: Visitor, sample: Sample, tmp_path: Path) -> None:
    """Those of the chooser, and those that are dropped on the page."""
    own = sample.server.tcp(sample.user, hutch_session="dashboard-" + sample.user.split("_")[1])
    box = own.good("POST", "/v1/boxes", {"name": "uploads", "memory_mb": 128})["id"]
    page = visitor.sign_in(sample.user, f"/boxes/{box}/files")
    expect(page.get_by_role("list", name="Files")).to_be_visible()
    for name in ("chosen-1", "chosen-2"):
        (tmp_path / name).write_text(name)
    page.locator("input[type=file]").set_input_files([tmp_path / "chosen-1", tmp_path / "chosen-2"])
    expect(page.get_by_role("button", name=re.compile("^chosen"))).to_have_count(2)
    dropped = page.evaluate_handle("""() => {
        const data = new DataTransfer();
        for (const name of ["dropped-1", "dropped-2"]) data.items.add(new File([name], name));
        return data;
    }""")
    page.locator(".files").dispatch_event("drop", {"dataTransfer": dropped})
    expect(page.get_by_role("button", name=re.compile("^dropped"))).to_have_count(2)
    for name in ("chosen-1", "chosen-2", "dropped-1", "dropped-2"):
        assert own.call("GET", f"/v1/boxes/{box}/files/content?path={name}").body == name.encode()


def test_jobs_and_notebook(visitor: Visitor, sample: Sample) -> None:
    """A command's output is followed live, a job is killed; a cell prints, and its error is shown."""
    page = visitor.sign_in(sample.user, f"/boxes/{sample.box}/jobs")
    page.get_by_label("Command").fill("echo begun; sleep 1; echo later; sleep 300")
    press(page, "Run")
    expect(page.locator("pre.output")).to_contain_text("later")
    press(page, "Kill")
    expect(page.locator(".job")).to_contain_text("exited")
    visitor.go(f"/boxes/{sample.box}/notebook")
    page.get_by_label("Code").fill("x = 20\nprint('cell', x + 1)")
    page.get_by_role("button", name=re.compile("^Run")).click()
    expect(page.get_by_text("cell 21", exact=False).last).to_be_visible()
    page.get_by_label("Code").fill("1 / 0")
    page.get_by_role("button", name=re.compile("^Run")).click()
    expect(page.locator(".failed")).to_contain_text("ZeroDivisionError")


def test_checkpoints_and_ports(visitor: Visitor, sample: Sample) -> None:
    """A checkpoint is made, changes since it are shown, and the box goes back; a port shows in a preview."""
    client = sample.server.tcp(sample.user, hutch_session="dashboard-" + sample.user.split("_")[1])
    box = client.good("POST", "/v1/boxes", {"name": "layers", "memory_mb": 128})["id"]
    page = visitor.sign_in(sample.user, f"/boxes/{box}/changes")
    press(page, "Make a checkpoint")
    page.get_by_role("dialog").get_by_label("Name").fill("before")
    confirm(page, "Create")
    client.good("PUT", f"/v1/boxes/{box}/files/content?path=index.html", b"<h1>served from the box</h1>")
    press(page, "Changes since")
    expect(page.locator(".change")).to_contain_text(["index.html"])
    client.good("POST", f"/v1/boxes/{box}/jobs", {"command": "exec python3 -m http.server 8123"})
    until(lambda: client.good("GET", f"/v1/boxes/{box}/ports")["ports"])
    visitor.go(f"/boxes/{box}/ports")
    press(page, "Preview")
    expect(page.frame_locator("iframe.preview").get_by_text("served from the box")).to_be_visible()
    press(page, "End the preview")
    expect(page.locator("iframe.preview")).to_have_count(0)
    visitor.go(f"/boxes/{box}/changes")
    press(page, "Roll back…")
    page.get_by_label("End its running processes first").check()
    confirm(page, "Roll back")
    assert client.call("GET", f"/v1/boxes/{box}/files/exists?path=index.html").json() == {"exists": False}
    client.good("DELETE", f"/v1/boxes/{box}?force=true")


def test_approvals(visitor: Visitor, sample: Sample) -> None:
    """A question appears at once, the title counts it, and the answer reaches the agent."""
    page = visitor.sign_in(sample.user, "/approvals")
    client = sample.server.tcp(sample.user)
    with asking(client, "", agent="deployer", what="rm -r build"):
        expect(page.get_by_text("rm -r build").first).to_be_visible()
        expect(page).to_have_title(re.compile(r"^\(\d+\) Approvals"))
        question = page.locator(".question", has_text="rm -r build")
        question.get_by_role("button", name="Deny").click()
        expect(question).to_have_count(0)
        visitor.go(f"/boxes/{sample.box}")
        expect(page).to_have_title(re.compile(r"^\(\d+\) research"))


def test_receipts_are_verified(visitor: Visitor, sample: Sample) -> None:
    page = visitor.sign_in(sample.user, f"/boxes/{sample.box}/receipts")
    press(page, "Verify the chain")
    expect(page.get_by_text("none was changed, removed or added")).to_be_visible()
    visitor.go("/audit")
    press(page, "Verify all chains")
    expect(page.get_by_text("no receipt was changed, removed or added")).to_be_visible()


def test_keys(visitor: Visitor, sample: Sample) -> None:
    """A key is made with fewer rights, shown once, and revoked (P15)."""
    page = visitor.sign_in(sample.admin, "/keys")
    press(page, "New key")
    page.get_by_role("dialog").get_by_label("Name").fill("bot")
    page.get_by_role("dialog").get_by_label("destroy").uncheck()
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    shown = page.locator(".secret .copy").inner_text()
    client = sample.server.tcp(shown)
    assert client.good("GET", "/v1/dashboard/session")["actions"] == ["create", "set_retention", "takeover"]
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.locator("tr", has_text="bot").get_by_role("button", name="Revoke").click()
    confirm(page, "Revoke")
    assert client.call("GET", "/v1/boxes").status == 401


def test_skills_and_mcp_servers(visitor: Visitor, sample: Sample) -> None:
    """A skill's versions are listed and rolled back; an MCP server starts in its box, and a tool is tried."""
    page = visitor.sign_in(sample.user, "/skills/greeting")
    page.get_by_role("button", name="Roll back to this").first.click()
    expect_toast(page, "Rolled back")
    visitor.go("/mcp-servers/clock")
    press(page, "Start")
    page.get_by_label("Tool").wait_for()
    page.get_by_label("Tool").select_option("echo")
    page.get_by_label("Arguments (JSON)").fill('{"text": "tried-here"}')
    press(page, "Call the tool")
    expect(page.locator("pre.output").first).to_contain_text("tried-here")
    press(page, "Stop")
    expect(page.locator(".panel .state").first).to_contain_text("stopped")


def test_tools_by_origin(visitor: Visitor, sample: Sample) -> None:
    """Tools are listed by where they come from (P13)."""
    page = visitor.sign_in(sample.user, "/tools")
    expect(page.locator("section", has_text="Built in").get_by_text("exec", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Of MCP servers")).to_be_visible()


def test_quotas_and_their_use(visitor: Visitor, sample: Sample) -> None:
    """An admin sees every owner's quota and how much of it is used, a user only the own one."""
    page = visitor.sign_in(sample.admin, "/profiles")
    quotas = page.get_by_role("table", name="Quotas")
    expect(quotas.locator("tr", has_text="acme")).to_contain_text(re.compile(r"/ 8.*at most 3"))
    expect(quotas.locator("tr", has_text="team")).to_contain_text(re.compile(r"\d / 200.* / 64 GB"))
    visitor.context.clear_cookies()
    visitor.sign_in(sample.user, "/profiles")
    expect(quotas.locator("tr", has_text="team")).to_contain_text(re.compile(r"\d / 200"))
    expect(quotas.locator("tr", has_text="acme")).to_have_count(0)
