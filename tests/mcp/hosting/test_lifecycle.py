"""The lifecycle of a hosted server: it starts on demand, names its failed phase, is restarted, and harms no other."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from hutch import front
from hutch.config.mcp import McpTable
from hutch.errors import Conflict, Invalid, NotFound, Refused, ServerFailed
from hutch.keeper.embedded import Hutch
from hutch.mcp.hosting import Hosted
from hutch.model.mcp import McpServer, Phase, ServerState, Share, Start
from mcp import MCPError
from tests.mcp.hosting.hosted_servers import QUICK, hosting, plain, project, text_of, where
from tests.server.serving import serving


async def test_lazy_and_eager(tmp_path: Path) -> None:
    """A server starts at boot or at first use, in a box whose id is shown, and stops without a trace (B32, B37)."""
    async with Hutch(mount_roots=()) as hutch:
        settings = QUICK.but(
            servers={"early": plain(tmp_path / "early", start=Start.EAGER), "late": plain(tmp_path / "late")}
        )
        async with Hosted(hutch, directory=tmp_path, settings=settings) as hosted:
            assert (await hosted.info("early")).state in (ServerState.STARTING, ServerState.READY)
            assert (await hosted.info("late")).state is ServerState.STOPPED
            started = await hosted.start("late")
            assert (started.state, started.phase, started.boxed, started.retries) == ("ready", "runtime", True, 0)
            assert started.box in {box.id for box in await hutch.boxes()}
            assert (await hosted.start("early")).box != started.box
            stopped = await hosted.stop("late")
            assert (stopped.state, stopped.box) == ("stopped", "")
            assert started.box not in {box.id for box in await hutch.boxes()}
            assert text_of(await hosted.call("late", "echo", {"text": "again"})) == "again"
        assert await hutch.boxes() == ()


async def test_files_are_mounted_and_arguments_follow(tmp_path: Path) -> None:
    """The project is mounted read-only. A path argument becomes the path in the box; other text stays (B33, B34)."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "note.txt").write_text("from the host")
    place = project(tmp_path / "proj")
    arguments = (str(place / "server.py"), f"--data={data}", str(data / "note.txt"), f"said {place} aloud")
    server = McpServer(command="/usr/bin/python3", args=arguments)
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", server)
        found = where(await hosted.call("plain", "where"))
        assert found["cwd"] == "/mnt/project"
        assert found["argv"] == ["/mnt/project/server.py", "--data=/mnt/data", "/mnt/data/note.txt", arguments[3]]
        info = await hosted.info("plain")
        assert info.files == {str(place): "/mnt/project", str(data): "/mnt/data"}


async def test_the_same_over_a_launched_hutch(tmp_path: Path) -> None:
    """Registering a server opens its project to that server's box, also where another process keeps the boxes;
    nothing else is opened by it, and what is always refused stays refused (B22, B33)."""
    place, other = project(tmp_path / "proj"), project(tmp_path / "other")
    async with front.Hutch.launch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path / "registry", settings=QUICK) as hosted:
            await hosted.add("plain", McpServer(command="/usr/bin/python3", args=(str(place / "server.py"),)))
            assert where(await hosted.call("plain", "where"))["cwd"] == "/mnt/project"
            for path in (other, Path("/etc")):
                with pytest.raises(Refused):
                    await hutch.create(mounts=[f"{path}:/mnt/other"])
            await hosted.add("etc", McpServer(command="/usr/bin/python3", args=("/etc/hostname",), host_path="/etc"))
            with pytest.raises(ServerFailed, match="/etc"):
                await hosted.start("etc")


async def test_the_same_at_a_server(tmp_path: Path) -> None:
    """An admin's process hosts in the boxes of a server what that admin could register there; a user's key opens no
    path of the machine (B22, B33)."""
    place = project(tmp_path / "proj")
    with serving() as server:
        for role in ("admin", "user"):
            async with front.Hutch(server.announcement["url"], key=server.key(role, role)) as hutch:
                async with Hosted(hutch, directory=tmp_path / role, settings=QUICK) as hosted:
                    await hosted.add("plain", McpServer(command="/usr/bin/python3", args=(str(place / "server.py"),)))
                    if role == "admin":
                        assert where(await hosted.call("plain", "where"))["cwd"] == "/mnt/project"
                    else:
                        with pytest.raises(ServerFailed, match="only an admin opens paths"):
                            await hosted.start("plain")


