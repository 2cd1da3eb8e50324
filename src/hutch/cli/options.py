"""Options that several commands share: which box, which session, and the spec of a new box."""

import argparse
import os
import re
from typing import Any

from hutch.errors import Invalid
from hutch.model import units
from hutch.model.spec import VOLUME, volume_of

_SIZE = r"(\d+(?:\.\d+)?)\s*(k|m|g|t)?i?b?"
_MEGABYTES = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}


def add_box(parser: argparse.ArgumentParser, *, many: bool = False) -> None:
    """Add the argument that names the box or boxes, and the session that the command works for."""
    parser.add_argument(
        "boxes" if many else "box",
        metavar="BOX",
        nargs="*" if many else None,
        help="its name, its id, or at least the first four characters of its id",
    )
    add_session(parser)


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="NAME", help=f"who holds the lease (default: {session_name()})")


def session_name() -> str:
    """All commands of a user are one session, so that the next command holds the leases of this one."""
    return f"cli-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def add_box_options(parser: argparse.ArgumentParser) -> None:
    box = parser.add_argument_group("the box")
    box.add_argument("--profile", help="defaults, locks and maxima (`hutch profiles`)")
    box.add_argument("--provider", help="which engine makes the box (`hutch providers`)")
    box.add_argument("--image", metavar="REF", help="host | dir:PATH | tar:PATH | oci:NAME")
    box.add_argument("--pull", choices=("missing", "always", "never"), help="when an oci: image is fetched (missing)")
    box.add_argument("--net", "--network", choices=("off", "on"), dest="network", help="outbound network")
    box.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="SRC:DST[:ro|rw]",
        help="show a host path or volume:NAME inside (default ro)",
    )
    box.add_argument("--workspace", metavar="SRC[:ro|rw]", help="use this host directory as /workspace")
    box.add_argument("--skills", metavar="GROUP", help="all (default), none, or a group (`hutch skill bind`)")
    box.add_argument("--env", "-e", action="append", default=[], metavar="K=V", help="set a variable; K alone: as here")
    box.add_argument(
        "--secret", action="append", default=[], metavar="K", help="pass the variable K of this shell, shown nowhere"
    )
    box.add_argument("--user", "-u", help="user (default), root (of the box) or a number")
    box.add_argument("--workdir", "-w", metavar="DIR", help="where the command starts, in the box")
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits")
    limits.add_argument("--cpus", type=number)
    limits.add_argument("--memory", type=_megabytes, metavar="MB", help="megabytes, or with a unit: 512m, 2g")
    limits.add_argument("--disk", type=_megabytes, metavar="MB", help="what the box may write, in the same units")
    limits.add_argument("--pids", type=_count, help="processes and threads at once")
    limits.add_argument("--open-files", type=_count, metavar="N", help="descriptors of one process")


def spec_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Collect the keyword arguments for `Hutch.create`; options that were not given are left out."""
    asked: dict[str, Any] = {
        "profile": arguments.profile,
        "provider": arguments.provider,
        "image": _image(arguments.image),
        "network": arguments.network,
        "mounts": [_mount(text) for text in arguments.mount] or None,
        "workspace": _workspace(arguments.workspace),
        "skills": arguments.skills,
        "env": dict(variable(text) for text in arguments.env) or None,
        "secrets": {name: _from_environment(name) for name in arguments.secret} or None,
        "user": arguments.user,
        "workdir": arguments.workdir,
    }
    return {name: value for name, value in asked.items() if value is not None} | limits_of(arguments)


def limits_of(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = {
        "cpus": arguments.cpus,
        "memory_mb": arguments.memory,
        "disk_mb": arguments.disk,
        "pids": arguments.pids,
        "open_files": arguments.open_files,
    }
    return {name: value for name, value in asked.items() if value is not None}


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, such as 2 or 0.5") from None


def duration(text: str) -> float:
    """Parse a time such as `5m` to seconds."""
    try:
        return units.parse_seconds(text)
    except Invalid as error:
        raise argparse.ArgumentTypeError(f"{error.message}: {error.remedy}") from None


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _megabytes(text: str) -> int:
    match = re.fullmatch(_SIZE, text, flags=re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 512 (megabytes), 512m or 2g")
    return round(float(match[1]) * _MEGABYTES[(match[2] or "m").lower()])


def variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise Invalid(f"--env {text!r} names no variable", remedy="write NAME=VALUE, or NAME to take it from here")
    return (name, value) if equals else (name, _from_environment(name))


def _from_environment(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise Invalid(f"there is no variable {name!r} here to pass on", remedy=f"export {name} first") from None


def _mount(text: str) -> dict[str, str]:
    prefix = VOLUME if text.startswith(VOLUME) else ""
    source, _, rest = text.removeprefix(prefix).partition(":")
    target, colon, mode = rest.partition(":")
    if not source or not target or (colon and not mode):
        raise Invalid(f"--mount {text!r} is not SRC:DST[:ro|rw]", remedy="for example --mount ./data:/data:ro")
    return {"source": prefix + source if prefix else _absolute(source), "target": target, "mode": mode or "ro"}


def _workspace(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    source, colon, mode = text.rpartition(":")
    if not colon or mode not in ("ro", "rw", "none"):
        source, mode = text, "rw"
    known = source == "own" or volume_of(source) is not None
    return {"source": source if known else _absolute(source), "mode": mode}


def _image(text: str | None) -> str | None:
    kind, colon, path = (text or "").partition(":")
    return f"{kind}:{_absolute(path)}" if colon and path and kind in ("dir", "tar") else text


def _absolute(path: str) -> str:
    """Make a path absolute, as a spec needs it. Policy decides about symlinks."""
    return os.path.abspath(os.path.expanduser(path))
