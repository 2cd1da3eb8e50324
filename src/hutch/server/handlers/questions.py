"""Permission questions over HTTP: agents ask, people list the open questions and decide; both emit events.

What an agent wants to do may contain secrets and whole files, so only a redacted and shortened copy is kept and shown.
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
from hutch.model.record import Record, encode_json
from hutch.server.access import find
from hutch.server.request import Call, Reply
from hutch.server.service import Service

ASKED = "asked"
ANSWERED = "answered"
"""Kinds of events. `old` is the question's id; `new` of an `answered` event is the answer, empty if there is none."""
MAX_TEXT = 2000
MAX_NAME = 100
MAX_REASON = 300
MAX_ARGUMENTS = 50

Short = Annotated[str, msgspec.Meta(max_length=200)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=100_000)]
BoxText = Annotated[str, msgspec.Meta(pattern="^([a-z0-9]{20})?$")]


class QuestionBody(Record, frozen=True, kw_only=True):
    """An action that an agent wants to take."""

    agent: Name
    tool: Name
    action: Short = ""
    what: Text = ""
    """The command or path; empty if the question is about the tool itself."""
    reason: Text = ""
    """The text of the rule that requires the question."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    box: BoxText = ""


class AnswerBody(Record, frozen=True, kw_only=True):
    answer: Answer
    """`always` also allows the same action in the future."""


class Answered(Record, frozen=True, kw_only=True):
    answer: Answer


class QuestionList(Record, frozen=True, kw_only=True):
    questions: tuple[QuestionInfo, ...]
    """The open questions, oldest first."""


async def list_questions(call: Call) -> Reply:
    """List the open questions of the owner's agents."""
    found = call.service.questions.waiting(owner=call.own.readable)
    return Reply(QuestionList(questions=tuple(question.shown() for question in found)))


async def ask(call: Call, body: QuestionBody) -> Reply:
    """Ask a question and wait for the answer; `timeout` if nobody answers within `server.answer_sec`. Disconnecting
    withdraws the question."""
    owner = call.caller.owner
    if body.box:
        call.params = {"box": body.box}
        owner = (await find(call)).record.owner  # An admin may ask for another owner, whose people then decide.
    request = AskRequest(
        agent=body.agent, tool=body.tool, action=body.action, what=body.what, reason=body.reason,
        arguments=body.arguments, box=body.box,
    )  # fmt: skip
    return Reply(Answered(answer=await ask_people(call.service, owner, request)))


async def answer(call: Call, body: AnswerBody) -> Reply:
    """Answer a question. The first answer counts; an answered or withdrawn question is not found."""
    question = call.service.questions.answer(call.params["question"], body.answer, owner=call.own.readable)
    decision = f"{body.answer} by {call.caller.key_id}"
    await run_uncancelled(
        _emit_event(call.service, question, ANSWERED, str(body.answer), f"{decision}: {question.text}")
    )
    return Reply(status=204)


async def ask_people(service: Service, owner: str, request: AskRequest) -> Answer:
    """Ask the owner's people and return their answer; any error counts as a denial."""
    return await service.unless_draining(_ask_and_wait(service, owner, request))


async def _ask_and_wait(service: Service, owner: str, request: AskRequest) -> Answer:
    question = service.questions.put(_redacted(request), owner)
    try:
        await _emit_event(service, question, ASKED, "", question.text)
        return await service.questions.wait(question)
    except (HutchError, asyncio.CancelledError) as error:
        why = error.message if isinstance(error, HutchError) else "the client that asked has disconnected"
        await run_uncancelled(_emit_event(service, question, ANSWERED, "", f"{why}: {question.text}"))
        raise
    finally:
        service.questions.drop(question)


async def _emit_event(service: Service, question: Question, kind: str, new: str, reason: str) -> None:
    event = Event(
        seq=0, at=time.time(), box_id=BoxId(question.request.box), owner=question.owner, kind=kind, old=question.id,
        new=new, reason=_cut(reason, MAX_REASON),
    )  # fmt: skip
    await service.keeper.states.announce(event)


def _redacted(request: AskRequest) -> AskRequest:
    some = list(request.arguments.items())[:MAX_ARGUMENTS]
    return request.but(
        what=_cut(redact(request.what), MAX_TEXT), reason=_cut(redact(request.reason), MAX_TEXT),
        arguments={_cut(name, MAX_NAME): _shortened(redact_field(name, value)) for name, value in some},
    )  # fmt: skip


def _shortened(value: object) -> object:
    """The value itself, or the beginning of its text if it is long."""
    text = value if isinstance(value, str) else encode_json(value).decode()
    return value if len(text) <= MAX_TEXT else _cut(text, MAX_TEXT)


def _cut(text: str, maximum: int) -> str:
    return text if len(text) <= maximum else f"{text[:maximum]}… ({len(text)} characters)"
