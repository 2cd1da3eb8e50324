"""Has children compute each step themselves, instead of performing a program that the spawner has written.

Only the ablation bench uses this, to measure what the programs save. Standard library only.
"""

from ctypes import Array, c_char
from marshal import dumps, loads
from typing import Any, cast

from hutch.providers.native.rootfs.root import BoxTemplate, HostMount
from hutch.providers.native.spawn import child
from hutch.providers.native.spawn.child_steps import BoxParameters, ChildPrograms, SpawnerSettings
from hutch.providers.native.spawn.program import ProgramWriter, Step, perform

_DIRECT = "direct"


class Requests:
    """The spawner's side. It has the methods of `ChildPrograms`, and returns what the child is to compute."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: dumps((_DIRECT, (name, [_plain(each) for each in arguments])))


def install(settings: SpawnerSettings) -> None:
    """Change the zygote, so that its children compute the steps that a request names."""
    programs = _DirectPrograms(settings)
    written = child._perform

    def perform_either(program: "Array[c_char] | bytes") -> child.End:
        kind, content = loads(program)
        if kind != _DIRECT:
            return written(program)
        name, arguments = content
        return cast(child.End, getattr(programs, name)(*_parsed(name, arguments)))

    child._perform = perform_either


class _DirectProgramWriter(ProgramWriter):
    """Performs each step at once. Its `to_bytes` returns what a program would have ended with."""

    def part(self, name: str) -> None:
        return

    def to_bytes(self, end: Any = None) -> Any:
        return end

    def _add(self, function: int, answer: int | None, arguments: tuple[Any, ...]) -> None:
        step: Step = (function, answer, arguments)
        perform((step,))


class _DirectPrograms(ChildPrograms):
    writer = _DirectProgramWriter

    def __init__(self, settings: SpawnerSettings) -> None:
        super().__init__(settings)
        self.enter, self.begin, self._apply = self._write_enter, self._write_begin, self._write_apply  # type: ignore[assignment]


def _plain(value: Any) -> Any:
    """Turn named tuples into plain ones, because marshal refuses the named."""
    return tuple(_plain(each) for each in value) if isinstance(value, tuple) else value


def _parsed(name: str, arguments: list[Any]) -> list[Any]:
    if name in ("begin", "finish"):
        arguments[0] = BoxTemplate.parse(list(arguments[0]))
    if name == "finish":
        arguments[1] = BoxParameters.parse(list(arguments[1]))
    elif name in ("begin", "name_servers", "adopt"):
        arguments[1] = tuple(HostMount(*each) for each in arguments[1])
    return arguments
