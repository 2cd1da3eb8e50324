"""What an agent may do with its tools: allow, deny or ask, by tool, by command and by path.

Path rules are enforced: they see the path inside the box after symlinks were resolved. Command rules on a shell string
are advisory, because a shell has endless ways to spell one thing: `deny` and `ask` catch the plain spelling, and what
must not happen has to be impossible in the box. `allow` permits only one plain command, so that no agent can append
another one to it.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from hutch.errors import ConfigError
from hutch.model.record import Record

EVERYBODY = "*"
"""The permissions of agents that have none of their own."""


class Decision(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Others(StrEnum):
    """Rights to boxes of other sessions, which an agent has only if its owner grants them."""

    LIST = "list_others"
    TAKEOVER = "takeover"
    DESTROY = "destroy_others"


class Access(StrEnum):
    READ = "read"
    WRITE = "write"
    ANY = "any"


class CommandRule(Record, frozen=True, kw_only=True):
    """A rule for commands, with exactly one of `program`, `prefix`, `glob` and `regex`."""

    decision: Decision
    program: str = ""
    """A glob pattern of argv[0] without its directories: `git` or `apt*`."""
    prefix: str = ""
    """The first words of the command: `git push`."""
    glob: str = ""
    """A glob pattern of the whole command: `*--force*`."""
    regex: str = ""
    """A regular expression that is searched in the whole command."""
    reason: str = ""


class PathRule(Record, frozen=True, kw_only=True):
    """`match` is a glob pattern of an absolute path in the box; `**` crosses directories."""

    match: str
    decision: Decision
    access: Access = Access.ANY
    reason: str = ""


class AgentPermissions(Record, frozen=True, kw_only=True):
    """`[permissions.AGENT]`; `[permissions."*"]` for all others."""

    default: Decision = Decision.ALLOW
    """The decision for a tool that `tools` does not name."""
    tools: dict[str, Decision] = msgspec.field(default_factory=dict)
    """Decisions by name, `exec`, or by name and action, `box_lifecycle.destroy`."""
    commands: tuple[CommandRule, ...] = ()
    """The first that matches wins over the tool's decision, unless the tool is denied."""
    paths: tuple[PathRule, ...] = ()
    """The first that matches wins over the tool's decision, unless the tool is denied."""
    list_others: Decision = Decision.DENY
    """Whether it sees that its owner's other boxes exist: names, states and limits, no files."""
    takeover: Decision = Decision.DENY
    """Whether it may work in boxes of other sessions, and so read and change their files: switch to one, copy from and
    to one, and take one from a session that holds it."""
    destroy_others: Decision = Decision.DENY
    """Whether it may destroy, or change the retention of, a box that its own session has not made."""

    def others(self, right: Others) -> Decision:
        return {
            Others.LIST: self.list_others, Others.TAKEOVER: self.takeover, Others.DESTROY: self.destroy_others,
        }[right]  # fmt: skip


class Ruling(NamedTuple):
    decision: Decision
    reason: str


def check(name: str, permissions: AgentPermissions) -> None:
    """Raise ConfigError if a rule of that agent can never work."""
    for rule in permissions.commands:
        given = [field for field in ("program", "prefix", "glob", "regex") if getattr(rule, field)]
        if len(given) != 1:
            raise ConfigError(
                f"permissions.{name}.commands: a rule needs one of program, prefix, glob and regex, not {len(given)}",
                details={"field": f"permissions.{name}.commands"},
            )
        if rule.regex:
            _compiled(rule.regex)
    for path_rule in permissions.paths:
        if not path_rule.match.startswith(("/", "**")):
            raise ConfigError(
                f"permissions.{name}.paths: {path_rule.match!r} is not an absolute pattern",
                remedy="begin it with / or **/",
                details={"field": f"permissions.{name}.paths"},
            )


def of(agent: str, table: Mapping[str, AgentPermissions]) -> AgentPermissions:
    return table.get(agent) or table.get(EVERYBODY) or AgentPermissions()


def on_tool(permissions: AgentPermissions, tool: str, action: str = "") -> Ruling:
    """Decide about a tool; a denied tool stays denied, else its action's own rule wins."""
    whole = permissions.tools.get(tool, permissions.default)
    ruling = Ruling(whole, f"{tool}: {whole}")
    one = permissions.tools.get(f"{tool}.{action}") if action else None
    if one is None:
        return ruling
    if whole is Decision.DENY:
        return ruling
    return Ruling(one, f"{tool}.{action}: {one}")


