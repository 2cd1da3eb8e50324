"""A server's life: first start, a second one beside it, draining, restarts that keep boxes and jobs, TLS, disabled."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.config import Config
from hutch.errors import ConfigError, Refused
from tests.cli.cli_process import HUTCH
from tests.server.serving import Answer, Server, certificate, serving, until


def test_boxes_and_jobs_outlive_a_restart() -> None:
    """SIGTERM leaves boxes where they are; the next server has them, their jobs, output, leases and keys;
    after SIGKILL too."""
    with serving() as server:
        key = server.key("user", "keeper")
        caller = server.tcp(key, hutch_session="mine")
        made = caller.good("POST", "/v1/boxes", {"labels": {"kept": "yes"}})
        box = f"/v1/boxes/{made['id']}"
        caller.good("PUT", f"{box}/files/content?path=f", b"before")
        job = caller.good("POST", f"{box}/jobs", {"command": "echo early; read x; echo late $x"})["id"]
        caller.good("GET", f"{box}/jobs/{job}/output?wait=30")
        for number in (signal.SIGTERM, signal.SIGKILL):
            server.end(number)
            (server.state / "server.json").unlink(missing_ok=True)  # a killed one could not
            server.start()
            caller = server.tcp(key, hutch_session="mine")
            again = caller.good("GET", box)
            assert (again["state"], again["lease"]["holder"]) == ("running", "mine")
            assert caller.call("GET", f"{box}/files/content?path=f").body == b"before"
            assert caller.good("GET", f"{box}/jobs/{job}")["state"] == "running"
        caller.good("POST", f"{box}/jobs/{job}/stdin", b"x\n")
        assert caller.good("POST", f"{box}/jobs/{job}/wait", {})["stdout"] == "early\nlate x\n"
        assert len(server.unix().good("GET", "/v1/keys")["keys"]) == 2, "the first key was made once"


async def test_an_admin_ends_the_server_over_http() -> None:
    """`Hutch.shutdown` and `POST /v1/shutdown` act as SIGTERM does: boxes stay for the next server. Others are refused,
    and the server keeps running (B23)."""
    with serving() as server:
        user = Hutch(server.announcement["url"], key=server.key("user", "somebody"))
        admin = Hutch(server.announcement["url"], key=server.key("admin", "operators"))
        async with user, admin:
            box = await user.create()
            await box.files.write("f", "stays")
            with pytest.raises(Refused):
                await user.shutdown()
            assert (await user.status()).available
            await admin.shutdown()
            assert await asyncio.to_thread(server.wait) == 0
            server.start()
            again = Hutch(server.announcement["url"], key=server.key("admin", "operators"))
            async with again:
                assert await (await again.administer(box.id)).files.read("f") == b"stays"


def test_draining_finishes_what_runs() -> None:
    """SIGTERM: a running command is answered, streams end, the announcement is removed, the box stays."""
    with serving() as server:
        client = server.unix()
        box = f"/v1/boxes/{client.good('POST', '/v1/boxes', {})['id']}"
        connection, stream = client.open("GET", "/v1/events", accept="text/event-stream")
        stream.readline()
        answers: list[Answer] = []
        body = {"command": "touch begun; sleep 1; echo done"}
        asking = threading.Thread(target=lambda: answers.append(client.call("POST", f"{box}/exec", body)))
        job = client.good("POST", f"{box}/jobs", {"command": "sleep 1000"})["id"]
        waiting = client.connect()
        waiting.request("GET", f"{box}/jobs/{job}/output?wait=1000")
        asking.start()
        until(lambda: client.call("GET", f"{box}/files/stat?path=begun").status == 200)
        os.kill(server.pid, signal.SIGTERM)
        while stream.readline():
            pass  # the stream ends by itself
        reply = json.loads(waiting.getresponse().read())
        assert (reply["code"], reply["retryable"]) == ("unavailable", True), "a long wait is to be asked again"
        asking.join(60)
        assert answers[0].json()["stdout"] == "done\n"
        assert server.end() == 0
        assert not (server.state / "server.json").exists()
        assert not (server.run / "server.sock").exists()
        connection.close()
        waiting.close()
        server.start()
        assert server.unix().good("GET", box)["state"] == "running"


def test_a_second_server_is_refused(server: Server) -> None:
    """One server for each state directory; the second learns where the other one is."""
    environ = {**os.environ, "HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)}
    second = subprocess.run([*HUTCH, "serve", "--json", "--port", "0"], env=environ, capture_output=True, timeout=60)
    error = json.loads(second.stdout)["error"]
    assert (second.returncode, error["code"]) == (125, "held_elsewhere")
    assert error["details"]["pid"] == server.pid
    assert server.unix().call("GET", "/healthz").status == 200, "and its socket was left alone"


def test_the_announcement_says_where(server: Server) -> None:
    reply = server.announcement
    assert reply["pid"] == server.pid
    assert reply["socket"] == str(server.run / "server.sock")
    assert reply["url"].startswith("http://127.0.0.1:")
    log = server.log.read_text()
    assert "boxes by native" in log, "B30: the first lines say what is available"
    assert "first admin key" in log


def test_switched_off_it_still_answers() -> None:
    """`enabled = false` is distinguished from a failure, and is no 500 (B20, B21)."""
    with serving(HUTCH_ENABLED="false") as server:
        client = server.unix()
        status = client.good("GET", "/v1/status")
        assert (status["state"], status["enabled"], status["available"]) == ("disabled", False, False)
        assert client.good("GET", "/v1/boxes")["boxes"] == []
        answer = client.call("POST", "/v1/boxes", {})
        assert (answer.status, answer.json()["code"]) == (503, "disabled")
        assert client.call("GET", "/readyz").status == 503


def test_tls(tmp_path: Path) -> None:
    """TCP speaks TLS when it has a certificate; the Unix socket stays as it is."""
    cert, key = certificate(tmp_path)
    with serving("--tls-cert", str(cert), "--tls-key", str(key)) as server:
        url = server.announcement["url"]
        assert url.startswith("https://")
        asked = urllib.request.Request(f"{url}/v1/status", headers={"Hutch-Key": server.key("user", "tls")})
        context = ssl.create_default_context(cafile=str(cert))
        with urllib.request.urlopen(asked, context=context, timeout=60) as response:
            assert json.load(response)["state"] == "ready"


def test_every_setting_can_come_from_the_environment(tmp_path: Path) -> None:
    """[server] as HUTCH_SERVER_…: above the file, below the command line; a typo or a wrong value is reported by
    name."""
    (tmp_path / "hutch.toml").write_text("[server]\nport = 1\nrate_per_sec = 5\n")
    given = {"HUTCH_SERVER_PORT": "2", "HUTCH_SERVER_HOSTS": "a.example, b.example", "HUTCH_SERVER_DRAIN_SEC": "1.5"}
    given["HUTCH_CONFIG"] = "hutch.toml"
    config = Config.load(environ=given, cwd=tmp_path)
    assert (config.server.port, config.server.rate_per_sec, config.server.drain_sec) == (2, 5, 1.5)
    assert config.server.hosts == ("a.example", "b.example")
    assert Config.load(environ=given, cwd=tmp_path, server={"port": 3}).server.port == 3
    for name, value in (("HUTCH_SERVER_PORT", "x"), ("HUTCH_SERVER_PROT", "1")):
        with pytest.raises(ConfigError, match=name):
            Config.load(environ={name: value}, cwd=tmp_path)


def test_wrong_settings_are_reported_before_anything_starts(tmp_path: Path) -> None:
    config = tmp_path / "hutch.toml"
    for text, place in (
        ("[server]\nprot = 1\n", "server.prot"),
        ("[server]\nport = 70000\n", "server.port"),
        ('[server]\ntls_cert = "x"\n', "server.tls_cert"),
        ("[server]\nport = 'x'\n", "server.port"),
    ):
        config.write_text(text)
        done = subprocess.run([*HUTCH, "serve", "--json", "--config", str(config)], capture_output=True, timeout=60)
        error = json.loads(done.stdout)["error"]
        assert (error["code"], error["details"]["field"]) == ("config", place), error
