"""What docs/guides/langbot.md and docs/guides/astrbot.md show can be pasted: settings are settings, programs run."""

import json
import os
import subprocess
import sys
from pathlib import Path

from hutch.config import Config
from tests.e2e.environments import python_of
from tests.server.serving import serving

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def blocks(guide: str, language: str) -> list[str]:
    return [block.split("```")[0] for block in (GUIDES / guide).read_text().split(f"```{language}\n")[1:]]


def test_langbot_gets_a_key_that_it_accepts() -> None:
    """LangBot refuses a token of fewer than 32 characters, or with white space."""
    (lines,) = blocks("langbot.md", "sh")
    with serving() as server:
        environ = {**os.environ, "HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)}
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        shown = subprocess.run(
            ["sh", "-ec", lines + 'printf %s "$LANGBOT_BOX_CONTROL_TOKEN"'], capture_output=True, text=True,
            check=True, env=environ,
        ).stdout  # fmt: skip
        assert len(shown) >= 32
        assert not any(character.isspace() for character in shown)
        assert server.tcp(shown).call("GET", "/v1/boxes").status == 200


def test_langbots_directories_are_configured_as_shown(tmp_path: Path) -> None:
    (text,) = blocks("langbot.md", "toml")
    (tmp_path / "hutch.toml").write_text(text)
    assert Config.load(tmp_path / "hutch.toml").server.langbot_shared_roots == ("/srv/langbot/data",)


def test_astrbots_endpoints_are_doors() -> None:
    """The paths of the endpoints are served by this server."""
    with serving() as server:
        client = server.tcp(server.key("user", "guide"))
        *sandboxes, mcp = [json.loads(block) for block in blocks("astrbot.md", "json")]
        for shown in sandboxes:
            sandbox = shown["sandbox"]
            endpoint = sandbox.get("shipyard_neo_endpoint") or sandbox["shipyard_endpoint"]
            path = endpoint.removeprefix("http://127.0.0.1:7300")
            assert client.call("GET", f"{path}/health").status == 200
        path = mcp["mcpServers"]["time"]["url"].removeprefix("http://127.0.0.1:7300")
        assert "time" in client.call("POST", path, {}).json()["message"], "the endpoint of MCP servers is elsewhere"


def test_the_program_runs() -> None:
    (program,) = blocks("astrbot.md", "python")
    with serving() as server:
        host, port = server.tcp().address
        code = program.replace("http://127.0.0.1:7300", f"http://{host}:{port}")
        code += f"\nimport asyncio\nprint(asyncio.run(main({server.key('user', 'guide')!r})))\n"
        python = python_of("shipyard-neo-sdk==0.2.0", "shipyard-python-sdk==0.2.4")
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == "42", done.stderr
