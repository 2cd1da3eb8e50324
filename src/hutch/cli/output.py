"""What commands print: notes and errors on standard error, tables for people, one JSON object for programs."""

import sys
from collections.abc import Sequence

from hutch.errors import HutchError
from hutch.logs import redact, redact_field


def note(text: str) -> None:
    """Write one line about what Hutch did to standard error, beside the command's own output."""
    print(f"hutch: {text}", file=sys.stderr, flush=True)


def emit_json(value: object) -> None:
    """Write one object as one line."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def fail(error: HutchError, *, as_json: bool) -> None:
    """Show an error with its remedy; as JSON on standard output, where the answer was expected."""
    if as_json:
        emit_json({"error": {name: redact_field("", value) for name, value in error.to_wire().items()}})
        return
    print(f"hutch: {redact(error.message)}", file=sys.stderr)
    if error.remedy:
        print(f"  fix: {redact(error.remedy)}", file=sys.stderr)


def report_defect(error: Exception, *, as_json: bool, verbose: bool) -> None:
    """Show an error that no code expected, which is a defect of Hutch."""
    if verbose:
        import traceback

        sys.stderr.write(redact("".join(traceback.format_exception(error))))
    defect = HutchError(
        f"internal error: {type(error).__name__}: {error}", remedy="run it again with --verbose and report what it says"
    )
    fail(defect, as_json=as_json)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in columns(header, rows):
        print(line)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows in columns, each as wide as its longest cell."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def printable(text: str) -> str:
    """Replace control characters: names and commands come from boxes, and could move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def byte_size(count: float) -> str:
    """Write a number of bytes with a unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