async def test_only_what_was_opened_is_shown(tmp_path: Path) -> None:
    """A definition by somebody who may not open paths of this machine gets none, and the error says where (B18)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "proj"), trusted=False)
        with pytest.raises(ServerFailed, match="does not lie under an allowed root") as failed:
            await hosted.start("plain")
        assert failed.value.details["phase"] == Phase.SESSION_CREATE
        info = await hosted.info("plain")
        assert (info.state, info.retries, info.box) == ("failed", 0, "")


async def test_a_box_for_each(tmp_path: Path) -> None:
    """A server that runs out of memory is said to, heals, and the other one does not notice (lesson 35)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("glutton", plain(tmp_path / "a", memory_mb=96, disk_mb=32))
        await hosted.add("modest", plain(tmp_path / "b"))
        before = where(await hosted.call("modest", "where"))
        async with hosted.gateway() as client:
            with pytest.raises(MCPError, match="memory") as lost:
                await client.call_tool("glutton__eat", {})
            assert lost.value.error.data["details"]["cause"] == "oom"
            assert lost.value.error.data["details"]["phase"] == Phase.TOOL_CALL
            assert text_of(await client.call_tool("modest__echo", {"text": "here"})) == "here"
            assert text_of(await client.call_tool("glutton__echo", {"text": "back"})) == "back"
        assert where(await hosted.call("modest", "where"))["pid"] == before["pid"]
        assert (await hosted.info("modest")).starts == 1
        assert (await hosted.info("glutton")).starts == 2


async def test_a_slow_start_is_not_a_death(tmp_path: Path) -> None:
    """A server that needs seconds to answer `initialize` is waited for, and started once (lesson 38)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("slow", plain(tmp_path / "p", env={"SLOW_START": "4"}))
        assert text_of(await hosted.call("slow", "echo", {"text": "at last"})) == "at last"
        info = await hosted.info("slow")
        assert (info.starts, info.retries) == (1, 0)


async def test_a_real_exit_is_one(tmp_path: Path) -> None:
    """After three more attempts it has failed, with its phase, exit code and last output (B36, lesson 38)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("broken", plain(tmp_path / "p", env={"EXIT_AT_START": "yes"}))
        with pytest.raises(ServerFailed, match=r"exited with 7.*I cannot work like this"):
            await hosted.start("broken")
        info = await hosted.info("broken")
        assert (info.state, info.starts, info.retries) == (ServerState.FAILED, 4, 3)
        assert info.error is not None
        assert info.error.phase is Phase.MCP_INIT
        assert "plain server says hello" in await hosted.logs("broken")


async def test_its_time_to_start_is_bounded(tmp_path: Path) -> None:
    """Silence has an end too, and it is named (lesson 38)."""
    settings = QUICK.but(retry_pauses_sec=())
    async with hosting(tmp_path, settings) as hosted:
        await hosted.add("mute", McpServer(command="sleep", args=("60",), startup_timeout_sec=1.0))
        with pytest.raises(ServerFailed, match="did not answer `initialize` within 1 s"):
            await hosted.start("mute")
        assert (await hosted.info("mute")).phase is Phase.MCP_INIT


