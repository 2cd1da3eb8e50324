"""What a tool call answers: text for the model, structured content beside it, and errors as data with a hint."""

from collections.abc import Iterable
from typing import Any

import msgspec

from hutch.errors import HutchError
from hutch.model.record import Record


class Image(Record, frozen=True, kw_only=True):
    """A picture for the model to look at."""

    mime: str
    data: bytes


class ToolResult(Record, frozen=True, kw_only=True):
    """`is_error`: the tool could not do what it was asked. A command that failed is no error: its verdict is data."""

    text: str
    structured: dict[str, Any] = msgspec.field(default_factory=dict)
    is_error: bool = False
    images: tuple[Image, ...] = ()
    notes: tuple[str, ...] = ()
    """What the model should know besides: another box is used, a value was changed. They stand in `text` too."""

    @property
    def code(self) -> str:
        """Of the error; empty if there was none."""
        error = self.structured.get("error")
        return str(error.get("code", "")) if isinstance(error, dict) else ""


def answer(text: str, structured: dict[str, Any], *notes: str, images: Iterable[Image] = ()) -> ToolResult:
    return ToolResult(text=text, structured=structured, notes=notes, images=tuple(images))


def error_result(error: HutchError) -> ToolResult:
    """An error as data: code, what happened, and a hint that a model can act on."""
    told = {
        "code": error.code,
        "message": json_safe_text(error.message),
        "hint": json_safe_text(error.remedy),
        "retryable": error.retryable,
        "details": json_safe(error.details),
    }
    text = f"Error ({error.code}): {told['message']}"
    if error.remedy:
        text += f"\nHint: {told['hint']}"
    return ToolResult(text=text, structured={"error": told}, is_error=True)


def with_notes(result: ToolResult, notes: Iterable[str]) -> ToolResult:
    """The result with everything the model should know written out, and nothing in it that JSON cannot carry."""
    told = tuple(dict.fromkeys(json_safe_text(note) for note in (*notes, *result.notes)))
    text = json_safe_text(result.text)
    if told:
        text = "\n".join((text, *(f"[note: {note}]" for note in told)))
    structured = json_safe(result.structured)
    if told:
        structured = {**structured, "notes": list(told)}
    return result.but(text=text, structured=structured, notes=told)


def json_safe_text(text: str) -> str:
    """Names of files need not be UTF-8; Python holds such bytes as lone surrogates, which no JSON can carry."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape" if _escaped(text) else "replace").decode(
            "utf-8", "backslashreplace"
        )
    return text


def _escaped(text: str) -> bool:
    return all("\udc80" <= character <= "\udcff" for character in text if "\ud800" <= character <= "\udfff")


def json_safe(value: Any) -> Any:
    """The same for everything in a structure."""
    if isinstance(value, str):
        return json_safe_text(value)
    if isinstance(value, dict):
        return {json_safe_text(str(key)): json_safe(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(each) for each in value]
    return value
