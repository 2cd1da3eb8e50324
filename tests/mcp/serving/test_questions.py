"""Where an MCP client cannot ask its user, people of the same owner decide over HTTP."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mcp.serving.clients import ERAS, environ, over_http, run, text
from tests.mcp.serving.protocol_tour import User
from tests.server.serving import Client, Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = environ(tmp_path_factory.mktemp("rules"))["HUTCH_CONFIG"]
    with serving(HUTCH_CONFIG=config) as started:
        yield started


async def waiting(person: Client) -> dict[str, Any]:
    """The one question, as soon as it is there."""
    while True:
        found = (await asyncio.to_thread(person.good, "GET", "/v1/questions"))["questions"]
        if found:
            (question,) = found
            return dict(question)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("era", ERAS)
async def test_a_person_decides_over_http(server: Server, era: str) -> None:
    """The question waits at `/v1/questions`, the answer decides, and each decision has its receipt."""
    owner = f"answering-{era}"
    person = server.tcp(server.key("user", owner))
    async with over_http(server, server.key("user", owner))(era) as client:
        box = (await run(client, "touch kept other"))["box"]
        for answer, left in (("deny", ["kept", "other"]), ("allow", ["other"])):
            calling = asyncio.create_task(client.call_tool("exec", {"command": "rm kept"}))
            question = await waiting(person)
            assert (question["what"], question["agent"], question["box"]) == ("rm kept", "tester", box)
            assert question["reason"] == "it removes files"
            await asyncio.to_thread(person.good, "POST", f"/v1/questions/{question['id']}", {"answer": answer})
            reply = await calling
            assert reply.is_error == (answer == "deny"), text(reply)
            assert (await run(client, "ls"))["stdout"].split() == left
    receipts = [each for each in person.good("GET", f"/v1/receipts?box={box}")["receipts"] if each["op"] == "tool.exec"]
    decided = [each["details"] for each in receipts if each["details"]["what"] == "rm kept"]
    assert [(each["decision"], each["by"]) for each in decided] == [("deny", "answer"), ("allow", "answer")]


async def test_a_client_that_can_ask_is_asked(server: Server) -> None:
    """Its own user comes first: nothing waits anywhere else."""
    owner, user = "own-user", User()
    person = server.tcp(server.key("user", owner))
    async with over_http(server, server.key("user", owner))("auto", elicitation_callback=user) as client:
        assert (await client.call_tool("exec", {"command": "rm none"})).is_error
    assert len(user.questions) == 1
    assert not [each for each in person.good("GET", "/v1/events?limit=1000")["events"] if each["kind"] == "asked"]


async def test_a_cancelled_call_asks_no_more(server: Server) -> None:
    """The question of a cancelled call is no longer shown."""
    owner = "cancelling"
    person = server.tcp(server.key("user", owner))
    async with over_http(server, server.key("user", owner))("auto") as client:
        calling = asyncio.create_task(client.call_tool("exec", {"command": "rm none"}))
        await waiting(person)
        calling.cancel()
        while person.good("GET", "/v1/questions")["questions"]:
            await asyncio.sleep(0.02)
