"""`hutch box python`: code in a box's kernel, from an option, from standard input, or line by line at a prompt."""

import argparse
import codeop
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from hutch.api import Box
from hutch.cli.connect import attach_box, open_hutch
from hutch.cli.options import add_box, duration
from hutch.cli.output import emit_json, note
from hutch.cli.parsers import CliCommand
from hutch.model.code import CodeResult, Display

_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg", "application/pdf": ".pdf"}


class Python(CliCommand):
    """Run code in a box's interpreter, which keeps its variables; without code, a prompt on this terminal."""

    epilog = """\
examples:
  hutch box python dev                             a prompt; Ctrl-D leaves it, the variables stay
  hutch box python dev -c 'import pandas; pandas.__version__'
  hutch box python dev < analysis.py
  hutch box python --language javascript dev -c '1 + 1'
The exit code is 1 if the code raised an error. Pictures are saved, and their paths are printed.
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-c", "--code", help="the code to run")
        parser.add_argument("--language", default="python", help="python, javascript, typescript or bash")
        parser.add_argument("--kernel", default="", metavar="ID", help="another kernel than the language's own")
        parser.add_argument("--timeout", type=duration, metavar="TIME", help="until it is interrupted: 90, 5m, 1h30m")
        add_box(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            if arguments.code is not None:
                return await _run(box, arguments, arguments.code)
            if not sys.stdin.isatty():
                return await _run(box, arguments, sys.stdin.read())
            return await _prompt(box, arguments)


async def _run(box: Box, arguments: argparse.Namespace, code: str) -> int:
    """Run code once, print what it prints as it comes, and return the exit code."""
    if arguments.json:
        whole = await box.kernels.run(
            arguments.language, code, timeout=arguments.timeout, kernel=arguments.kernel
        )  # fmt: skip
        emit_json(whole.to_plain())
        return 0 if whole.ok else 1
    pieces = box.kernels.stream(arguments.language, code, timeout=arguments.timeout, kernel=arguments.kernel)
    result: CodeResult | None = None
    async with aclosing(cast(Any, pieces)):
        async for piece in pieces:
            if piece.text:
                print(piece.text, end="", file=sys.stderr if piece.stream == "stderr" else sys.stdout, flush=True)
            elif piece.display is not None:
                _show(piece.display)
            result = piece.result or result
    assert result is not None
    return _report(result)


def _show(display: Display) -> None:
    for mime, suffix in _SUFFIXES.items():
        if mime in display.data:
            content = display.data[mime].encode() if mime == "image/svg+xml" else display.binary(mime)
            with tempfile.NamedTemporaryFile(prefix="hutch-", suffix=suffix, delete=False) as file:
                file.write(content)
            print(f"[{mime}: {Path(file.name)}]")
            return
    if display.text:
        print(display.text)


def _report(result: CodeResult) -> int:
    for remark in result.notes:
        note(remark)
    if result.error is not None:
        print(result.error.traceback or f"{result.error.name}: {result.error.value}", file=sys.stderr)
    if not result.ok and result.error is None:
        note(result.verdict.message)
    return 0 if result.ok else 1


async def _prompt(box: Box, arguments: argparse.Namespace) -> int:
    """Read and run code until the end of the input. A block continues until it is complete, as in Python's own
    prompt."""
    import asyncio

    while True:
        try:
            code = await asyncio.to_thread(_read_block, arguments.language)
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if code.strip():
            await _run(box, arguments, code)


def _read_block(language: str) -> str:
    """Read lines until they are one complete piece of code."""
    lines = [input(">>> ")]
    while language == "python" and not _complete(lines):
        lines.append(input("... "))
    return "\n".join(lines)


def _complete(lines: list[str]) -> bool:
    if lines[0].lstrip().startswith(("!", "%")):
        return True
    try:
        return codeop.compile_command("\n".join(lines)) is not None
    except (SyntaxError, ValueError, OverflowError):
        return True  # The kernel says what is wrong with it; top-level await is right there.
