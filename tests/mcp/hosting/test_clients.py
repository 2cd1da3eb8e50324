"""Many clients of one hosted server: answers, progress and questions reach the right client, and secrets reach none."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import mcp.types as types
import pytest

from hutch import logs
from hutch.errors import ServerFailed
from hutch.keeper.embedded import Hutch
from hutch.mcp.hosting import Hosted
from hutch.mcp.hosting.supervisor import shown_command
from hutch.model.mcp import McpServer, Phase
from mcp import MCPError
from tests.mcp.hosting.hosted_servers import QUICK, hosting, plain, text_of

SECRET = "sk-very-secret-0123456789"


async def test_answers_and_progress_find_their_client(tmp_path: Path) -> None:
    """Requests of several clients share one process; each gets its own answers and its own progress."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "p"))

        async def use(who: str) -> tuple[str, set[str | None]]:
            seen: set[str | None] = set()

            async def progress(_: float, __: float | None, message: str | None) -> None:
                seen.add(message)

            async with hosted.session("plain") as client:
                result = await client.call_tool("progress", {"who": who}, progress_callback=progress)
                return text_of(result), seen

        names = [f"client {number}" for number in range(8)]
        assert await asyncio.gather(*map(use, names)) == [(name, {name}) for name in names]
        assert (await hosted.info("plain")).starts == 1


async def test_lines_not_pieces(tmp_path: Path) -> None:
    """A message of several MB arrives whole however the pipe cuts it, and other lines do no harm (lesson 36)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "p"))
        async with hosted.session("plain") as client:
            both = await asyncio.gather(
                client.call_tool("large", {"characters": 3_000_000}), client.call_tool("echo", {"text": "small"})
            )
            assert [len(text_of(each)) for each in both] == [3_000_000, 5]
            assert text_of(await client.call_tool("junk", {})) == "after the junk"
        said = await hosted.logs("plain")
        assert any("Willkommen!" in line for line in said)


async def test_a_line_has_an_end(tmp_path: Path) -> None:
    """A server that never ends its line is stopped before it fills our memory, and is restarted (lesson 36)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "p"))
        async with hosted.session("plain") as client:
            with pytest.raises(MCPError):
                await client.call_tool("endless", {"megabytes": 20})
            assert text_of(await client.call_tool("echo", {"text": "again"})) == "again"
        assert (await hosted.info("plain")).starts == 2


async def test_cancelling_reaches_the_server(tmp_path: Path) -> None:
    """A cancelled request is cancelled on the server too, and requests of other clients are not affected."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "p"))
        async with hosted.gateway() as client, hosted.session("plain") as other:
            going_on = asyncio.ensure_future(other.call_tool("sleep", {"seconds": 1}))
            given_up = asyncio.ensure_future(client.call_tool("plain__sleep", {"seconds": 30}))
            await client.call_tool("plain__echo", {"text": "both are under way"})
            given_up.cancel()
            await asyncio.wait({given_up})
            async with asyncio.timeout(20):
                while not json.loads(text_of(await client.call_tool("plain__cancels", {}))):
                    await asyncio.sleep(0.02)
            assert text_of(await going_on) == "slept"


async def test_a_call_has_an_end(tmp_path: Path) -> None:
    """Phase tool_call has its own time, and the server lives on (B36)."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "p", tool_timeout_sec=0.5))
        with pytest.raises(ServerFailed, match=r"did not answer tools/call within 0\.5 s") as failed:
            await hosted.call("plain", "sleep", {"seconds": 20})
        assert failed.value.details["phase"] == Phase.TOOL_CALL
        assert (await hosted.info("plain")).starts == 1


