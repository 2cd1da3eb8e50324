"""Permission checks before every tool: rules decide, people are asked, and each decision leaves a receipt."""

import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from hutch.api import Box, Hutch
from hutch.errors import FileMissing, HutchError, NotDirectory, Refused
from hutch.logs import log
from hutch.model.files import FileKind
from hutch.model.questions import Answer, AskRequest
from hutch.policy import permissions as rules
from hutch.policy.permissions import Access, AgentPermissions, Decision, Others, Ruling
from hutch.tools.agents import Agent, absolute_path

MAX_LINKS = 40  # The kernel's own limit, see path_resolution(7).
MAX_RECEIPT_TEXT = 1000
"""Most characters of a command or path that a receipt keeps."""
NO_RULES = AgentPermissions()
"""Permissions without any rule. Nothing is decided, and the box's own receipts record the actions."""

_log = log("tools")


class DecidedBy(StrEnum):
    """What decided on a permission; receipts and refusals carry it."""

    RULE = "rule"
    EARLIER_ANSWER = "earlier answer"
    ANSWER = "answer"
    NOBODY_TO_ASK = "nobody to ask"
    NO_ANSWER = "no answer"


Ask = Callable[[AskRequest], Awaitable[Answer | str]]


class Gate:
    """Checks the permissions of one call."""

    def __init__(
        self, agent: Agent, permissions: AgentPermissions, ask: Ask | None, tool: str, action: str,
        arguments: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._agent = agent
        self._permissions = permissions
        self._ask = ask
        self._tool = tool
        self._action = action
        self._arguments = arguments
        self._ruling = rules.on_tool(permissions, tool, action)
        self._decided: set[str] = set()
        self._decisions: list[dict[str, str]] = []
        """Decisions that have no receipt yet, because the box that they concern may not exist yet."""

    async def enter(self, *, decided_later: bool) -> None:
        """Check the tool before anything is done, unless the handler decides later by the command or the path."""
        if self._ruling.decision is Decision.DENY or not decided_later:
            await self.check_tool()

    async def check_tool(self) -> None:
        """Apply the rule for the tool itself."""
        await self._decide(self._ruling, "")

    async def check_command(self, command: str | Sequence[str]) -> None:
        ruling = rules.on_command(self._permissions, self._ruling, command)
        await self._decide(ruling, command if isinstance(command, str) else " ".join(command))

    async def check_path(self, box: Box, path: str, access: Access) -> None:
        where = await self._resolved(box, path)
        await self._decide(rules.on_path(self._permissions, self._ruling, where, access), where, box, access)

    def decision_on_others(self, right: Others) -> Decision:
        """Return the decision on boxes of other sessions."""
        return self._permissions.others(right)

    async def check_others(self, right: Others, what: str) -> None:
        """Check before a box of another session is used or shown."""
        await self._decide(rules.on_others(self._permissions, right), what)

    def visible(self, box: Box, path: str) -> bool:
        """Return whether a search result may be shown. Paths that would need approval are hidden."""
        if not self._permissions.paths:
            return True
        where = absolute_path(box, path)
        ruling = rules.on_path(self._permissions, Ruling(Decision.ALLOW, ""), where, Access.READ)
        return (
            ruling.decision is Decision.ALLOW
            or (f"{self._tool}.", f"{Access.READ} {where}") in self._agent.always_allowed
        )

    async def _resolved(self, box: Box, path: str) -> str:
        """Return where the path leads inside the box. Symlinks are followed only if there are path rules.

        A process of the box may change a symlink afterwards. That is no gap: an agent that can start a process can
        read the file anyway.
        """
        if not self._permissions.paths:
            return absolute_path(box, path)
        waiting = [name for name in reversed(posixpath.join("/", box.spec.workdir, path).split("/")) if name]
        where, links = "/", 0
        while waiting:
            name = waiting.pop()
            if name in (".", ".."):
                where = posixpath.dirname(where) if name == ".." else where
                continue
            step = posixpath.join(where, name)
            try:
                info = await box.files.stat(step)
            except (FileMissing, NotDirectory):
                return posixpath.normpath(posixpath.join(step, *reversed(waiting)))
            if info.kind is not FileKind.SYMLINK or info.target is None:
                where = step
                continue
            links += 1
            if links > MAX_LINKS:
                raise Refused(f"{path!r} goes through too many symlinks", op=self._tool)
            if info.target.startswith("/"):
                where = "/"
            waiting += [each for each in reversed(info.target.split("/")) if each]
        return where

    async def _decide(self, ruling: Ruling, what: str, box: Box | None = None, access: Access | None = None) -> None:
        if access is None and what in self._decided:
            return  # The same call continues in another box. Paths are checked again, since they may lead elsewhere.
        by = DecidedBy.RULE
        decision = ruling.decision
        key = (f"{self._tool}.{self._action}", f"{access} {what}" if access else what)
        if decision is Decision.ASK:
            by = DecidedBy.EARLIER_ANSWER
            decision = Decision.ALLOW
            if key not in self._agent.always_allowed:
                by, decision = await self._ask_person(ruling, what, key, box)
        self._decided.add(what)
        if self._permissions != NO_RULES:
            self._decisions.append(
                {
                    "agent": self._agent.name, "action": self._action, "what": what[:MAX_RECEIPT_TEXT],
                    "decision": str(decision), "by": str(by), "reason": ruling.reason,
                }
            )  # fmt: skip
        if decision is Decision.DENY:
            await self.record(box)
            raise self._refusal(ruling, what, by)

    async def record(self, box: Box | None = None) -> None:
        """Write receipts for the pending decisions, with the box that they concern."""
        decisions, self._decisions = self._decisions, []
        concerned = box or self._agent.current
        for decision in decisions:
            await write_receipt(self._agent.hutch, concerned.id if concerned is not None else "", self._tool, decision)

    async def _ask_person(
        self, ruling: Ruling, what: str, key: tuple[str, str], box: Box | None
    ) -> tuple[DecidedBy, Decision]:  # fmt: skip
        if self._ask is None:
            return DecidedBy.NOBODY_TO_ASK, Decision.DENY
        current = box or self._agent.current
        request = AskRequest(
            agent=self._agent.name, tool=self._tool, action=self._action, what=what, reason=ruling.reason,
            arguments=dict(self._arguments), box=current.id if current is not None else "",
        )  # fmt: skip
        try:
            answer = Answer(await self._ask(request))
        except Exception as error:  # The application's own code. Whatever it raised, nobody has approved.
            _log.warning("nobody answered a permission question", agent=self._agent.name, tool=self._tool, error=error)
            return DecidedBy.NO_ANSWER, Decision.DENY
        if answer is Answer.ALWAYS:
            self._agent.always_allowed.add(key)
        return DecidedBy.ANSWER, Decision.DENY if answer is Answer.DENY else Decision.ALLOW

    def _refusal(self, ruling: Ruling, what: str, by: DecidedBy) -> HutchError:
        subject = f"{self._tool} {self._action}".strip() + (f" on {what[:200]!r}" if what else "")
        why = {
            DecidedBy.ANSWER: "the user said no",
            DecidedBy.NOBODY_TO_ASK: f"it needs approval ({ruling.reason}), and nobody can be asked here",
            DecidedBy.NO_ANSWER: "it needs approval, and no answer came",
        }.get(by, ruling.reason)
        return Refused(
            f"{subject} is not permitted: {why}",
            op=self._tool,
            remedy="do it another way, or tell the user what you need and why",
            details={"tool": self._tool, "action": self._action, "by": str(by)},
        )


async def write_receipt(hutch: Hutch, box_id: str, tool: str, decision: Mapping[str, str]) -> None:
    """Write the decision to the log and to the receipt chain of the box, or to the owner log if there is no box yet."""
    write = _log.warning if decision.get("decision") == "deny" else _log.info
    write("permission", tool=tool, box=box_id, **decision)
    try:
        await hutch.receipts.note(box_id, f"tool.{tool}", dict(decision))
    except HutchError as error:
        _log.warning("decision not on record", tool=tool, box=box_id, error=error)
