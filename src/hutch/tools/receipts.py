"""The one place where the tools leave receipts: every decision that a rule or a person has made is one."""

from collections.abc import Mapping

from hutch.api import Hutch
from hutch.errors import HutchError
from hutch.logs import log

_log = log("tools")


async def receipt(hutch: Hutch, box_id: str, tool: str, decision: Mapping[str, str]) -> None:
    """Into the chain of the box that is concerned, or into the daybook if there is none yet, and into the log."""
    write = _log.warning if decision.get("decision") == "deny" else _log.info
    write("permission", tool=tool, box=box_id, **decision)
    try:
        await hutch.receipts.note(box_id, f"tool.{tool}", dict(decision))
    except HutchError as error:
        _log.warning("decision not on record", tool=tool, box=box_id, error=error)
