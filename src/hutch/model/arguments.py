"""What callers give, checked: the arguments of a new box, commands, and text where bytes are meant."""

from collections.abc import Mapping, Sequence
from typing import Any

from hutch.errors import Invalid
from hutch.model.limits import LimitsAsked
from hutch.model.spec import VOLUME, Mount, Spec, Workspace

_LIMITS = frozenset(LimitsAsked.__struct_fields__)
_FIELDS = frozenset(Spec.__struct_fields__)
_COMMAND_REMEDY = "give a shell command or a list of arguments"


def spec_from_arguments(**fields: Any) -> Spec:
    """Make a spec from keyword arguments: `profile="code", memory_mb=256, mounts=["./data:/data:ro"]`.

    Limits may be given flat or as `limits={...}`; a mount as `Mount`, "SOURCE:TARGET[:MODE]" or a mapping.
    """
    plain: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _LIMITS:
            limits[name] = value
        elif name not in _FIELDS:
            raise Invalid(f"a box has no {name!r}", op="create", remedy=_nearest(name))
        elif value is not None:
            plain[name] = value
    if "limits" in plain:
        limits = {**_limits(plain["limits"]), **limits}
    if limits:
        plain["limits"] = limits
    if "workspace" in plain:
        plain["workspace"] = _workspace(plain["workspace"])
    if "mounts" in plain:
        plain["mounts"] = [_mount(mount) for mount in plain["mounts"]]
    return Spec.from_plain({name: _plain(value) for name, value in plain.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Mount | Workspace | LimitsAsked):
        return value.to_plain()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _limits(value: Any) -> dict[str, Any]:
    if isinstance(value, LimitsAsked):
        return {name: item for name, item in value.to_plain().items() if item is not None}
    if isinstance(value, Mapping):
        return dict(value)
    raise Invalid(f"limits must be a mapping, not {type(value).__name__}", op="create")


def _workspace(value: Any) -> Any:
    if isinstance(value, str):
        source, colon, mode = value.rpartition(":")
        if colon and mode in ("ro", "rw", "none"):
            return Workspace.from_plain({"source": source, "mode": mode})
        return Workspace(source=value)
    return value


def _mount(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    prefix = VOLUME if value.startswith(VOLUME) else ""
    source, *parts = value.removeprefix(prefix).split(":")
    if len(parts) == 1:
        return Mount(source=prefix + source, target=parts[0])
    if len(parts) == 2:
        return Mount.from_plain({"source": prefix + source, "target": parts[0], "mode": parts[1]})
    raise Invalid(f"mount {value!r} is not SOURCE:TARGET[:ro|rw]", op="create")


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(_FIELDS | _LIMITS), n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(_FIELDS | _LIMITS))}"


def checked_command(command: str | Sequence[str]) -> str | tuple[str, ...]:
    """Check a command and return it as records hold it. An empty one is refused when it is run, not earlier (B7)."""
    if isinstance(command, str):
        if not command.strip():
            raise Invalid("the command is empty", op="exec", remedy=_COMMAND_REMEDY)
        return command
    # Callers without a type checker pass numbers, bytes and None.
    if not isinstance(command, Sequence) or not all(isinstance(argument, str) for argument in command):
        raise Invalid(
            f"the command is {command!r:.100}, but must be text or a list of them", op="exec", remedy=_COMMAND_REMEDY
        )
    argv = tuple(command)
    if not argv or not argv[0]:
        raise Invalid("the command is empty", op="exec", remedy=_COMMAND_REMEDY)
    return argv


def as_bytes(text: str | bytes) -> bytes:
    """Encode text; bytes that were read as text (`surrogateescape`) become what they were."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Invalid(f"the text has a character that UTF-8 cannot carry: {error}") from error
