"""Types of the structured content of each tool's answer. MCP's output schemas are derived from them.

Every answer may have `notes`; an error has `error` and nothing else. An action of a grouped tool fills only some of the
fields: those that every action fills are required.
"""

from typing import Any, NotRequired, TypedDict

from hutch.model.limits import Limits
from hutch.model.results import Usage


class ErrorFacts(TypedDict):
    """What went wrong, and what to do about it; only where the result is marked as an error."""

    code: str
    message: str
    hint: str
    retryable: bool
    details: dict[str, Any]


class Answer(TypedDict):
    notes: NotRequired[list[str]]
    error: NotRequired[ErrorFacts]


class Facts(TypedDict):
    cause: str
    message: NotRequired[str]
    limit: NotRequired[float]
    peak: NotRequired[float]
    unit: NotRequired[str]
    remedy: NotRequired[str]
    certain: bool


# `try` says what a model can do about it. It is a keyword of Python, so a class body cannot declare it.
Advice = TypedDict("Advice", {"try": NotRequired[str]})


class Verdict(Facts, Advice):
    """Why it ended as it did, and which limit it met."""


class CommandAnswer(Answer):
    """The answer of a command that has ended: `exec`, and the tools of skills."""

    box: str
    exit_code: int | None
    signal: int | None
    stdout: str
    stdout_total: int
    stdout_truncated: bool
    stdout_handle: NotRequired[str]
    stderr: str
    stderr_total: int
    stderr_truncated: bool
    stderr_handle: NotRequired[str]
    duration_sec: float
    lingering: bool
    verdict: Verdict
    usage: Usage


class Raised(TypedDict):
    """The exception that ended the code."""

    name: str
    value: str
    traceback: str


class CodeAnswer(Answer):
    """The answer of code that has ended: `python`."""

    box: str
    stdout: str
    stderr: str
    value: str
    """The value of the last expression as text."""
    count: int
    displays: list[list[str]]
    """The media types of each thing that was shown."""
    raised: Raised | None
    duration_sec: float
    verdict: Verdict


class JobFacts(TypedDict, total=False):
    job: str
    state: str
    name: str
    exit_code: int | None
    signal: int | None
    stdout_total: int
    stderr_total: int
    lost: int
    stdout_handle: str
    verdict: Verdict


class JobAnswer(Answer, JobFacts):
    """start, read, write, signal, wait, list."""

    box: str
    jobs: NotRequired[list[JobFacts]]
    stream: NotRequired[str]
    text: NotRequired[str]
    next_offset: NotRequired[int]
    total: NotRequired[int]
    eof: NotRequired[bool]
    dropped: NotRequired[int]
    written: NotRequired[int]
    closed: NotRequired[bool]
    stdout: NotRequired[str]
    stdout_truncated: NotRequired[bool]
    stderr: NotRequired[str]
    stderr_truncated: NotRequired[bool]
    stderr_handle: NotRequired[str]
    duration_sec: NotRequired[float]
    lingering: NotRequired[bool]
    usage: NotRequired[Usage]


class EntryAnswer(TypedDict):
    path: str
    kind: str
    size: int


class ReadAnswer(Answer):
    """A page of text or of bytes, a picture, a directory, or a page of a command's output."""

    box: str
    path: str
    digest: NotRequired[str]
    size: NotRequired[int]
    mime: NotRequired[str]
    text: NotRequired[str]
    base64: NotRequired[str]
    encoding: NotRequired[str]
    newline: NotRequired[str]
    start_byte: NotRequired[int]
    next_byte: NotRequired[int]
    eof: NotRequired[bool]
    first_line: NotRequired[int]
    next_line: NotRequired[int | None]
    entries: NotRequired[list[EntryAnswer]]
    complete: NotRequired[bool]
    total: NotRequired[int]
    state: NotRequired[str]


class WriteAnswer(Answer):
    box: str
    path: str
    size: int
    written: int
    digest: str
    created: bool


class EditAnswer(Answer):
    box: str
    path: str
    replaced: int
    size: int
    digest: str
    encoding: str


class GlobAnswer(Answer):
    box: str
    paths: list[str]
    complete: bool
    note: str


class HitAnswer(TypedDict):
    path: str
    line: int
    text: str


class GrepAnswer(Answer):
    box: str
    hits: list[HitAnswer]
    complete: bool
    note: str
    files_searched: int


class SendFileAnswer(Answer):
    box: str
    path: str
    name: str
    size: int
    mime: str
    outbox: str
    message: str


class BoxAnswer(TypedDict):
    """A box as a model may see it."""

    id: str
    name: NotRequired[str]
    state: NotRequired[str]
    reason: NotRequired[str]
    current: NotRequired[bool]
    provider: NotRequired[str]
    profile: NotRequired[str]
    network: NotRequired[str]
    workdir: NotRequired[str]
    retention: NotRequired[str]
    limits: NotRequired[Limits]
    created_sec_ago: NotRequired[int]
    used_sec_ago: NotRequired[int]
    remaining_sec: NotRequired[int | None]
    held_by: NotRequired[str]
    lease_expires_at: NotRequired[float | None]
    lease_expires_in_seconds: NotRequired[int | None]
    auto_renew_interval_seconds: NotRequired[float | None]
    released: NotRequired[bool]
    destroyed: NotRequired[bool]


class ProviderAnswer(TypedDict):
    provider: str
    usable: bool
    reason: str
    isolation: str
    pty: bool
    persistent: bool
    pause: str


class BoxQueryAnswer(Answer):
    boxes: NotRequired[list[BoxAnswer]]
    box: NotRequired[BoxAnswer | None]
    providers: NotRequired[list[ProviderAnswer]]


class BoxLifecycleAnswer(Answer):
    box: BoxAnswer | None


class ChangeFacts(TypedDict):
    path: str
    kind: str
    type: str
    size: NotRequired[int]


class BoxOperationAnswer(Answer):
    box: NotRequired[str]
    mime: NotRequired[str]
    size: NotRequired[int]
    checkpoint: NotRequired[str]
    changes: NotRequired[list[ChangeFacts]]
    left_out: NotRequired[list[str]]
    source_box: NotRequired[str]
    source_path: NotRequired[str]
    target_box: NotRequired[str]
    target_path: NotRequired[str]


class SkillAnswer(TypedDict):
    name: str
    description: str
    active: bool
    tools: list[str]


class ListSkillsAnswer(Answer):
    skills: list[SkillAnswer]


class ActivateSkillAnswer(Answer):
    name: str
    digest: str
    path: str
    state: str
    tools: list[str]
    env: dict[str, str]
    body: str
