"""What changes something, done in a real browser: layers, retention, kernels, skills, MCP servers, sessions."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.sample import Sample
from tests.dashboard.visitor import WAIT_MS, Visitor, confirm, expect_toast, press, visiting
from tests.server.serving import Client, Server, until
from tests.server.world import archive

PICTURE = """import struct, zlib
def part(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
class Drawn:
    def _repr_png_(self):
        head, row = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0), bytes(4)
        return b"\\x89PNG\\r\\n\\x1a\\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(row)) + part(b"IEND", b"")
Drawn()"""
ENDLESS = """import http.server, time
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<h1>streaming</h1>" + b" " * 2048)
        self.wfile.flush()
        while True:
            self.wfile.write(b"<p>more</p>")
            self.wfile.flush()
            time.sleep(0.2)
http.server.ThreadingHTTPServer(("127.0.0.1", 8125), Page).serve_forever()
"""
EVIL = "<img src=x onerror=window.hacked=1>"

expect.set_options(timeout=WAIT_MS)


@pytest.fixture
def client(sample: Sample) -> Client:
    """The user's own browser session, so that it shares the page's leases."""
    return sample.server.tcp(sample.user, hutch_session="dashboard-" + sample.user.split("_")[1])


@pytest.fixture
def box(client: Client) -> Iterator[str]:
    made = client.good("POST", "/v1/boxes", {"memory_mb": 256, "auto_checkpoint": "exec"})["id"]
    yield made
    client.call("DELETE", f"/v1/boxes/{made}?force=true")


def test_undo_fork_and_delete_a_checkpoint(visitor: Visitor, sample: Sample, client: Client, box: str) -> None:
    """The last command is undone; a fork begins with the files of a checkpoint; a checkpoint is removed."""
    page = visitor.sign_in(sample.user, f"/boxes/{box}/changes")
    client.good("POST", f"/v1/boxes/{box}/exec", {"command": "echo kept > kept.txt"})
    press(page, "Make a checkpoint")
    page.get_by_role("dialog").get_by_label("Name").fill("mine")
    confirm(page, "Create")
    client.good("POST", f"/v1/boxes/{box}/exec", {"command": "rm kept.txt"})
    press(page, "Refresh")
    press(page, "Undo…")
    confirm(page, "Undo")
    exists = f"/v1/boxes/{box}/files/exists?path=kept.txt"
    assert client.good("GET", exists) == {"exists": True}
    mine = page.locator("li", has_text="mine")
    mine.get_by_role("button", name="Fork…").click()
    confirm(page, "Fork")
    page.wait_for_url(re.compile(rf"/boxes/(?!{box})[a-z0-9]{{20}}$"))
    fork = page.url.rpartition("/")[2]
    assert client.good("GET", f"/v1/boxes/{fork}/files/exists?path=kept.txt") == {"exists": True}
    client.good("DELETE", f"/v1/boxes/{fork}?force=true")
    visitor.go(f"/boxes/{box}/changes")
    mine.get_by_role("button", name="Remove mine").click()
    confirm(page, "Remove")
    expect(mine).to_have_count(0)
    assert "mine" not in [each["name"] for each in client.good("GET", f"/v1/boxes/{box}/checkpoints")["checkpoints"]]


def test_retention_and_stop(visitor: Visitor, sample: Sample, client: Client) -> None:
    """A box becomes persistent, is stopped with its files kept, and comes back when it is resumed."""
    made = client.good("POST", "/v1/boxes", {"name": "stays", "memory_mb": 64})["id"]
    client.good("PUT", f"/v1/boxes/{made}/files/content?path=a.txt", b"a")
    page = visitor.sign_in(sample.user, f"/boxes/{made}")
    assert page.get_by_role("button", name="Stop", exact=True).count() == 0
    press(page, "Change…")
    page.get_by_role("dialog").get_by_label("Retention").select_option("persistent")
    confirm(page, "Save")
    press(page, "Stop")
    confirm(page, "Stop")
    expect(page.locator(".bar .state")).to_have_text("stopped")
    press(page, "Resume")
    expect(page.locator(".bar .state")).to_have_text("running")
    assert client.call("GET", f"/v1/boxes/{made}/files/content?path=a.txt").body == b"a"
    press(page, "Destroy…")
    confirm(page, "Destroy")
    expect(page.get_by_text("This box is gone.")).to_be_visible()


def test_kernels_and_their_pictures(visitor: Visitor, sample: Sample, client: Client, box: str) -> None:
    """A cell draws a picture; a cell that does not end is interrupted, and a restarted kernel has forgotten all."""
    page = visitor.sign_in(sample.user, f"/boxes/{box}/notebook")
    run = page.get_by_role("button", name=re.compile("^Run"))
    code = page.get_by_label("Code")
    code.fill(PICTURE)
    run.click()
    picture = page.locator("img.picture")
    expect(picture).to_be_visible()
    assert picture.evaluate("(image) => image.naturalWidth") == 1
    code.fill("kept = 7\nprint('kept', kept)\nwhile True: pass")
    run.click()
    expect(page.get_by_text("kept 7", exact=True)).to_be_visible()
    expect(page.locator(".kernel .state")).to_have_text("busy")
    press(page, "Interrupt")
    expect(page.locator(".failed")).to_contain_text("KeyboardInterrupt")
    code.fill("print('kept is', kept)")
    run.click()
    expect(page.get_by_text("kept is 7", exact=True)).to_be_visible()
    press(page, "Restart")
    expect_toast(page, "Restarted")
    code.fill("kept")
    run.click()
    expect(page.locator(".failed").first).to_contain_text("NameError")
    page.locator(".kernel").get_by_role("button", name="Remove").click()
    expect(page.locator(".kernel")).to_have_count(0)
    assert client.good("GET", f"/v1/boxes/{box}/kernels")["kernels"] == []


def test_a_preview_whose_port_closes(visitor: Visitor, sample: Sample, client: Client, box: str) -> None:
    """A page that is still being sent when its program dies stays, and the panel says that nothing listens any more."""
    client.good("PUT", f"/v1/boxes/{box}/files/content?path=endless.py", ENDLESS.encode())
    command = {"command": "exec python3 endless.py"}
    job = client.good("POST", f"/v1/boxes/{box}/jobs", command)["id"]
    until(lambda: client.good("GET", f"/v1/boxes/{box}/ports")["ports"])
    page = visitor.sign_in(sample.user, f"/boxes/{box}/ports")
    press(page, "Preview")
    frame = page.frame_locator("iframe.preview")
    expect(frame.get_by_text("streaming")).to_be_visible()
    client.good("POST", f"/v1/boxes/{box}/jobs/{job}/signal", {"number": 9})
    expect(page.get_by_text("Nothing listens on port 8125 any more.")).to_be_visible()
    expect(frame.get_by_text("streaming")).to_be_visible()
    client.good("POST", f"/v1/boxes/{box}/jobs", command)
    expect(page.get_by_text("Nothing listens on port 8125 any more.")).to_have_count(0)
    expect(frame.get_by_text("streaming")).to_be_visible()
    # The browser reports the answer that was cut off; nothing else may have gone wrong.
    visitor.errors = [each for each in visitor.errors if "ERR_" not in each]


def test_a_skill_from_a_zip_file(visitor: Visitor, sample: Sample, client: Client, tmp_path: Path) -> None:
    """A skill is previewed before it is installed, pinned so that nothing changes it, and removed."""
    (tmp_path / "packed.zip").write_bytes(archive("packed"))
    page = visitor.sign_in(sample.user, "/skills")
    press(page, "Install a skill")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Install", exact=True)).to_be_disabled()
    dialog.locator("input[type=file]").set_input_files(tmp_path / "packed.zip")
    dialog.get_by_role("button", name="Look at it").click()
    expect(dialog.locator(".plan")).to_contain_text("made for a test")
    confirm(page, "Install")
    page.wait_for_url(re.compile("/skills/packed$"))
    press(page, "Pin")
    expect(page.get_by_role("button", name="Unpin", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Upgrade", exact=True)).to_be_disabled()
    assert client.good("GET", "/v1/skills/packed")["pinned"]
    press(page, "Unpin")
    press(page, "Upgrade")
    expect_toast(page, "no source to check for a newer version")
    press(page, "Remove")
    confirm(page, "Remove")
    expect(page.get_by_role("button", name=re.compile("^packed"))).to_have_count(0)
    assert client.call("GET", "/v1/skills/packed").status == 404


def test_a_skill_is_upgraded(browser: Browser, sample: Sample, tmp_path: Path) -> None:
    """A skill that was installed from a directory of the server's machine gets that directory's newer content."""
    place = tmp_path / "local"
    place.mkdir()
    (place / "SKILL.md").write_text("---\nname: local\ndescription: first text\n---\n# local\n")
    server = Server(HUTCH_MOUNT_ROOTS=str(tmp_path))
    try:
        environ = {**os.environ, "HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)}
        command = [sys.executable, "-m", "hutch.cli.main", "skill", "install", str(place)]
        subprocess.run(command, env=environ, check=True, capture_output=True)
        (place / "SKILL.md").write_text("---\nname: local\ndescription: second text\n---\n# local\n")
        server.start()
        with visiting(browser, server) as visitor:
            page = visitor.sign_in(server.key("user", "local"), "/skills/local")
            expect(page.locator(".facts").first).to_contain_text("first text")
            press(page, "Upgrade")
            expect(page.locator(".facts").first).to_contain_text("second text")
            visitor.check()
    finally:
        server.close()


def test_an_mcp_server_is_added_and_removed(visitor: Visitor, sample: Sample, client: Client) -> None:
    """A server that cannot run says in which phase it failed and why; it is removed with its box."""
    page = visitor.sign_in(sample.user, "/mcp-servers")
    press(page, "Add a server")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("short-lived")
    dialog.get_by_label("Command").fill("python3 -c pass")
    confirm(page, "Add")
    page.wait_for_url(re.compile("/mcp-servers/short-lived$"))
    press(page, "Start")
    expect(page.locator(".notice.error, .toast.error").first).to_be_visible()
    press(page, "Remove")
    confirm(page, "Remove")
    expect(page.get_by_role("button", name=re.compile("^short-lived"))).to_have_count(0)
    assert client.call("GET", "/v1/mcp-servers/short-lived").status == 404


def test_signing_out_everywhere(browser: Browser, sample: Sample) -> None:
    """One button ends all sessions of a key: the other browser, too, says that it was signed out."""
    key = sample.server.key("user", "everywhere")
    with visiting(browser, sample.server) as first, visiting(browser, sample.server) as second:
        second.sign_in(key)
        page = first.sign_in(key)
        page.locator(".account summary").click()
        press(page, "Sign out everywhere…")
        page.get_by_role("dialog").get_by_role("button", name="Sign out everywhere").click()
        page.get_by_label("Key").wait_for()
        second.page.get_by_text("You were signed out.").wait_for()
        first.check()
        second.check()


@pytest.mark.parametrize("role", ["admin", "observer"])
def test_other_roles_and_a_hostile_name(visitor: Visitor, sample: Sample, client: Client, box: str, role: str) -> None:
    """An admin acts, an observer sees each action refused; markup is no name for a box, and only text in a key's."""
    client.good("DELETE", f"/v1/boxes/{box}/lease")
    key = sample.server.unix().good("POST", "/v1/keys", {"role": role, "owner": "team", "name": EVIL})["text"]
    page = visitor.sign_in(key, f"/boxes/{box}")
    expect(page.locator(".account-name")).to_have_text(EVIL)
    offered = {
        "": ["Pause", "Change…", "Destroy…"], "/changes": ["Make a checkpoint", "Fork…"],
        "/files": ["Upload", "New directory"], "/jobs": ["Run"],
        "/skills/greeting": ["Pin", "Upgrade", "Remove", "Install a skill"],
        "/mcp-servers/clock": ["Restart", "Remove", "Add a server"],
    }  # fmt: skip
    for where, names in offered.items():
        visitor.go(where if where.startswith(("/skills", "/mcp")) else f"/boxes/{box}{where}")
        for name in names:
            button = page.get_by_role("button", name=name, exact=True).first
            expect(button).to_be_enabled() if role == "admin" else expect(button).to_be_disabled()
    visitor.go(f"/boxes/{box}")
    if role == "admin":
        press(page, "Change…")
        page.get_by_role("dialog").get_by_label("Name").fill(EVIL)
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(page.get_by_role("dialog")).to_contain_text("is no name for a box")
        page.keyboard.press("Escape")
        press(page, "Pause")
        expect(page.locator(".bar .state")).to_have_text("paused")
        visitor.go("/keys")
        expect(page.locator("tr", has_text=EVIL).first).to_be_visible()
    page.keyboard.press("Control+k")
    page.locator("#palette-list [role=option]").first.wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0