async def test_a_program_that_the_box_lacks(tmp_path: Path) -> None:
    """Said at once, in phase process_start, with what to do (B36)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("absent", McpServer(command="no-such-program-here"))
        with pytest.raises(ServerFailed, match="no-such-program-here cannot be run in the box") as failed:
            await hosted.start("absent")
        assert failed.value.details["phase"] == Phase.PROCESS_START
        assert "image" in failed.value.remedy
        assert (await hosted.info("absent")).retries == 0


@pytest.mark.parametrize(
    ("configuration", "said"),
    [({"enabled": False}, "switched off"), ({"provider": "nowhere"}, "none can be made here")],
)
async def test_never_on_the_host(tmp_path: Path, configuration: dict[str, Any], said: str) -> None:
    """Without boxes no server runs, and the error distinguishes disabled from failed (B21, lesson 39)."""
    mark = tmp_path / "ran-on-the-host"
    async with hosting(tmp_path, **configuration) as hosted:
        await hosted.add("touch", McpServer(command="touch", args=(str(mark),)))
        with pytest.raises(ServerFailed, match=said) as failed:
            await hosted.start("touch")
        assert failed.value.details["code"] == ("disabled" if "enabled" in configuration else "unavailable")
        assert failed.value.remedy
    assert not mark.exists()


async def test_killed_it_heals(tmp_path: Path) -> None:
    """After kill -9 of the process a connected client gets the reason, is notified that lists may have changed, and
    continues in the same session (B28, B36)."""
    changes = asyncio.Event()

    async def message(answer: Any) -> None:
        if getattr(answer, "method", "") == "notifications/tools/list_changed":
            changes.set()

    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "p"))
        async with hosted.gateway(message_handler=message) as client:
            first = where(await client.call_tool("plain__where", {}))
            changes.clear()
            sleeping = asyncio.ensure_future(client.call_tool("plain__sleep", {"seconds": 30}))
            await asyncio.sleep(0)
            with pytest.raises(MCPError, match="exited with 9"):
                await client.call_tool("plain__die", {"code": 9})
            with pytest.raises(MCPError, match="exited with 9"):
                await sleeping
            async with asyncio.timeout(30):
                await changes.wait()
            assert where(await client.call_tool("plain__where", {}))["file"] == first["file"]
        assert (await hosted.info("plain")).starts == 2


async def test_box_destroyed_behind_its_back(tmp_path: Path) -> None:
    """A server whose whole box is gone is made a new one (B36)."""
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=QUICK) as hosted:
            await hosted.add("plain", plain(tmp_path / "p"))
            box = (await hosted.start("plain")).box
            await hutch.destroy(box, force=True)
            while (await hosted.info("plain")).box in (box, ""):
                await asyncio.sleep(0.05)
            assert text_of(await hosted.call("plain", "echo", {"text": "anew"})) == "anew"


async def test_pipeline_shares_a_box(tmp_path: Path) -> None:
    """The servers of one group have one box, their files at /workspace/.mcp/NAME; it ends with the last. A choice that
    is written as plain text is the same choice, and one that is none is refused (B10)."""
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=QUICK) as hosted:
            for name, share in (("one", Share.PIPELINE), ("two", "pipeline")):
                await hosted.add(name, plain(tmp_path / name, share=share, group="etl"))
            with pytest.raises(Invalid, match="share"):
                await hosted.add("three", plain(tmp_path / "three", share="pipelines"))
            one, two = await asyncio.gather(hosted.start("one"), hosted.start("two"))
            assert one.box == two.box
            assert where(await hosted.call("two", "where"))["file"] == "/workspace/.mcp/two/server.py"
            await hosted.stop("one")
            assert text_of(await hosted.call("two", "echo", {"text": "still"})) == "still"
            await hosted.stop("two")
            assert await hutch.boxes() == ()


async def test_scope_shares_the_conversations_box(tmp_path: Path) -> None:
    """In the conversation's box, lazily; the box is not the server's to end (B10)."""
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=QUICK) as hosted, hutch.box() as box:
            await hosted.add("plain", plain(tmp_path / "p", share=Share.SCOPE, start=Start.EAGER))
            assert len(await hutch.boxes()) == 1
            async with hosted.session("plain", box) as client:
                found = where(await client.call_tool("where", {}))
                assert found["file"] == "/workspace/.mcp/plain/server.py"
                names = [job.name for job in await box.jobs()]
                assert "mcp-plain" in names
            await hosted.stop("plain")
            assert (await box.exec("true")).ok


async def test_registry(tmp_path: Path) -> None:
    """Kept in a private file, across processes; names are taken once, and definitions of hutch.toml are not changed."""
    settings = QUICK.but(servers={"fixed": McpServer(command="true")})
    async with hosting(tmp_path, settings) as hosted:
        await hosted.add("plain", plain(tmp_path / "p", env={"TOKEN": "abcdefghij"}))
        with pytest.raises(Conflict):
            await hosted.add("plain", McpServer(command="true"))
        with pytest.raises(Conflict, match=r"hutch\.toml"):
            await hosted.add("fixed", McpServer(command="true"), replace=True)
        with pytest.raises(Invalid):
            await hosted.add("two__parts", McpServer(command="true"))
        with pytest.raises(Invalid):
            await hosted.add("neither", McpServer())
    assert os.stat(tmp_path / "registry" / "servers.json").st_mode & 0o777 == 0o600
    async with hosting(tmp_path, settings) as hosted:
        assert [info.name for info in await hosted.all()] == ["fixed", "plain"]
        await hosted.remove("plain")
        with pytest.raises(NotFound):
            await hosted.info("plain")


async def test_nothing_is_left_of_a_removed_one(tmp_path: Path) -> None:
    """Its process, its box and what was installed for it go with its definition (B37)."""
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=QUICK) as hosted:
            await hosted.add("leaving", plain(tmp_path / "p"))
            await hosted.start("leaving")
            assert "mcp-leaving" in [volume.name for volume in await hutch.volumes.all()]
            await hosted.remove("leaving")
            assert "mcp-leaving" not in [volume.name for volume in await hutch.volumes.all()]
            assert await hutch.boxes() == ()


async def test_disabled_is_not_failed(tmp_path: Path) -> None:
    """A server that is switched off says so, and is left out of the gateway (B37)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("off", plain(tmp_path / "p", disabled=True, start=Start.EAGER))
        assert (await hosted.info("off")).state is ServerState.DISABLED
        with pytest.raises(ServerFailed, match="disabled"):
            await hosted.start("off")
        async with hosted.gateway() as client:
            assert (await client.list_tools()).tools == []


