"""Children that compute each step themselves, instead of performing a program that the spawner has written.

Only the ablation bench uses this, to measure what the programs save. Standard library only.
"""

from ctypes import Array, c_char
from marshal import dumps, loads
from typing import Any, cast

from hutch.providers.native.rootfs.root import Extra, Shape
from hutch.providers.native.spawn import child
from hutch.providers.native.spawn.child_steps import Claim, Setting, Stages
from hutch.providers.native.spawn.program import Step, Writer, perform

_DIRECT = "direct"


class Requests:
    """The spawner's side: has the methods of `Stages`, and answers with what the child is to compute."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: dumps((_DIRECT, (name, [_plain(each) for each in arguments])))


def install(setting: Setting) -> None:
    """In the zygote: its children do what a request of the spawner names."""
    stages = _DirectStages(setting)
    written = child._perform

    def perform_either(program: "Array[c_char] | bytes") -> child.End:
        kind, content = loads(program)
        if kind != _DIRECT:
            return written(program)
        name, arguments = content
        return cast(child.End, getattr(stages, name)(*_parsed(name, arguments)))

    child._perform = perform_either


class _DirectWriter(Writer):
    """Performs each step at once. Its `written` returns what a program would have ended with."""

    def part(self, name: str) -> None:
        return

    def written(self, end: Any = None) -> Any:
        return end

    def _add(self, function: int, answer: int | None, arguments: tuple[Any, ...]) -> None:
        step: Step = (function, answer, arguments)
        perform((step,))


class _DirectStages(Stages):
    writer = _DirectWriter

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.enter, self.begin, self._apply = self._enter, self._begin, self._applying  # type: ignore[assignment]


def _plain(value: Any) -> Any:
    """Plain tuples, because marshal refuses named ones."""
    return tuple(_plain(each) for each in value) if isinstance(value, tuple) else value


def _parsed(name: str, arguments: list[Any]) -> list[Any]:
    if name in ("begin", "finish"):
        arguments[0] = Shape.parse(list(arguments[0]))
    if name == "finish":
        arguments[1] = Claim.parse(list(arguments[1]))
    elif name in ("begin", "name_servers"):
        arguments[1] = tuple(Extra(*each) for each in arguments[1])
    return arguments
