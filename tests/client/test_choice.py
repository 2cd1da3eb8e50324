"""The form that `Hutch` takes: embedded, a client of the named server or of the owner of the state directory, or
disabled."""

import asyncio
import inspect
import os
import socket
import subprocess
from pathlib import Path

import pytest

from hutch import Hutch, api
from hutch.client.disabled import DisabledHutch
from hutch.client.remote import RemoteHutch
from hutch.client.transport.requests import _error
from hutch.config import announcement
from hutch.errors import ConfigError, Disabled, HutchError, Invalid
from hutch.keeper.embedded import Hutch as EmbeddedHutch
from hutch.model.status import Condition
from hutch.shared import SharedHutch
from tests.client.conftest import QUICK
from tests.server.serving import Server, serving


def form(hutch: Hutch) -> type:
    return type(hutch._inner)


@pytest.mark.parametrize("wrapper", [Hutch, RemoteHutch, DisabledHutch, EmbeddedHutch])
def test_every_public_method_is_there(wrapper: type) -> None:
    """No form lacks a method of the protocol, so `hutch.api` is the whole truth."""
    wanted = {name for name, _ in inspect.getmembers(api.Hutch) if not name.startswith("_")} - {"session"}
    assert wanted <= set(dir(wrapper))


async def test_a_server_that_owns_the_state_directory(server: Server) -> None:
    """`Hutch()` becomes its client over the Unix socket without configuration. A killed server owns nothing."""
    places = {"state_dir": str(server.state), "run_dir": str(server.run)}
    hutch = Hutch(**places)
    assert form(hutch) is RemoteHutch
    async with hutch, hutch.box() as box:
        assert (await box.exec("true")).ok
        assert box.id in {each["id"] for each in server.unix().good("GET", "/v1/boxes")["boxes"]}
    assert form(Hutch(**places, store="memory")) is EmbeddedHutch
    with serving() as mortal:
        mortal.end(9)
        assert announcement.read(mortal.state)["pid"] == mortal.pid
        assert form(Hutch(state_dir=str(mortal.state), run_dir=str(mortal.run))) is SharedHutch


async def test_an_address_from_the_configuration(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """HUTCH_SERVER and HUTCH_KEY, or hutch.toml with a file for the key, which is on no command line."""
    url = server.announcement["url"]
    monkeypatch.setenv("HUTCH_SERVER", url)
    monkeypatch.setenv("HUTCH_KEY", server.key("user", "env"))
    async with Hutch() as hutch:
        assert (form(hutch), (await hutch.status()).state) == (RemoteHutch, Condition.READY)
    monkeypatch.delenv("HUTCH_SERVER")
    monkeypatch.delenv("HUTCH_KEY")
    (tmp_path / "key").write_text(server.key("user", "file") + "\n")
    (tmp_path / "hutch.toml").write_text(f'server_url = "{url}"\nkey_file = "key"\n')
    async with Hutch(config=tmp_path / "hutch.toml") as hutch:
        assert (await hutch.status()).state is Condition.READY
    (tmp_path / "key").unlink()
    with pytest.raises(ConfigError, match="key"):
        Hutch(config=tmp_path / "hutch.toml")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "unix:", "http://h:port", "http://h/path", "localhost:7300"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(Invalid, match="address"):
        Hutch(url)


def test_a_key_without_a_server_is_refused() -> None:
    with pytest.raises(Invalid, match="none was named"):
        Hutch(key="k")


async def test_switched_off(tmp_path: Path) -> None:
    """There is no process, connection or directory. Every call says why, and the list of boxes is empty (B20, B21)."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        forms = (
            Hutch(url, key="k", enabled=False),
            Hutch(enabled=False, state_dir=str(tmp_path / "s")),
            Hutch.launch(tmp_path / "l", enabled=False),
        )
        for hutch in forms:
            before = asyncio.all_tasks()
            async with hutch:
                status = await hutch.status()
                assert (status.state, status.enabled, status.available) == (Condition.DISABLED, False, False)
                assert "enabled = false" in status.reason
                assert await hutch.boxes() == ()
                for call in (
                    lambda h: h.create(), lambda h: h.attach("a" * 20), lambda h: h.find("x"), lambda h: h.working(),
                    lambda h: h.destroy("a" * 20), lambda h: h.current(), lambda h: h.events(),
                ):  # fmt: skip
                    with pytest.raises(Disabled, match="switched off"):
                        await call(hutch)
                for call in (lambda h: h.box(), lambda h: h.box_for("{a}", a=1), lambda h: h.volumes):
                    with pytest.raises(Disabled):
                        call(hutch)
            assert asyncio.all_tasks() == before
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert os.listdir(tmp_path) == []


def certificate(cert: Path, key: Path) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"openssl cannot make a certificate: {made.stderr!r}")


async def test_tls(tmp_path: Path) -> None:
    """A server's certificate is checked, by the certificates that were given."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate(cert, key)
    with serving("--tls-cert", str(cert), "--tls-key", str(key)) as server:
        url, opening = server.announcement["url"], server.key("user", "tls")
        async with Hutch(url, key=opening, ca=str(cert), rhythm=QUICK) as hutch, hutch.box() as box:
            data = os.urandom(3_000_000)
            await box.files.write("f", data)
            assert await box.files.read("f") == data
        async with Hutch(url, key=opening, rhythm=QUICK) as hutch:
            status = await hutch.status()
            assert status.state is Condition.UNREACHABLE and "certificate" in status.reason.lower()
    with pytest.raises(Invalid, match="certificates"):
        async with Hutch("https://127.0.0.1:1", ca=str(key), rhythm=QUICK) as hutch:
            await hutch.create()


def test_unknown_errors_keep_their_code() -> None:
    """An error that a later server knows and this client does not is a HutchError with its code."""
    error = _error(418, b'{"code": "teapot", "message": "short and stout", "retryable": true, "details": {"a": 1}}')
    assert (type(error), error.code, error.message, error.retryable) == (HutchError, "teapot", "short and stout", True)
    assert _error(502, b"<html>").code == "unavailable"
