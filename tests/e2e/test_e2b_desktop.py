"""The desktop of E2B's clients: the template that `hutch image base --desktop` makes, and who drives it (S13)."""

import os
import shutil

import e2b
import pytest

from tests import proofs
from tests.cli.cli_process import hutch
from tests.e2e.e2b_sdk import E2B
from tests.e2e.environments import python_of
from tests.e2e.test_e2b_releases import run

DRIVERS = (("e2b==2.10.1", "e2b-desktop==2.2.0"), ("e2b==2.63.0", "e2b-desktop==2.7.2"))
"""The releases that HyperAgent locks, and the newest ones."""
PROGRAM = """
import os, sys, time, urllib.parse, urllib.request
from e2b_desktop import Sandbox

desktop = Sandbox.create(timeout=900)
try:
    windows = lambda: desktop.commands.run("xdotool search --onlyvisible --class xterm || true").stdout.split()
    desktop.launch("debian-xterm")
    while not windows():
        desktop.wait(200)
    assert desktop.get_screen_size() == (1024, 768)
    desktop.move_mouse(500, 300)
    assert desktop.get_cursor_position() == (500, 300)
    # Earlier releases of the SDK do not wait for the window manager.
    while desktop.commands.run(f"xdotool windowactivate --sync {windows()[0]} || echo not yet").stdout:
        desktop.wait(200)
    desktop.write("echo typed > /home/user/typed")
    desktop.press("enter")
    while not desktop.files.exists("/home/user/typed"):
        desktop.wait(200)
    assert desktop.files.read("/home/user/typed") == "typed\\n"
    for click in (desktop.left_click, desktop.double_click, desktop.middle_click, desktop.right_click):
        click(900, 600)
    desktop.scroll("down", 2)
    desktop.drag((600, 500), (650, 550))
    shot = bytes(desktop.screenshot("bytes"))
    assert shot.startswith(b"\\x89PNG") and len(shot) > 5000, len(shot)
    desktop.stream.start(require_auth=True)
    url = urllib.parse.urlsplit(desktop.stream.get_url(auth_key=desktop.stream.get_auth_key()))
    there = urllib.request.Request(os.environ["E2B_API_URL"] + url.path, headers={"Host": url.netloc})
    assert b"noVNC" in urllib.request.urlopen(there).read()
    desktop.stream.stop()
finally:
    desktop.kill()
print("done")
"""


@pytest.mark.proof
@pytest.mark.timeout(2400)
def test_desktops_are_driven_by_their_sdk(hutch_e2b: E2B) -> None:
    """(S13) `hutch image base --desktop` makes the template `desktop`: windows, mouse, keys, screenshots, VNC."""
    if os.geteuid() != 0 or shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("debootstrap, run as root, makes the Debian")
    environment = {"HUTCH_STATE_DIR": str(hutch_e2b.server.state), "HUTCH_RUN_DIR": str(hutch_e2b.server.run)}
    done = hutch("image", "base", "--desktop", env=environment, timeout=1500)
    assert done.returncode == 0, done.stderr
    try:
        for packages in DRIVERS:
            program = [str(python_of(*packages)), "-c", PROGRAM]
            assert run(program, hutch_e2b.server.top, 300, **hutch_e2b.environment).endswith("done\n")
    finally:
        hutch("image", "remove", "e2b-desktop", env=environment)
    proofs.write("e2b-desktop", packages=DRIVERS)


def test_a_desktop_without_its_image_is_refused(hutch_e2b: E2B) -> None:
    """(S13) Without the image a desktop is refused with 501, not replaced by a sandbox without one."""
    with pytest.raises(e2b.SandboxException, match=r"501.*no desktop.*hutch image base --desktop"):
        e2b.Sandbox.create("desktop", **hutch_e2b.options)
