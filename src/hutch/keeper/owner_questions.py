"""`Hutch.questions`, embedded: agents of this process ask, and the application that holds them answers."""

from hutch.keeper.questions import Questions
from hutch.model.questions import Answer, AskRequest, QuestionInfo


class OwnQuestions:
    """The `Questions` protocol of `hutch.api`."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def waiting(self) -> tuple[QuestionInfo, ...]:
        return tuple(question.shown() for question in self._questions.waiting())

    async def answer(self, question_id: str, answer: Answer | str) -> None:
        self._questions.answer(question_id, answer)

    async def ask(self, request: AskRequest) -> Answer:
        return await self._questions.ask(request)