def test_pauses_are_those_promised() -> None:
    """2, 4 and 8 seconds; looked at every 5; 120 s to start (B36)."""
    assert McpTable().retry_pauses_sec == (2.0, 4.0, 8.0)
    assert McpTable().health_sec == 5.0
    assert McpServer(command="x").startup_timeout_sec == 120.0


async def test_an_error_quotes_its_own_run_and_names_what_is_missing(tmp_path: Path) -> None:
    """The error says what to do: it quotes the last run once, and names the missing dependency (B36)."""
    place = project(tmp_path / "proj")
    (place / "server.py").write_text("import sys\nprint('hello', file=sys.stderr)\nimport not_installed_here\n")
    async with hosting(tmp_path) as hosted:
        await hosted.add("broken", McpServer(command="python3", args=(str(place / "server.py"),)))
        with pytest.raises(ServerFailed, match="No module named 'not_installed_here'") as failed:
            await hosted.start("broken")
        assert failed.value.message.count("hello") == 1
        assert "list not_installed_here in requirements.txt" in failed.value.remedy
        assert len([line for line in await hosted.logs("broken") if line == "hello"]) == 1, "it is not tried again"


@pytest.mark.parametrize(
    ("script", "said", "setting"),
    [
        ("import socket; socket.create_connection(('example.org', 80))", "name resolution", 'network = "on"'),
        ("open('/usr/written', 'w')", "Read-only file system", "read_only_root = false"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--no-such'])", "unrecognized arguments", "args"),
    ],
    ids=["network", "read-only", "arguments"],
)
async def test_a_server_that_cannot_succeed_fails_at_once(tmp_path: Path, script: str, said: str, setting: str) -> None:
    """Its own last words, the setting that helps, and no second attempt (B36)."""
    place = project(tmp_path / "proj")
    (place / "server.py").write_text(script)
    options = {"network": "off", "read_only_root": True}
    server = McpServer.from_plain({"command": "python3", "args": [str(place / "server.py")], **options})
    async with hosting(tmp_path) as hosted:
        await hosted.add("hopeless", server)
        with pytest.raises(ServerFailed, match=said) as failed:
            await hosted.start("hopeless")
        info = await hosted.info("hopeless")
        assert (info.state, info.starts, info.retries) == (ServerState.FAILED, 1, 0)
        assert setting in failed.value.remedy


async def test_a_box_that_another_session_took_over_is_left_alone(tmp_path: Path) -> None:
    """The server's handle is stale then. Waiting requests fail, and the server starts again in another box (P6)."""
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=QUICK) as hosted:
            await hosted.add("plain", plain(tmp_path / "p"))
            first = (await hosted.start("plain")).box
            taken = await hutch.for_session("somebody").attach(first, takeover=True)
            with pytest.raises(ServerFailed, match="was taken over"):
                await asyncio.wait_for(hosted.call("plain", "echo", {"text": "lost"}), 60)
            while (await hosted.info("plain")).starts < 2:
                await asyncio.sleep(0.1)
            assert text_of(await hosted.call("plain", "echo", {"text": "on"})) == "on"
            assert (await hosted.info("plain")).box != first
            assert (await taken.exec("true")).ok
            await taken.destroy()
