"""What a caller may give as a command: one line for the shell, or a program with its arguments."""

from collections.abc import Sequence

from hutch.errors import Invalid

_REMEDY = "give a shell command or a list of arguments"


def checked_command(command: str | Sequence[str]) -> str | tuple[str, ...]:
    """The command as records hold it. B7: an empty one is refused when it is to be run, not when the box is made."""
    if isinstance(command, str):
        if not command.strip():
            raise Invalid("the command is empty", op="exec", remedy=_REMEDY)
        return command
    # Callers without a type checker pass numbers, bytes and None.
    if not isinstance(command, Sequence) or not all(isinstance(argument, str) for argument in command):
        raise Invalid(f"the command is {command!r:.100}, but must be text or a list of them", op="exec", remedy=_REMEDY)
    argv = tuple(command)
    if not argv or not argv[0]:
        raise Invalid("the command is empty", op="exec", remedy=_REMEDY)
    return argv
