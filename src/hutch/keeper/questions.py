"""Permission questions: asked by tools, shown and answered by an application or a dashboard."""

import asyncio
import os
import time

from hutch.errors import NotFound, QuotaExceeded, Timeout
from hutch.model.questions import Answer, AskRequest, QuestionInfo
from hutch.model.record import Record

WAIT_SECONDS = 300.0
MAX_WAITING = 1000
MAX_WAITING_PER_OWNER = 100


class Question(Record, frozen=True, kw_only=True):
    """One question that waits for an answer."""

    id: str
    asked_at: float
    request: AskRequest
    owner: str = ""
    """The owner whose people may answer, where there are several owners."""

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
    """The questions that wait. Whoever can answer reads `waiting()` and calls `answer(id, ...)`."""

    def __init__(self, wait_sec: float = WAIT_SECONDS) -> None:
        self._wait_sec = wait_sec
        self._waiting: dict[str, tuple[Question, asyncio.Future[Answer]]] = {}
        self._changed = asyncio.Event()

    async def ask(self, request: AskRequest) -> Answer:
        """Wait for the answer. Without one in time this raises Timeout, so that an agent does not hang for ever."""
        question = self.put(request)
        try:
            return await self.wait(question)
        finally:
            self.drop(question)

    def put(self, request: AskRequest, owner: str = "") -> Question:
        """Show a question from now on, until it is dropped."""
        if len(self._waiting) >= MAX_WAITING or len(self.waiting(owner=owner)) >= MAX_WAITING_PER_OWNER:
            raise QuotaExceeded("too many questions wait already", op="ask", remedy="answer some of them first")
        question = Question(id=os.urandom(8).hex(), asked_at=time.time(), request=request, owner=owner)
        self._waiting[question.id] = (question, asyncio.get_running_loop().create_future())
        self._notify()
        return question

    async def wait(self, question: Question) -> Answer:
        """Return the answer; Timeout if none came in time."""
        _, answered = self._waiting[question.id]
        try:
            async with asyncio.timeout(self._wait_sec):
                return await answered
        except TimeoutError:
            raise Timeout(f"nobody answered within {self._wait_sec:g} s", op="ask") from None

    def drop(self, question: Question) -> None:
        """Remove a question that was answered or is not needed any more."""
        if self._waiting.pop(question.id, None) is not None:
            self._notify()

    def waiting(self, agent: str = "", *, owner: str | None = None) -> tuple[Question, ...]:
        """Return waiting questions, oldest first: those of one agent, of one owner, or all."""
        return tuple(
            question
            for question, answered in self._waiting.values()
            if not answered.done() and agent in ("", question.request.agent) and owner in (None, question.owner)
        )

    def answer(self, question_id: str, answer: Answer | str, *, owner: str | None = None) -> Question:
        """Answer a question; the first answer counts. NotFound if it does not wait any more, or is another owner's."""
        question, answered = self._waiting.get(question_id, (None, None))
        if question is None or answered is None or answered.done() or owner not in (None, question.owner):
            raise NotFound(f"no question {question_id[:80]!r} waits", op="answer", remedy="it was answered, or gave up")
        answered.set_result(Answer(answer))
        return question

    async def changed(self) -> None:
        """Wait until a question is added or removed."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
