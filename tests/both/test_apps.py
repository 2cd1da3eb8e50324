"""App boxes: the same in every form of Hutch (see conftest.py)."""

from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import AppFailed, Conflict, Invalid, NotFound, Unsupported
from hutch.model.apps import AppState
from tests.both.forms import TIMEOUT, Open

SPEC = {"memory_mb": 256}


async def _page(hutch: Hutch, box_id: str, port: int) -> str:
    box = await hutch.attach(box_id)
    async with await box.connect(port) as connection:
        await connection.send(b"GET / HTTP/1.0\r\n\r\n")
        received = b""
        while data := await connection.receive():
            received += data
    return received.decode()


async def test_an_app_is_made_answers_stops_and_starts_again(open_hutch: Open) -> None:
    """(S6) From a template to a page, with its log; what stops keeps its files."""
    async with open_hutch() as hutch:
        assert {each.name for each in await hutch.apps.templates()} == {
            "react", "vue", "next", "express", "fastapi", "flask", "static"
        }  # fmt: skip
        async with await hutch.app("static", "site", wait_sec=TIMEOUT, **SPEC) as app:
            info = await app.info()
            assert (info.name, info.template, info.state, info.port) == ("site", "static", AppState.RUNNING, 8000)
            assert "<h1>It works</h1>" in await _page(hutch, app.box_id, app.port)
            assert any("GET / " in line for line in await app.logs())
            assert len(await app.logs(lines=1)) == 1
            assert [each.box_id for each in await hutch.apps.all()] == [app.box_id]
            with pytest.raises(Conflict):
                await app.start()

            assert (await app.stop()).state is AppState.STOPPED
            assert (await app.stop()).state is AppState.STOPPED
            await (await hutch.attach(app.box_id)).files.write("public/index.html", "changed")
            await app.start()
            assert (await hutch.apps.wait("site", TIMEOUT)).state is AppState.RUNNING
            assert "changed" in await _page(hutch, app.box_id, app.port)

            with pytest.raises(Conflict):
                await hutch.apps.create("static", "site", **SPEC)
            assert [each.name for each in await hutch.apps.all()] == ["site"]
        assert await hutch.apps.all() == ()


async def test_a_preview_leads_to_the_app(open_hutch: Open) -> None:
    """Where a server keeps the boxes; elsewhere the error says what to do."""
    async with open_hutch() as hutch, await hutch.app("static", wait_sec=TIMEOUT, **SPEC) as app:
        try:
            preview = await app.url(ttl_sec=60)
        except Unsupported as error:
            assert "hutch serve" in error.remedy
            return
        assert preview.url.startswith(f"http://8000-{app.box_id}.localhost:")


async def test_a_port_that_is_taken_is_left_alone(open_hutch: Open) -> None:
    """(S6) The search begins at the port that was asked for and ends at the first that is really free."""
    async with open_hutch() as hutch, await hutch.app("static", port=8001, wait_sec=TIMEOUT, **SPEC) as app:
        assert app.port == 8001
        await app.stop()
        box = await hutch.attach(app.box_id)
        await box.start(["python3", "-m", "http.server", "8001", "--bind", "127.0.0.1"])
        await box.ports(wait=TIMEOUT)
        await app.start()
        assert (await app.wait(TIMEOUT)).port == 8002


async def test_a_failure_comes_with_the_end_of_its_log(open_hutch: Open) -> None:
    """Packages cannot be installed without a network: the error says what to set, and the box is gone with it."""
    async with open_hutch() as hutch:
        with pytest.raises(AppFailed) as failed:
            await hutch.app("flask", "shop", network="off", **SPEC)
        assert "no network" in failed.value.message
        assert "--net on" in failed.value.remedy
        assert any("lask" in line for line in failed.value.details["log"])
        assert await hutch.apps.all() == ()


async def test_a_program_that_ends_is_a_failure(open_hutch: Open) -> None:
    """A failed app stays to be looked at, and starts again when its cause is gone."""
    async with open_hutch() as hutch:
        app = await hutch.apps.create("static", "site", **SPEC)
        await hutch.apps.wait("site", TIMEOUT)
        await hutch.apps.stop("site")
        box = await hutch.attach(app.box_id)
        await box.files.write("http.py", "")  # in the place of Python's own package
        await hutch.apps.start("site")
        with pytest.raises(AppFailed) as failed:
            await hutch.apps.wait("site", TIMEOUT)
        assert "exit code" in failed.value.message
        assert any("ModuleNotFoundError" in line for line in failed.value.details["log"])
        assert (await hutch.apps.get("site")).state is AppState.FAILED
        await box.files.remove("http.py")
        await hutch.apps.start("site")
        assert (await hutch.apps.wait("site", TIMEOUT)).state is AppState.RUNNING
        await hutch.apps.remove("site")


async def test_a_workspace_with_an_application_is_taken_as_it_is(tmp_path: Path) -> None:
    """Nothing of a person's own files is overwritten."""
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "index.html").write_text("my own page")
    async with Hutch(mount_roots=[str(tmp_path)]) as hutch:
        async with await hutch.app("static", workspace=str(tmp_path), wait_sec=TIMEOUT, **SPEC) as app:
            assert "my own page" in await _page(hutch, app.box_id, app.port)
    assert [each.name for each in (tmp_path / "public").iterdir()] == ["index.html"]


async def test_what_is_wrong_is_said(open_hutch: Open) -> None:
    async with open_hutch() as hutch:
        with pytest.raises(Invalid, match="no template 'rails'"):
            await hutch.apps.create("rails")
        with pytest.raises(Invalid):
            await hutch.apps.create("static", port=70000)
        with pytest.raises(Invalid):
            await hutch.apps.create("static", no_such_field=1)
        with pytest.raises(NotFound):
            await hutch.apps.get("nothing")
        async with hutch.box(**SPEC) as box:
            with pytest.raises(NotFound, match="no app"):
                await hutch.apps.get(box.id)
            with pytest.raises(NotFound, match="no app"):
                await hutch.apps.stop(box.id)
        assert await hutch.boxes() == ()
