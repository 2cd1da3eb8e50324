"""Permission tables for clients: restricted to some tools, to read-only tools, or asking before each change."""

from collections.abc import Iterable, Mapping

from hutch.errors import Invalid
from hutch.policy.permissions import EVERYBODY, AgentPermissions, Decision, Others
from hutch.tools.toolbox import TOOLS

PermissionTable = Mapping[str, AgentPermissions]


def restrict_to(names: Iterable[str], table: PermissionTable) -> dict[str, AgentPermissions]:
    """Restrict all agents to these tools. Tools of skills and providers must be named too."""
    wanted = [name.strip() for name in names if name.strip()]
    known = [tool.name for tool in TOOLS]
    if unknown := [name for name in wanted if name not in known and "__" not in name]:
        raise Invalid(f"there is no tool {unknown[0][:80]!r}", op="mcp", remedy=f"the tools are {', '.join(known)}")
    return {agent: _restricted(wanted, rules) for agent, rules in _with_everybody(table).items()}


def restrict_to_read_only(table: PermissionTable) -> dict[str, AgentPermissions]:
    return restrict_to([tool.name for tool in TOOLS if tool.read_only], table)


def grant_others(rights: Iterable[str], table: PermissionTable) -> dict[str, AgentPermissions]:
    """Grant all agents these rights on boxes of other sessions."""
    wanted = [right.strip() for right in rights if right.strip()]
    if unknown := [right for right in wanted if right not in set(Others)]:
        raise Invalid(f"there is no right {unknown[0][:80]!r}", op="mcp", remedy=f"one of {', '.join(Others)}")
    granted = dict.fromkeys(wanted, Decision.ALLOW)
    return {agent: rules.but(**granted) for agent, rules in _with_everybody(table).items()}


def ask_before_changes() -> dict[str, AgentPermissions]:
    """Return rules that ask the user before everything that changes something."""
    free = {tool.name: Decision.ALLOW for tool in TOOLS if tool.read_only}
    return {EVERYBODY: AgentPermissions(default=Decision.ASK, tools=free)}


def _with_everybody(table: PermissionTable) -> dict[str, AgentPermissions]:
    return {EVERYBODY: AgentPermissions(), **table}


def _restricted(wanted: list[str], rules: AgentPermissions) -> AgentPermissions:
    kept = {name: rules.tools.get(name, rules.default) for name in wanted}
    actions = {name: decision for name, decision in rules.tools.items() if name.partition(".")[0] in wanted}
    return rules.but(default=Decision.DENY, tools={**kept, **actions})
