"""What commands print: notes and errors on standard error, tables for people, one JSON object for programs."""

import sys
from collections.abc import Sequence

from hutch.errors import HutchError
from hutch.logs import redact, redact_field


def note(text: str) -> None:
    """One line about what Hutch did, beside the command's own output."""
    print(f"hutch: {text}", file=sys.stderr, flush=True)


def emit_json(value: object) -> None:
    """One object, one line."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def fail(error: HutchError, *, as_json: bool) -> None:
    """An error with its remedy. As JSON it goes where the answer was expected."""
    if as_json:
        emit_json({"error": {name: redact_field("", value) for name, value in error.to_wire().items()}})
        return
    print(f"hutch: {redact(error.message)}", file=sys.stderr)
    if error.remedy:
        print(f"  fix: {redact(error.remedy)}", file=sys.stderr)


def report_defect(error: Exception, *, as_json: bool, verbose: bool) -> None:
    """An error that nobody foresaw: a defect of Hutch."""
    if verbose:
        import traceback

        sys.stderr.write(redact("".join(traceback.format_exception(error))))
    told = HutchError(
        f"internal error: {type(error).__name__}: {error}", remedy="run it again with --verbose and report what it says"
    )
    fail(told, as_json=as_json)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in columns(header, rows):
        print(line)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """As wide as they need to be."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def printable(text: str) -> str:
    """On one line, without what could move the cursor: names and commands come from boxes and their users."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
