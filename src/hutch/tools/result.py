"""The result of a tool call: text for the model, structured content, pictures, and errors as data with a hint."""

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
    """Result of one call. `is_error` means that the tool itself failed; a failed command is a result with a verdict."""

    text: str
    structured: dict[str, Any] = msgspec.field(default_factory=dict)
    is_error: bool = False
    images: tuple[Image, ...] = ()
    notes: tuple[str, ...] = ()
    """Side information for the model, such as a changed box or value. `text` contains them too."""

    @property
    def code(self) -> str:
        """Code of the error, or empty if there was none."""
        error = self.structured.get("error")
        return str(error.get("code", "")) if isinstance(error, dict) else ""


def answer(text: str, structured: dict[str, Any], *notes: str, images: Iterable[Image] = ()) -> ToolResult:
    return ToolResult(text=text, structured=structured, notes=notes, images=tuple(images))


def error_result(error: HutchError) -> ToolResult:
    """Return an error as data: its code, its message and a hint that a model can follow."""
    facts = {
        "code": error.code,
        "message": json_safe_text(error.message),
        "hint": json_safe_text(error.remedy),
        "retryable": error.retryable,
        "details": json_safe(error.details),
    }
    text = f"Error ({error.code}): {facts['message']}"
    if error.remedy:
        text += f"\nHint: {facts['hint']}"
    return ToolResult(text=text, structured={"error": facts}, is_error=True)


def with_notes(result: ToolResult, notes: Iterable[str]) -> ToolResult:
    """Return the result with all notes in its text and content, and without text that JSON cannot carry."""
    unique = tuple(dict.fromkeys(json_safe_text(note) for note in (*notes, *result.notes)))
    text = json_safe_text(result.text)
    if unique:
        text = "\n".join((text, *(f"[note: {note}]" for note in unique)))
    structured = json_safe(result.structured)
    if unique:
        structured = {**structured, "notes": list(unique)}
    return result.but(text=text, structured=structured, notes=unique)


def json_safe_text(text: str) -> str:
    """Replace lone surrogates, which JSON cannot carry. Python uses them for file names that are not UTF-8."""
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
    """Apply `json_safe_text` to every string of a structure."""
    if isinstance(value, str):
        return json_safe_text(value)
    if isinstance(value, dict):
        return {json_safe_text(str(key)): json_safe(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(each) for each in value]
    return value
