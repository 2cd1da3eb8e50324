"""The official SDK's client at `hutch mcp` and `/mcp`: list, call, progress, cancel, elicitation, in both eras."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mcp.serving.clients import ERAS, environ, over_http, stdio
from tests.mcp.serving.protocol_tour import tour
from tests.server.serving import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = environ(tmp_path_factory.mktemp("rules"))["HUTCH_CONFIG"]
    with serving(HUTCH_CONFIG=config, HUTCH_SERVER_ANSWER_SEC="0") as started:
        yield started


@pytest.mark.parametrize("era", ERAS)
async def test_on_stdio(era: str, top: Path) -> None:
    await tour(stdio(top), era)


@pytest.mark.parametrize("era", ERAS)
async def test_over_http(era: str, server: Server) -> None:
    await tour(over_http(server, server.key("user", f"owner-{era}")), era)