async def test_questions_go_to_the_client_that_called(tmp_path: Path) -> None:
    """A server's question is passed to the client whose call it works on; where two could be meant, it is refused."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "p"))

        async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            return types.ElicitResult(action="accept", content={"word": params.message})

        async with hosted.session("plain", elicitation_callback=answer) as client:
            reply = json.loads(text_of(await client.call_tool("ask", {})))
            assert reply == {"action": "accept", "content": {"word": "Which word?"}}
            async with hosted.session("plain") as other:
                waiting = asyncio.ensure_future(other.call_tool("sleep", {"seconds": 2}))
                await other.call_tool("echo", {"text": "it is under way"})
                refused = json.loads(text_of(await client.call_tool("ask", {})))
                assert "more than one" in refused["message"]
                await waiting


async def test_filters(tmp_path: Path) -> None:
    """What a definition does not allow is neither listed nor called; the gateway shows `server__tool`."""
    async with hosting(tmp_path) as hosted:
        await hosted.add("plain", plain(tmp_path / "p", allow=("e*",), deny=("eat", "endless")))
        async with hosted.gateway() as client:
            shown = [tool.name for tool in (await client.list_tools()).tools]
            assert shown == ["plain__echo", "plain__environment"]
            for name in ("plain__eat", "plain__where", "echo", "nobody__echo"):
                with pytest.raises(MCPError, match="no tool"):
                    await client.call_tool(name, {})
        async with hosted.session("plain") as alone:
            assert [tool.name for tool in (await alone.list_tools()).tools] == ["echo", "environment"]
            assert alone.instructions == "Plain words."
        assert [tool.name for tool in await hosted.tools("plain")] == ["echo", "environment"]
        assert (await hosted.info("plain")).tools == 2


async def test_one_that_fails_hides_no_other(tmp_path: Path) -> None:
    """The gateway lists those that are there (lesson 35)."""
    settings = QUICK.but(retry_pauses_sec=())
    async with hosting(tmp_path, settings) as hosted:
        await hosted.add("broken", McpServer(command="false"))
        await hosted.add("good", plain(tmp_path / "p", allow=("echo",)))
        async with hosted.gateway() as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["good__echo"]


async def test_secrets_are_nowhere(tmp_path: Path) -> None:
    """The server has them in its environment; no command line, log, status, record or receipt does (lesson 37)."""
    written = io.StringIO()
    async with Hutch(mount_roots=(), log_level="debug") as hutch:
        logs.configure(level="debug", write=written.write)
        try:
            async with Hosted(hutch, directory=tmp_path, settings=QUICK) as hosted:
                server = plain(tmp_path / "p", env={"API_TOKEN": SECRET, "NOISY": "1"})
                await hosted.add("plain", server)
                assert text_of(await hosted.call("plain", "environment", {"name": "API_TOKEN"})) == SECRET
                info = await hosted.info("plain")
                assert info.env == ("API_TOKEN", "NOISY")
                box = await hutch.observe(info.box)
                lines = await (await hutch.attach(info.box)).exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
                receipts = await hutch.receipts.list(info.box)
                shown = [repr(info), repr(await box.jobs()), repr(await box.info()), lines.stdout, repr(receipts)]
                assert "server.py" in lines.stdout
                assert not [each for each in shown if SECRET in each]
                with pytest.raises(ServerFailed) as failed:
                    await hosted.add("echoing", McpServer(command="sh", args=("-c", "echo $API_TOKEN >&2; exit 1"),
                                                          env={"API_TOKEN": SECRET}))  # fmt: skip
                    await hosted.start("echoing")
                assert SECRET not in str(failed.value) + repr(await hosted.logs("echoing"))
                assert "***" in repr(await hosted.logs("echoing"))
        finally:
            logs.configure(level="warning")
    assert "mcp" in written.getvalue()
    assert SECRET not in written.getvalue()


def test_secrets_of_command_lines_are_not_shown() -> None:
    """People put them there all the same; what is called like a secret is not repeated (lesson 37)."""
    words = ("--api-key", "k1", "--token=k2", "--name", "n", "-v", "--password", "--port=1")
    shown = shown_command(McpServer(command="x", args=words))
    assert shown == ("x", "--api-key", "***", "--token=***", "--name", "n", "-v", "--password", "--port=1")
