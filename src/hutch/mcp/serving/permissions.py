"""Which tools a client gets: permissions narrowed to some tools, to those that change nothing, or made to ask."""

from collections.abc import Iterable, Mapping

from hutch.errors import Invalid
from hutch.policy.permissions import EVERYBODY, AgentPermissions, Decision, Others
from hutch.tools.toolbox import TOOLS

Table = Mapping[str, AgentPermissions]


def only(names: Iterable[str], table: Table) -> dict[str, AgentPermissions]:
    """Everybody's rules, for these tools alone: what skills and providers bring has to be named too."""
    wanted = [name.strip() for name in names if name.strip()]
    known = [tool.name for tool in TOOLS]
    if unknown := [name for name in wanted if name not in known and "__" not in name]:
        raise Invalid(f"there is no tool {unknown[0][:80]!r}", op="mcp", remedy=f"the tools are {', '.join(known)}")
    return {agent: _narrowed(wanted, rules) for agent, rules in _with_everybody(table).items()}


def read_only(table: Table) -> dict[str, AgentPermissions]:
    return only([tool.name for tool in TOOLS if tool.read_only], table)


def reaching(rights: Iterable[str], table: Table) -> dict[str, AgentPermissions]:
    """Everybody's rules, with these rights over boxes of other sessions."""
    wanted = [right.strip() for right in rights if right.strip()]
    if unknown := [right for right in wanted if right not in set(Others)]:
        raise Invalid(f"there is no right {unknown[0][:80]!r}", op="mcp", remedy=f"one of {', '.join(Others)}")
    granted = dict.fromkeys(wanted, Decision.ALLOW)
    return {agent: rules.but(**granted) for agent, rules in _with_everybody(table).items()}


def asking() -> dict[str, AgentPermissions]:
    """Before everything that changes something, the user is asked."""
    free = {tool.name: Decision.ALLOW for tool in TOOLS if tool.read_only}
    return {EVERYBODY: AgentPermissions(default=Decision.ASK, tools=free)}


def _with_everybody(table: Table) -> dict[str, AgentPermissions]:
    return {EVERYBODY: AgentPermissions(), **table}


def _narrowed(wanted: list[str], rules: AgentPermissions) -> AgentPermissions:
    kept = {name: rules.tools.get(name, rules.default) for name in wanted}
    actions = {name: decision for name, decision in rules.tools.items() if name.partition(".")[0] in wanted}
    return rules.but(default=Decision.DENY, tools={**kept, **actions})
