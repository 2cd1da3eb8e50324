"""`RemoteQuestions`: the `Questions` protocol over HTTP. What waits is the key's owner's."""

from typing import Any

import msgspec

from hutch.client.boxes import named
from hutch.client.requests import Repeat, Server
from hutch.model.questions import Answer, AskRequest, QuestionInfo


class RemoteQuestions:
    def __init__(self, server: Server, session: str) -> None:
        self._server = server
        self._headers = {"Hutch-Session": session}

    async def waiting(self) -> tuple[QuestionInfo, ...]:
        found = await self._ask("GET", "/v1/questions")
        return msgspec.convert(found["questions"], tuple[QuestionInfo, ...])

    async def answer(self, question_id: str, answer: Answer | str) -> None:
        path = f"/v1/questions/{named(question_id, 'question')}"
        body = {"answer": str(answer)}
        await self._server.ask(type(None), "POST", path, headers=self._headers, body=body, repeat=Repeat.UNSENT)

    async def ask(self, request: AskRequest) -> Answer:
        found = await self._ask("POST", "/v1/questions", body=request.to_plain(), repeat=Repeat.UNSENT)
        return Answer(found["answer"])

    async def _ask(self, method: str, path: str, /, **options: Any) -> dict[str, Any]:
        return await self._server.ask(dict[str, Any], method, path, headers=self._headers, **options)
