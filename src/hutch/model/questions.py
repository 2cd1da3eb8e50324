"""Permission questions: what an agent wants to do and somebody has to decide."""

from enum import StrEnum
from typing import Any

import msgspec

from hutch.model.record import Record


class Answer(StrEnum):
    """What somebody who was asked has said; `always` holds for the same thing from then on."""

    ALLOW = "allow"
    DENY = "deny"
    ALWAYS = "always"


class AskRequest(Record, frozen=True, kw_only=True):
    """What somebody is asked to decide."""

    agent: str
    tool: str
    action: str = ""
    what: str = ""
    """The command or path, or nothing if the tool itself is in question."""
    reason: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    box: str = ""

    @property
    def question(self) -> str:
        name = f"{self.tool} {self.action}".strip()
        return f"May agent {self.agent} use {name}{': ' + self.what if self.what else ''}?"


class QuestionInfo(Record, frozen=True, kw_only=True):
    """One that waits."""

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
    """Of the call; a server hides secrets and cuts what is long."""
    box: str
