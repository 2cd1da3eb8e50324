"""Whole LangBot and whole AstrBot from PyPI, unmodified and headless, with one setting that names `hutch serve`.

They are installed in environments of their own (more than a gigabyte), so `make prove` runs these, not `make test`.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import proofs
from tests.e2e.environments import python_of, run_scenarios
from tests.e2e.whole_astrbot import AstrBot
from tests.e2e.whole_langbot import LangBot, free_port
from tests.server.serving import Server, serving

LANGBOT, ASTRBOT = "langbot==4.11.2", "astrbot==4.14.6"
NEWEST_ASTRBOT = "astrbot==4.29.3"
MCP_SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method = message["method"]
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        about = {"name": "mini", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        result = {"tools": [{"name": "shout", "description": "Shouts", "inputSchema": schema}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": message["params"]["arguments"]["text"].upper()}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="h-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def port() -> str:
    """A port that the server keeps over a restart, because the products only know its address."""
    return str(free_port())


@pytest.fixture
def server(port: str) -> Iterator[Server]:
    with serving("--port", port) as started:
        yield started


def _boxes(server: Server) -> list[dict[str, Any]]:
    boxes: list[dict[str, Any]] = server.unix(hutch_admin="yes").good("GET", "/v1/boxes")["boxes"]
    return boxes


@pytest.mark.proof
@pytest.mark.timeout(2400)
def test_whole_langbot(server: Server, port: str, directory: Path) -> None:
    """LangBot's agent uses its sandbox tools, an MCP server and attachments on Hutch, over a restart of Hutch (B44)."""
    bot = LangBot(python_of(LANGBOT), directory, f"ws://127.0.0.1:{port}", server.key("user", "bot"))
    facts: dict[str, Any] = {}
    begun = time.monotonic()
    try:
        bot.start()
        facts["start_sec"] = round(time.monotonic() - begun, 1)
        bot.call("POST", "/user/init", {"user": "admin@example.org", "password": "Passw0rd!x"})
        status = bot.until("the box is available", lambda: _available(bot))
        assert status["backend"] == {"name": "hutch", "available": True}
        bot.install_plugin()
        agent = bot.create_agent()
        facts["tools"] = _use_langbot_tools(bot, agent)
        facts["mcp"] = _use_langbot_mcp(bot, agent)
        facts["boxes"] = len(_boxes(server))

        server.end()
        server.start("--port", port)
        bot.until("LangBot has connected again", lambda: _available(bot), 180)
        answer = bot.run_tools(agent, ("exec", {"command": "cat notes.txt"}))
        assert answer["calls"][0][2]["stdout"] == "hallo\nworld", answer["calls"]
        bot.until("the MCP server is back", lambda: _mcp_connected(bot), 180)
        assert _shout(bot, agent) == "AGAIN"
        facts["restart"] = "sessions, files and the MCP server were there again"
    finally:
        bot.end()
    left = [box for box in _boxes(server) if box["spec"]["labels"].get("langbot.instance")]
    assert left == [], "LangBot's end did not end its sessions"
    proofs.write("langbot", product=LANGBOT, door="/rpc/ws", seconds=round(time.monotonic() - begun, 1), **facts)


def _available(bot: LangBot) -> dict[str, Any] | None:
    status: dict[str, Any] = bot.call("GET", "/box/status")
    return status if status["available"] else None


def _use_langbot_tools(bot: LangBot, agent: str) -> list[str]:
    answer = bot.run_tools(
        agent,
        ("exec", {"command": "echo out; echo err >&2; exit 3"}),
        ("write", {"path": "/workspace/notes.txt", "content": "hello\nworld\n"}),
        ("edit", {"path": "/workspace/notes.txt", "old_string": "hello", "new_string": "hallo"}),
        ("read", {"path": "/workspace/notes.txt"}),
        ("glob", {"pattern": "*.txt", "path": "/workspace"}),
        ("grep", {"pattern": "hal+o", "path": "/workspace"}),
        ("write", {"path": "/workspace/mini.py", "content": MCP_SERVER}),
        ("exec", {"command": "sleep 60", "timeout_sec": 1}),
        ("exec", {"command": "cat notes.txt; cp notes.txt copy.txt"}),
        ("export", {"paths": ["/workspace/copy.txt"]}),  # LangBot removes what it exports.
    )
    calls = answer["calls"]
    assert all(succeeded for _, succeeded, _ in calls), calls
    results = [result for _, _, result in calls]
    assert (results[0]["exit_code"], results[0]["stdout"], results[0]["stderr"]) == (3, "out", "err")
    assert "hallo" in str(results[3])
    assert "notes.txt" in str(results[4])
    assert "hallo" in str(results[5])
    assert results[7]["status"] == "timed_out"
    assert results[8]["stdout"] == "hallo\nworld", "the timeout lost the session"
    assert results[9][0]["size"] == 12
    return sorted({tool for tool, _, _ in calls})


def _use_langbot_mcp(bot: LangBot, agent: str) -> str:
    arguments = {"command": "python3", "args": ["/workspace/mini.py"], "env": {}}
    bot.call("POST", "/mcp/servers", {"name": "mini", "mode": "stdio", "enable": True, "extra_args": arguments})
    bot.until("the MCP server is connected", lambda: _mcp_connected(bot), 120)
    assert _shout(bot, agent, "loud") == "LOUD"
    return "a stdio server in a box, called by the agent"


def _mcp_connected(bot: LangBot) -> bool:
    shown = bot.call("GET", "/mcp/servers/mini")
    return bool(shown["server"]["runtime_info"]["status"] == "connected")


