"""E2B's SDKs in JavaScript, and earlier releases in Python, as they are published (S13)."""

import json
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import proofs
from tests.e2e.e2b_sdk import E2B
from tests.e2e.e2b_tls import DOMAIN, TlsServer
from tests.e2e.environments import python_of

NEWEST = {"e2b": "2.51.0", "@e2b/code-interpreter": "2.8.0"}
"""The newest releases on npm that `tests/e2e/e2b.mjs` was written with."""
EARLIER = ("2.7.0", "2.10.1", "2.15.0", "2.45.1")
"""The oldest release that is supported, the one that HyperAgent locks, and two more."""
HYPERAGENT = ("e2b==2.10.1", "e2b-code-interpreter==2.4.1")
INTERPRETERS = (("e2b==2.45.1", "e2b-code-interpreter==2.9.1"), ("e2b==2.55.1", "e2b-code-interpreter==2.10.5"))
"""Code interpreters that follow `E2B_SANDBOX_URL`; earlier ones need TLS."""

DONE = 'import os; print("done", flush=True); os._exit(0)'
"""How programs end: threads of some releases' HTTP client now and then crash an interpreter that is going down."""

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
"""


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_earlier_releases(hutch_e2b: E2B, tmp_path: Path) -> None:
    """(S13) Earlier releases of the SDK work too, with the calls of HyperAgent among them."""
    (tmp_path / "program.py").write_text(PROGRAM + DONE)
    worked = []
    for release in EARLIER:
        python = str(python_of(f"e2b=={release}"))
        assert run([python, "program.py"], tmp_path, 120, **hutch_e2b.environment) == "done\n"
        worked.append(release)
    (tmp_path / "interpreter.py").write_text(RUN_CODE + DONE)
    for packages in INTERPRETERS:
        python = str(python_of(*packages))
        assert run([python, "interpreter.py"], tmp_path, 120, **hutch_e2b.environment) == "done\n"
    newest = [f"{name}=={version(name)}" for name in ("e2b", "e2b-code-interpreter")]
    proofs.write("e2b-releases", e2b=worked, code_interpreter=INTERPRETERS, newest_in_make_test=newest, npm=NEWEST)


RUN_CODE = """
from e2b_code_interpreter import Sandbox

sandbox = Sandbox.create()
sandbox.run_code("x = 40")
assert sandbox.run_code("x + 2").text == "42"
assert sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"
assert sandbox.run_code("6 * 7", language="javascript").text == "42"
assert sandbox.kill()
"""
WITH_TLS = f"""
import asyncio, socket, ssl, sys, urllib.request
resolve = socket.getaddrinfo  # In place of a wildcard entry of one's DNS.
socket.getaddrinfo = lambda host, *rest, **more: resolve(
    "127.0.0.1" if "hutch.test" in str(host) else host, *rest, **more
)
from e2b import AsyncSandbox
{RUN_CODE}
async def hyperagent():
    "What HyperAgent calls for an application that it shows."
    sandbox = await AsyncSandbox.create(timeout=300)
    await sandbox.files.write("site/index.html", b"<h1>shown</h1>")
    serve = "setsid python3 -m http.server 3000 > /tmp/log 2>&1 &"
    await sandbox.commands.run(serve, timeout=10, cwd="/home/user/site")
    await sandbox.commands.run("until curl -s localhost:3000 > /dev/null; do sleep 0.1; done", timeout=60)
    page = await asyncio.to_thread(urllib.request.urlopen, "https://" + sandbox.get_host(3000) + "/")
    assert page.read() == b"<h1>shown</h1>"
    await sandbox.kill()

asyncio.run(hyperagent())
"""


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_releases_that_hyperagent_locks(tls: TlsServer, tmp_path: Path) -> None:
    """(S13) e2b 2.10.1 and code interpreter 2.4.1, which insist on https and host names, work with `E2B_DOMAIN`."""
    (tmp_path / "program.py").write_text(WITH_TLS + DONE)
    python = str(python_of(*HYPERAGENT))
    environment = {"E2B_API_KEY": tls.key, "E2B_DOMAIN": f"{DOMAIN}:{tls.port}", "SSL_CERT_FILE": str(tls.authority)}
    assert run([python, "program.py"], tmp_path, 200, **environment) == "done\n"
    proofs.write("e2b-hyperagent", packages=HYPERAGENT)
