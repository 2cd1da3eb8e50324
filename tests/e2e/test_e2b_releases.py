"""E2B's SDKs in JavaScript, and earlier releases in Python, as they are published (S13)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import proofs
from tests.e2e.e2b_sdk import E2B

NEWEST = {"e2b": "2.51.0", "@e2b/code-interpreter": "2.8.0"}
"""The newest releases on npm that `tests/e2e/e2b.mjs` was written with."""
EARLIER = ("2.7.0", "2.10.1", "2.15.0", "2.45.1")
"""The oldest release that is supported, the one that HyperAgent locks, and two more."""

HERE = Path(__file__).parent


def run(command: list[str], place: Path, timeout: float, **environment: str) -> str:
    """Run a program to its end; what it printed, which is also what a failure shows."""
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_javascript(hutch_e2b: E2B, tmp_path: Path) -> None:
    """(S13) The unmodified packages from npm work with only their three variables set."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: tools/setup.sh installs it")
    shutil.copy(HERE / "e2b.mjs", tmp_path)
    (tmp_path / "package.json").write_text(json.dumps({"private": True, "dependencies": NEWEST}))
    npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    run(npm, tmp_path, 280, npm_config_cache=str(tmp_path / "cache"))
    assert run(["node", "e2b.mjs"], tmp_path, 120, **hutch_e2b.environment).endswith("done\n")


PROGRAM = """
import asyncio, e2b
from e2b import AsyncSandbox, Sandbox

sandbox = Sandbox.create(timeout=120, metadata={"made": "by an earlier release"})
assert sandbox.commands.run("echo hi").stdout == "hi\\n"
sandbox.files.write("note", "text")
assert sandbox.files.read("note") == "text"
watch = sandbox.files.watch_dir("/home/user")
sandbox.files.write("new", "1")
assert len(watch.get_new_events()) == 3
handle = sandbox.commands.run("cat", background=True, stdin=True)
sandbox.commands.send_stdin(handle.pid, "in\\n")
assert next(iter(handle))[0] == "in\\n"
assert sandbox.commands.kill(handle.pid)
sandbox.set_timeout(200)
assert Sandbox.connect(sandbox.sandbox_id).files.exists("note")
try:
    sandbox.commands.run("exit 4")
    raise SystemExit("no error")
except e2b.CommandExitException as error:
    assert error.exit_code == 4
assert sandbox.kill() and not sandbox.is_running()

async def hyperagent():
    "What HyperAgent calls, in its order."
    sandbox = await AsyncSandbox.create(timeout=300)
    try:
        done = await sandbox.commands.run("python3 -c 'print(6 * 7)'", timeout=30, cwd="/home/user")
        assert done.stdout == "42\\n"
        await sandbox.files.write("/home/user/up/load.bin", b"bytes")
        assert bytes(await sandbox.files.read("/home/user/up/load.bin", format="bytes")) == b"bytes"
        assert await sandbox.files.read("up/load.bin", format="text") == "bytes"
        server = "setsid python3 -m http.server 3000 > /tmp/log 2>&1 &"
        await sandbox.commands.run(server, timeout=10)
        assert sandbox.get_host(3000).startswith("3000-" + sandbox.sandbox_id)
        try:
            await sandbox.commands.run("false", timeout=10)
            raise SystemExit("no error")
        except e2b.CommandExitException:
            pass
    finally:
        await sandbox.kill()

asyncio.run(hyperagent())
print("done")
"""


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_earlier_releases(hutch_e2b: E2B, tmp_path: Path) -> None:
    """(S13) Earlier releases of the SDK work too, with the calls of HyperAgent among them."""
    (tmp_path / "program.py").write_text(PROGRAM)
    worked = []
    for release in EARLIER:
        place = tmp_path / release
        run([sys.executable, "-m", "venv", str(place)], tmp_path, 120)
        python = str(place / "bin" / "python")
        run([python, "-m", "pip", "install", "-q", f"e2b=={release}"], tmp_path, 300)
        assert run([python, "program.py"], tmp_path, 120, **hutch_e2b.environment) == "done\n"
        worked.append(release)
    proofs.write("e2b_releases", e2b=worked, npm=NEWEST)
