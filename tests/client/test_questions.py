"""Permission questions by the public protocol: the same embedded, remote and without `await`."""

import asyncio
import threading

import pytest

import hutch.sync
from hutch import Hutch
from hutch.errors import NotFound
from hutch.tools import AgentPermissions, Answer, AskRequest, Tools
from tests.client.test_connection import unix
from tests.server.serving import Server, until


@pytest.mark.parametrize("remote", [False, True])
async def test_a_tool_s_question_is_answered(server: Server, remote: bool) -> None:
    """`ask` reaches all users of the same Hutch. The first answer counts, and cancellation withdraws the question."""
    async with Hutch(unix(server)) if remote else Hutch(store="memory") as hutch:
        rules = AgentPermissions.from_plain({"tools": {"exec": "ask"}})
        tools = Tools(hutch, permissions=rules, ask=hutch.questions.ask, spec={"memory_mb": 64})
        for said, allowed in (("deny", False), (Answer.ALLOW, True)):
            calling = asyncio.create_task(tools.call("exec", {"command": "echo x"}))
            while not (found := await hutch.questions.waiting()):
                await asyncio.sleep(0.02)
            (question,) = found
            assert question.text == "May agent main use exec: echo x?"
            assert (question.agent, question.tool, question.arguments) == ("main", "exec", {"command": "echo x"})
            await hutch.questions.answer(question.id, said)
            assert (await calling).is_error is not allowed
            with pytest.raises(NotFound):
                await hutch.questions.answer(question.id, "allow")
        leaving = asyncio.create_task(hutch.questions.ask(AskRequest(agent="a", tool="exec")))
        while not await hutch.questions.waiting():
            await asyncio.sleep(0.02)
        leaving.cancel()
        while await hutch.questions.waiting():
            await asyncio.sleep(0.02)
        await tools.close()
        for info in await hutch.boxes():
            await hutch.destroy(info.id, force=True)


def test_questions_without_await() -> None:
    with hutch.sync.Hutch(store="memory") as local:
        answers: list[Answer] = []
        asking = threading.Thread(
            target=lambda: answers.append(local.questions.ask(AskRequest(agent="a", tool="exec", what="ls")))
        )
        asking.start()
        (question,) = until(local.questions.waiting)
        local.questions.answer(question.id, "always")
        asking.join(30)
        assert answers == [Answer.ALWAYS]
