"""Permission questions that wait for somebody: asked here by the tools, shown and answered by a dashboard or an API."""

import asyncio
import secrets
import time

from hutch.errors import NotFound, Timeout
from hutch.model.record import Record
from hutch.policy.permissions import Answer
from hutch.tools.gate import AskRequest

WAIT_SECONDS = 300.0
MAX_WAITING = 1000


class Question(Record, frozen=True, kw_only=True):
    """One that waits."""

    id: str
    asked_at: float
    request: AskRequest

    @property
    def text(self) -> str:
        return self.request.question


class Questions:
    """`Tools(..., ask=questions.ask)`; whoever can answer sees `waiting()` and calls `answer(id, ...)`."""

    def __init__(self, wait_sec: float = WAIT_SECONDS) -> None:
        self._wait_sec = wait_sec
        self._waiting: dict[str, tuple[Question, asyncio.Future[Answer]]] = {}
        self._news = asyncio.Event()

    async def ask(self, request: AskRequest) -> Answer:
        """Waits for the answer. None in time counts as no: an agent must not hang for ever on somebody's lunch."""
        if len(self._waiting) >= MAX_WAITING:
            raise Timeout("too many questions wait already", op="ask")
        question = Question(id=secrets.token_hex(8), asked_at=time.time(), request=request)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[question.id] = (question, answered)
        self._tell()
        try:
            async with asyncio.timeout(self._wait_sec):
                return await answered
        except TimeoutError:
            raise Timeout(f"nobody answered within {self._wait_sec:g} s", op="ask") from None
        finally:
            del self._waiting[question.id]
            self._tell()

    def waiting(self, agent: str = "") -> tuple[Question, ...]:
        """Oldest first; of one agent, or of all."""
        found = (question for question, _ in self._waiting.values())
        return tuple(question for question in found if not agent or question.request.agent == agent)

    def answer(self, question_id: str, answer: Answer | str) -> None:
        """The first answer counts. NotFound if nobody waits for it any more."""
        _, answered = self._waiting.get(question_id, (None, None))
        if answered is None or answered.done():
            raise NotFound(f"no question {question_id[:80]!r} waits", op="answer", remedy="it was answered, or gave up")
        answered.set_result(Answer(answer))

    async def changed(self) -> None:
        """Returns when a question has come or gone."""
        await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
