"""Permission questions over HTTP: agents ask here, people see what waits and decide; both are events.

What an agent wants to do may hold secrets and whole files: only a redacted, bounded picture of it is kept and shown.
"""

import asyncio
import time
from typing import Annotated, Any

import msgspec

from hutch.errors import HutchError
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.questions import Question
from hutch.logs import redact, redact_field
from hutch.model.boxes import Event
from hutch.model.ids import BoxId
from hutch.model.questions import Answer, AskRequest, QuestionInfo
from hutch.model.record import Record, encoded
from hutch.server.access import find
from hutch.server.request import Call, Reply
from hutch.server.service import Service

ASKED = "asked"
ANSWERED = "answered"
"""Kinds of events. `old` is the question's id, `new` of the second the answer, or empty if none came."""
LONGEST_TEXT = 2000
LONGEST_NAME = 100
LONGEST_REASON = 300
MOST_ARGUMENTS = 50

Short = Annotated[str, msgspec.Meta(max_length=200)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=100_000)]
BoxText = Annotated[str, msgspec.Meta(pattern="^([a-z0-9]{20})?$")]


class QuestionBody(Record, frozen=True, kw_only=True):
    """What an agent wants to do."""

    agent: Name
    tool: Name
    action: Short = ""
    what: Text = ""
    """The command or path, or nothing if the tool itself is in question."""
    reason: Text = ""
    """Why it is asked: the rule's own words."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    box: BoxText = ""


class AnswerBody(Record, frozen=True, kw_only=True):
    answer: Answer
    """`always` holds for the same thing from then on."""


class Answered(Record, frozen=True, kw_only=True):
    answer: Answer


class QuestionList(Record, frozen=True, kw_only=True):
    questions: tuple[QuestionInfo, ...]
    """Oldest first."""


async def list_questions(call: Call) -> Reply:
    """What agents of the caller's owner want to do, and wait for somebody to decide."""
    found = call.service.questions.waiting(owner=call.own.readable)
    return Reply(QuestionList(questions=tuple(question.shown() for question in found)))


async def ask(call: Call, body: QuestionBody) -> Reply:
    """Put a question, and wait for its answer; `timeout` if nobody does within `server.answer_sec`. Leaving
    withdraws it."""
    owner = call.caller.owner
    if body.box:
        call.params = {"box": body.box}
        owner = (await find(call)).record.owner  # of an admin over all: those whom it concerns are asked
    request = AskRequest(
        agent=body.agent, tool=body.tool, action=body.action, what=body.what, reason=body.reason,
        arguments=body.arguments, box=body.box,
    )  # fmt: skip
    return Reply(Answered(answer=await asked(call.service, owner, request)))


async def answer(call: Call, body: AnswerBody) -> Reply:
    """Decide. The first answer counts; a question that was answered, or gave up, is not found."""
    question = call.service.questions.answer(call.params["question"], body.answer, owner=call.own.readable)
    said = f"{body.answer} by {call.caller.key_id}"
    await run_uncancelled(_tell(call.service, question, ANSWERED, str(body.answer), f"{said}: {question.text}"))
    return Reply(status=204)


async def asked(service: Service, owner: str, request: AskRequest) -> Answer:
    """The answer of one of the owner's people. For whoever serves agents and cannot ask by a way of its own; raises
    what counts as no."""
    return await service.unless_draining(_asked(service, owner, request))


async def _asked(service: Service, owner: str, request: AskRequest) -> Answer:
    question = service.questions.put(_pictured(request), owner)
    try:
        await _tell(service, question, ASKED, "", question.text)
        return await service.questions.wait(question)
    except (HutchError, asyncio.CancelledError) as error:
        why = error.message if isinstance(error, HutchError) else "whoever asked has left"
        await run_uncancelled(_tell(service, question, ANSWERED, "", f"{why}: {question.text}"))
        raise
    finally:
        service.questions.drop(question)


async def _tell(service: Service, question: Question, kind: str, new: str, reason: str) -> None:
    event = Event(
        seq=0, at=time.time(), box_id=BoxId(question.request.box), owner=question.owner, kind=kind, old=question.id,
        new=new, reason=_cut(reason, LONGEST_REASON),
    )  # fmt: skip
    await service.keeper.states.announce(event)


def _pictured(request: AskRequest) -> AskRequest:
    some = list(request.arguments.items())[:MOST_ARGUMENTS]
    return request.but(
        what=_cut(redact(request.what), LONGEST_TEXT), reason=_cut(redact(request.reason), LONGEST_TEXT),
        arguments={_cut(name, LONGEST_NAME): _picture(redact_field(name, value)) for name, value in some},
    )  # fmt: skip


def _picture(value: object) -> object:
    """As it is, or the beginning of its text."""
    text = value if isinstance(value, str) else encoded(value).decode()
    return value if len(text) <= LONGEST_TEXT else _cut(text, LONGEST_TEXT)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
