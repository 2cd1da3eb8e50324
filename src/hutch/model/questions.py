"""Permission questions of agents, which a person answers."""

from enum import StrEnum
from typing import Any

import msgspec

from hutch.model.record import Record


class Answer(StrEnum):
    """An answer; `always` also allows the same thing from then on."""

    ALLOW = "allow"
    DENY = "deny"
    ALWAYS = "always"


class AskRequest(Record, frozen=True, kw_only=True):
    """What a person is asked to decide."""

    agent: str
    tool: str
    action: str = ""
    what: str = ""
    """The command or path; empty if the question is about the tool itself."""
    reason: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    box: str = ""

    @property
    def question(self) -> str:
        name = f"{self.tool} {self.action}".strip()
        return f"May agent {self.agent} use {name}{': ' + self.what if self.what else ''}?"


class QuestionInfo(Record, frozen=True, kw_only=True):
    """An open question."""

    id: str
    owner: str
    asked_at: float
    text: str
    """The question in one sentence."""
    agent: str
    tool: str
    action: str
    what: str
    reason: str
    arguments: dict[str, Any]
    """Arguments of the call; a server hides secrets and shortens long values."""
    box: str
