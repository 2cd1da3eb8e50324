"""Permission questions that wait for somebody: asked by tools, shown and answered by an application or a dashboard."""

import asyncio
import os
import time

from hutch.errors import NotFound, QuotaExceeded, Timeout
from hutch.model.questions import Answer, AskRequest, QuestionInfo
from hutch.model.record import Record

WAIT_SECONDS = 300.0
MOST_WAITING = 1000
MOST_OF_ONE_OWNER = 100


class Question(Record, frozen=True, kw_only=True):
    """One that waits."""

    id: str
    asked_at: float
    request: AskRequest
    owner: str = ""
    """Whose people may answer, where there are several owners."""

    @property
    def text(self) -> str:
        return self.request.question

    def shown(self) -> QuestionInfo:
        asked = self.request
        return QuestionInfo(
            id=self.id, owner=self.owner, asked_at=self.asked_at, text=self.text, agent=asked.agent, tool=asked.tool,
            action=asked.action, what=asked.what, reason=asked.reason, arguments=asked.arguments, box=asked.box,
        )  # fmt: skip


class Questions:
    """The board they hang on; whoever can answer sees `waiting()` and calls `answer(id, ...)`."""

    def __init__(self, wait_sec: float = WAIT_SECONDS) -> None:
        self._wait_sec = wait_sec
        self._waiting: dict[str, tuple[Question, asyncio.Future[Answer]]] = {}
        self._news = asyncio.Event()

    async def ask(self, request: AskRequest) -> Answer:
        """Waits for the answer. None in time counts as no: an agent must not hang for ever on somebody's lunch."""
        question = self.put(request)
        try:
            return await self.wait(question)
        finally:
            self.drop(question)

    def put(self, request: AskRequest, owner: str = "") -> Question:
        """Shown from now on, until it is dropped."""
        if len(self._waiting) >= MOST_WAITING or len(self.waiting(owner=owner)) >= MOST_OF_ONE_OWNER:
            raise QuotaExceeded("too many questions wait already", op="ask", remedy="answer some of them first")
        question = Question(id=os.urandom(8).hex(), asked_at=time.time(), request=request, owner=owner)
        self._waiting[question.id] = (question, asyncio.get_running_loop().create_future())
        self._tell()
        return question

    async def wait(self, question: Question) -> Answer:
        """Its answer; Timeout if none came in time."""
        _, answered = self._waiting[question.id]
        try:
            async with asyncio.timeout(self._wait_sec):
                return await answered
        except TimeoutError:
            raise Timeout(f"nobody answered within {self._wait_sec:g} s", op="ask") from None

    def drop(self, question: Question) -> None:
        """Whoever asked has the answer, or does not want it any more."""
        if self._waiting.pop(question.id, None) is not None:
            self._tell()

    def waiting(self, agent: str = "", *, owner: str | None = None) -> tuple[Question, ...]:
        """Oldest first; of one agent, of one owner, or all."""
        return tuple(
            question
            for question, answered in self._waiting.values()
            if not answered.done() and agent in ("", question.request.agent) and owner in (None, question.owner)
        )

    def answer(self, question_id: str, answer: Answer | str, *, owner: str | None = None) -> Question:
        """The first answer counts. NotFound if nobody waits for it any more, or another owner does."""
        question, answered = self._waiting.get(question_id, (None, None))
        if question is None or answered is None or answered.done() or owner not in (None, question.owner):
            raise NotFound(f"no question {question_id[:80]!r} waits", op="answer", remedy="it was answered, or gave up")
        answered.set_result(Answer(answer))
        return question

    async def changed(self) -> None:
        """Returns when a question has come or gone."""
        await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
