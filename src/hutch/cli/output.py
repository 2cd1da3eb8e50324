"""What commands print: notes and errors on standard error, tables for people, one JSON object for programs."""

import sys
from collections.abc import Sequence

from hutch.errors import HutchError
from hutch.logs import redact, redact_field
from hutch.model.units import format_bytes


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


def table(header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> None:
    for line in columns(header, rows, spare):
        print(line)


GAP = "  "
NARROWEST = 6
"""Columns are not cut below this."""
READABLE = 20
"""Rather than to cut the last column below this, columns that can be spared are left out."""


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> list[str]:
    """Lay out rows in columns, each as wide as its longest cell.

    On a terminal the table fits its width: columns of `spare` are left out, in this order, then the widest are cut, and
    an ellipsis says so. A program that reads a pipe gets every cell whole.
    """
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    if sys.stdout.isatty():
        import shutil  # with its decompressors, which `hutch run` must not wait for

        available = shutil.get_terminal_size().columns
        for name in spare:
            needed = sum(widths[:-1]) + min(widths[-1], READABLE) + len(GAP) * (len(widths) - 1)
            if needed > available:
                at = list(lines[0]).index(name)
                lines = [[*line[:at], *line[at + 1 :]] for line in lines]
                del widths[at]
        widths = _fitted(widths, available)
    return [
        GAP.join(_cut(cell, width).ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _fitted(widths: list[int], available: int) -> list[int]:
    """Narrow the widest columns until all of them fit."""
    fitted = list(widths)
    while sum(fitted) + len(GAP) * (len(fitted) - 1) > available and max(fitted) > NARROWEST:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def printable(text: str) -> str:
    """Replace control characters: names and commands come from boxes, and could move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


byte_size = format_bytes
"""The name by which commands know it."""