def _shout(bot: LangBot, agent: str, text: str = "again") -> str:
    name = next(tool for tool in bot.run_tools(agent)["tools"] if tool.endswith("shout"))
    result = bot.run_tools(agent, (name, {"text": text}))["calls"][0]
    assert text.upper() in str(result), result
    return text.upper()


@pytest.mark.proof
@pytest.mark.timeout(2400)
def test_whole_astrbot(server: Server, port: str, directory: Path) -> None:
    """AstrBot's chat uses its sandbox tools and an MCP server on Hutch, over a restart of Hutch (P21).

    Each chat has a box of its own, and the MCP server has one.
    """
    version, key = ASTRBOT.partition("==")[2], server.key("user", "bot")
    sandbox = {
        "booter": "shipyard", "shipyard_endpoint": f"http://127.0.0.1:{port}/shipyard",
        "shipyard_access_token": key, "shipyard_ttl": 3600, "shipyard_max_sessions": 10,
    }  # fmt: skip
    program = {"command": "python3", "args": ["-c", MCP_SERVER]}
    server.tcp(key).good("POST", "/v1/mcp-servers", {"name": "mini", "definition": program})
    mcp_server = {
        "transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp/servers/mini",
        "headers": {"Authorization": f"Bearer {key}"},
    }  # fmt: skip
    bot = AstrBot(python_of(ASTRBOT), directory, sandbox, {"mini": mcp_server})
    upload = directory / "upload.txt"
    upload.write_text("from AstrBot\n")
    begun = time.monotonic()
    try:
        bot.start(version)
        started = round(time.monotonic() - begun, 1)
        answer = bot.run_tools(
            "chat-1",
            ("astrbot_execute_shell", {"command": "echo out; echo err >&2; ls skills; exit 3"}),
            ("astrbot_execute_ipython", {"code": "x = 41\nprint('set')"}),
            ("astrbot_execute_ipython", {"code": "x + 1"}),
            ("astrbot_upload_file", {"local_path": str(upload)}),
            ("astrbot_execute_shell", {"command": "cat upload.txt > kept.txt; cat kept.txt"}),
            ("astrbot_execute_shell", {"command": "sleep 0.1; echo late > late.txt", "background": True}),
            ("astrbot_download_file", {"remote_path": "kept.txt"}),
        )
        data = json.loads(answer[0])["data"]
        assert (data["return_code"], data["stdout"], data["stderr"]) == (3, "out\ngreet", "err"), answer[0]
        assert "set" in answer[1]
        assert "42" in answer[2]
        assert json.loads(answer[4])["data"]["stdout"] == "from AstrBot", answer[4]
        assert json.loads(answer[5])["data"]["pid"], answer[5]
        assert "rror" not in answer[6], answer[6]
        while "shout" not in bot.model.offered:  # AstrBot connects to its MCP servers while it answers already.
            bot.run_tools("chat-1", ("astrbot_execute_shell", {"command": "true"}))
        (shouted,) = bot.run_tools("chat-1", ("shout", {"text": "loud"}))
        assert "LOUD" in shouted, shouted
        shown = server.tcp(key).good("GET", "/v1/mcp-servers/mini")
        assert shown["box"] in {box["id"] for box in _boxes(server)}, shown
        other = bot.run_tools("chat-2", ("astrbot_execute_shell", {"command": "ls kept.txt"}))
        assert json.loads(other[0])["data"]["return_code"] != 0, "another chat sees the files"
        boxes = len(_boxes(server))

        server.end()
        server.start("--port", port)
        again = bot.run_tools(
            "chat-1",
            ("astrbot_execute_shell", {"command": "cat kept.txt late.txt"}),
            ("astrbot_execute_ipython", {"code": "print(6 * 7)"}),
        )
        assert json.loads(again[0])["data"]["stdout"] == "from AstrBot\nlate", again[0]
        assert "42" in again[1]
        # This release does not begin a new MCP session by itself when the server says that the old one is gone.
        bot.reconnect_mcp_server("mini")
        (shouted,) = bot.run_tools("chat-1", ("shout", {"text": "again"}))
        assert "AGAIN" in shouted, shouted
    finally:
        bot.end()
    proofs.write(
        "astrbot", product=ASTRBOT, door="/shipyard", booter="shipyard",
        why_this_release="the newest that this Python can install; from 4.14.7 on AstrBot needs Python 3.12",
        start_sec=started, seconds=round(time.monotonic() - begun, 1), boxes=boxes, tools=bot.model.offered,
        mcp="a stdio server in a box, called by the chat's model through Hutch's HTTP endpoint",
        restart="files of the chat were there again, and the MCP server after it was switched on again in AstrBot",
    )  # fmt: skip


@pytest.mark.proof
@pytest.mark.timeout(2400)
def test_the_neo_booter_of_astrbot(server: Server, port: str) -> None:
    """The newest AstrBot's own sandbox layer and booter `shipyard_neo` use the Bay API (P21).

    This release asks for Python 3.12. Its sandbox layer runs on 3.11 too, with the packages of the earlier release.
    """
    python = python_of(ASTRBOT, "loguru", "python-ripgrep", "shipyard-neo-sdk==0.2.0", alone=NEWEST_ASTRBOT)
    script = Path(__file__).with_name("astrbot_neo.py")
    outcomes = run_scenarios(python, script, f"127.0.0.1:{port}", server.key("user", "bot"))
    assert [outcome["error"] for outcome in outcomes.values()] == ["", ""]
    proofs.write(
        "astrbot-neo", product=NEWEST_ASTRBOT, part="sandbox layer and booter, without the application",
        door="/bay", booter="shipyard_neo", scenarios=sorted(outcomes),
    )  # fmt: skip
