"""Code run without IPython, for boxes that do not have it: state, last values, await, `!commands` and a few magics."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import linecache
import os
import re
import subprocess
import sys
import traceback
from types import CodeType
from typing import Any

from .display import Displays, forms_of

_SHELL_LINE = re.compile(r"^(\s*)(?:([A-Za-z_]\w*)\s*=\s*)?([!%])(.*)$")


class PlainEvaluator:
    """Runs code in one namespace, and shows the value of its last expression."""

    def __init__(self, displays: Displays | None) -> None:
        """With None the evaluator is prepared ahead, and `bind` says later where its displays go."""
        self._displays = displays
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins, "display": self._display}

    def bind(self, displays: Displays | None) -> None:
        self._displays = displays

    def forget(self) -> None:
        """Forget every run, so that the next one is the first."""
        self._count = 0

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of top-level await; a closed one is replaced."""
        return self._loop

    def _display(self, *values: Any) -> None:
        for value in values:
            self._show(value)

    def _show(self, value: Any, *, main: bool = False) -> None:
        if self._displays is not None:
            self._displays.send(forms_of(value), main=main)

    def run(self, code: str) -> tuple[int, dict[str, str] | None]:
        """Run one cell. Return its number and the error that ended it."""
        self._count += 1
        name = f"<cell {self._count}>"
        try:
            code = _expand(_unindented(code))
            lines = code.splitlines(keepends=True)
            linecache.cache[name] = (len(code), None, lines, name)
            body = ast.parse(code, name)
            last: Any = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
            self._execute(self._compile(body, name, "exec"))
            if last is not None and not code.rstrip().endswith(";"):
                value = self._execute(self._compile(ast.Expression(last.value), name, "eval"))
                if value is not None:
                    builtins._ = value  # type: ignore[attr-defined]
                    self._show(value, main=True)
            elif last is not None:
                self._execute(self._compile(ast.Expression(last.value), name, "eval"))
        except BaseException as error:  # Also SystemExit and KeyboardInterrupt: code ends, its kernel does not.
            return self._count, _failure(error)
        return self._count, None

    def _compile(self, tree: ast.AST, name: str, mode: str) -> CodeType:
        code: CodeType = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # type: ignore[call-overload]
        return code

    def _execute(self, code: CodeType) -> Any:
        self.namespace.update(_hutch_system=_system, _hutch_magic=_magic)
        value = eval(code, self.namespace)
        if code.co_flags & inspect.CO_COROUTINE:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self._loop)
            return self._loop.run_until_complete(value)
        return value


def _unindented(code: str) -> str:
    """Return a cell whose first line is indented without that indentation, as IPython runs it."""
    first = next((line for line in code.splitlines() if line.strip()), "")
    indentation = first[: len(first) - len(first.lstrip())]
    if not indentation:
        return code
    return "".join(line.removeprefix(indentation) for line in code.splitlines(keepends=True))


def _expand(code: str) -> str:
    """Turn lines that begin with `!` or `%` to calls, if the code is no valid Python as it is."""
    if code.startswith(("%%bash", "%%sh")):
        return "_hutch_system({!r}, shell=True)".format(code.partition("\n")[2])
    try:
        ast.parse(code)
    except SyntaxError:
        return "\n".join(map(_expand_line, code.split("\n")))
    return code


def _expand_line(line: str) -> str:
    found = _SHELL_LINE.match(line)
    if found is None:
        return line
    indent, name, kind, rest = found.groups()
    call = "_hutch_{}({!r}{})".format(
        "system" if kind == "!" else "magic", rest, ", capture=True" if name and kind == "!" else ""
    )
    return indent + (f"{name} = " if name else "") + call


def _system(command: str, capture: bool = False, shell: bool = True) -> Any:
    sys.stdout.flush()
    if capture:
        made = subprocess.run(command, shell=shell, stdout=subprocess.PIPE, text=True)
        return made.stdout.splitlines()
    subprocess.run(command, shell=shell)
    return None


def _magic(line: str) -> Any:
    name, _, rest = line.partition(" ")
    if name == "pip":
        return _system(f"{sys.executable} -m pip {rest}")
    if name == "cd":
        os.chdir(os.path.expanduser(rest.strip() or "~"))
        return None
    if name == "pwd":
        return os.getcwd()
    if name in ("matplotlib", "autosave", "config"):
        return None
    raise NotImplementedError(f"the magic %{name} needs IPython in this box: pip install ipython")


def _failure(error: BaseException) -> dict[str, str]:
    entries = traceback.extract_tb(error.__traceback__)
    shown = [entry for entry in entries if entry.filename.startswith("<cell")] and entries
    while shown and not shown[0].filename.startswith("<cell"):
        shown = shown[1:]
    shown = [entry for entry in shown if not entry.filename.startswith("<_hutch_kernel")]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)] if shown else []
    lines += traceback.format_exception_only(type(error), error)
    return {"name": type(error).__name__, "value": str(error), "traceback": "".join(lines).rstrip()}