def on_others(permissions: AgentPermissions, right: Others) -> Ruling:
    decision = permissions.others(right)
    return Ruling(decision, f"{right}: {decision}")


def on_command(permissions: AgentPermissions, ruling: Ruling, command: str | Sequence[str]) -> Ruling:
    """Decide about a command. `ruling` is the tool's own; a denied tool stays denied."""
    if ruling.decision is Decision.DENY or not permissions.commands:
        return ruling
    text, parts, plain = _read(command if isinstance(command, str) else tuple(command))
    for rule in permissions.commands:
        if rule.decision is Decision.ALLOW and not plain:
            continue
        if _matches(rule, text, parts):
            shown = rule.program or rule.prefix or rule.glob or rule.regex
            return Ruling(rule.decision, rule.reason or f"command rule {shown!r}: {rule.decision}")
    return ruling


def on_path(permissions: AgentPermissions, ruling: Ruling, path: str, access: Access) -> Ruling:
    """Decide about a path, which is absolute, normal and free of symlinks."""
    if ruling.decision is Decision.DENY:
        return ruling
    for rule in permissions.paths:
        if rule.access in (Access.ANY, access) and path_pattern(rule.match).fullmatch(path):
            return Ruling(rule.decision, rule.reason or f"path rule {rule.match!r}: {rule.decision}")
    return ruling


def _matches(rule: CommandRule, text: str, parts: tuple[tuple[str, ...], ...]) -> bool:
    if rule.regex:
        return _compiled(rule.regex).search(text) is not None
    if rule.glob:
        pattern = _text_pattern(rule.glob)
        return any(pattern.fullmatch(each) for each in (text, *(" ".join(part) for part in parts)))
    if rule.program:
        pattern = _text_pattern(rule.program)
        return any(pattern.fullmatch(part[0].rpartition("/")[2]) for part in parts if part)
    wanted = tuple(rule.prefix.split())
    return any(part[: len(wanted)] == wanted for part in parts)


_OPERATORS = frozenset(";&|()\n<>")
_EXPANSIONS = r"[`$*?\[{~\\]"
_ASSIGNMENT = r"[A-Za-z_]\w*="


def _read(command: str | tuple[str, ...]) -> tuple[str, tuple[tuple[str, ...], ...], bool]:
    """Split a command: its text, the words of its simple commands, and whether it is one plain command only."""
    import shlex

    if not isinstance(command, str):
        return shlex.join(command), (command,), True
    text = command.strip()
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    parts: list[list[str]] = [[]]
    plain = re.search(_EXPANSIONS, text) is None
    try:
        for word in lexer:
            if word and set(word) <= _OPERATORS:
                plain = False
                parts.append([])
            elif parts[-1] or not re.match(_ASSIGNMENT, word):
                parts[-1].append(word)
            else:
                plain = False  # an assignment before the program may change what it does
    except ValueError:
        plain = False  # an open quote, which the shell may still accept
    return text, tuple(tuple(part) for part in parts if part), plain


@lru_cache(maxsize=512)
def _compiled(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise ConfigError(f"permissions: {regex!r} is not a regular expression: {error}") from error


@lru_cache(maxsize=512)
def _text_pattern(glob: str) -> re.Pattern[str]:
    """Compile a glob in which `*` also matches `/`: a command has no directories."""
    return re.compile("".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in glob), re.DOTALL)


@lru_cache(maxsize=512)
def path_pattern(glob: str) -> re.Pattern[str]:
    """Compile a glob: `**` crosses directories, `*` and `?` stay within a name; `/a/**` also matches /a."""
    written = []
    position = 0
    while position < len(glob):
        if glob.startswith("/**", position) and position + 3 == len(glob):
            written.append("(?:/.*)?")
            position += 3
        elif glob.startswith("**/", position):
            written.append("(?:.*/)?")
            position += 3
        elif glob.startswith("**", position):
            written.append(".*")
            position += 2
        else:
            written.append({"*": "[^/]*", "?": "[^/]"}.get(glob[position], re.escape(glob[position])))
            position += 1
    return re.compile("".join(written), re.DOTALL)
