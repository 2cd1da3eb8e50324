"""The tool `box_operation`: copy a file between boxes, take a screenshot, checkpoint, roll back, compare, undo."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Annotated, Any, Protocol, runtime_checkable

from msgspec import Meta

from hutch.api import Box
from hutch.errors import Invalid, IsDirectory, Unsupported
from hutch.model.boxes import BoxInfo
from hutch.model.files import FileKind
from hutch.model.layers import Change, Rollback
from hutch.policy.permissions import Access, Others
from hutch.tools.agents import release_quietly
from hutch.tools.arguments import missing_argument
from hutch.tools.builtin.answers import BoxOperationAnswer
from hutch.tools.call import Call
from hutch.tools.definition import MAX_PATH, Arguments, tool
from hutch.tools.result import Image, ToolResult, answer
from hutch.tools.scope import find_reachable, ownership_note

MAX_CHANGES = 200
MAX_DIFF_TEXT = 20_000


class Operation(StrEnum):
    COPY_FILE = "copy_file"
    SCREENSHOT = "screenshot"
    CHECKPOINT = "checkpoint"
    ROLLBACK = "rollback"
    DIFF = "diff"
    UNDO = "undo"


OPERATIONS: dict[str, str] = {
    Operation.COPY_FILE: "copy a file of any size between two boxes (source_box, source_path, target_box, target_path)",
    Operation.SCREENSHOT: "look at a box that has a screen (source_box)",
    Operation.CHECKPOINT: "remember the files of the current box (checkpoint: a name)",
    Operation.ROLLBACK: "give the current box the files of a checkpoint again (checkpoint)",
    Operation.DIFF: "list what changed in the current box since a checkpoint (checkpoint)",
    Operation.UNDO: "undo the last commands, in a box whose commands are steps (steps)",
}


class BoxOperationArguments(Arguments, frozen=True, kw_only=True):
    action: Operation
    checkpoint: (
        Annotated[
            str,
            Meta(
                description="checkpoint: its name; rollback: which one; diff: since which one (default: the last).",
                max_length=63,
            ),
        ]
        | None
    ) = None
    steps: Annotated[int, Meta(description="undo: how many commands.", ge=1, le=100)] = 1
    source_box: Annotated[str, Meta(description="Id or name; default: the current box.", max_length=100)] | None = None
    source_path: (
        Annotated[str, Meta(description="copy_file: the file to copy.", min_length=1, max_length=MAX_PATH)] | None
    ) = None
    target_box: Annotated[str, Meta(description="Id or name; default: the current box.", max_length=100)] | None = None
    target_path: (
        Annotated[
            str, Meta(description="copy_file: where to; default: the same path.", min_length=1, max_length=MAX_PATH)
        ]
        | None
    ) = None


@runtime_checkable
class Screen(Protocol):
    """Extra protocol of a box with a desktop."""

    async def screenshot(self) -> bytes:
        """Return the screen as PNG."""


@tool(
    "box_operation",
    BoxOperationArguments,
    answers=BoxOperationAnswer,
    example={"action": "copy_file", "source_path": "a.txt", "target_box": "k3x7…", "target_path": "a.txt"},
    action="action",
    actions=OPERATIONS,
    settles=True,
)
async def box_operation_tool(call: Call, given: BoxOperationArguments) -> ToolResult:
    """Copy a file from one box to another (of any size, nothing is left behind on the way), or take a screenshot of a
    box that has a screen. Remember the files of the current box as a checkpoint, go back to one, see what changed
    since, or undo commands."""
    if given.action is Operation.SCREENSHOT:
        return await _screenshot(call)
    if given.action is Operation.COPY_FILE:
        return await _copy(call, given)
    await call.gate.check_tool()
    box = await call.box()
    if given.action is Operation.CHECKPOINT:
        return await _checkpoint(box, given.checkpoint or "")
    if given.action is Operation.DIFF:
        return await _diff(box, given.checkpoint or "")
    if given.action is Operation.UNDO:
        return _back(box, await box.undo(given.steps), f"undid {given.steps} commands")
    if given.checkpoint is None:
        raise missing_argument(
            "box_operation", "checkpoint", given.action, {"action": "rollback", "checkpoint": "before"}
        )
    return _back(box, await box.rollback(given.checkpoint), f"went back to {given.checkpoint}")


async def _checkpoint(box: Box, name: str) -> ToolResult:
    made = await box.checkpoint(name)
    facts = {"box": box.id, "checkpoint": made.id, "left_out": list(made.left_out)}
    return answer(f"checkpoint {made.name or made.id}{_without(made.left_out)}", facts)


def _back(box: Box, done: Rollback, text: str) -> ToolResult:
    facts = {"box": box.id, "checkpoint": done.checkpoint, "left_out": list(done.left_out)}
    return answer(f"{text}{_without(done.left_out)}", facts)


async def _diff(box: Box, start: str) -> ToolResult:
    found = await box.diff(start, text=True)
    shown = found.changes[:MAX_CHANGES]
    facts = {
        "box": box.id, "checkpoint": found.start, "changes": [_change(each) for each in shown],
        "left_out": list(found.left_out),
    }  # fmt: skip
    lines = [each.text or f"{each.kind} {each.type} {each.path}\n" for each in shown]
    more = f"and {len(found.changes) - len(shown)} more" if len(found.changes) > len(shown) else ""
    return answer("".join(lines)[:MAX_DIFF_TEXT] + more or "nothing changed", facts)


def _change(each: Change) -> dict[str, Any]:
    size = each.size_before if each.size_after is None else each.size_after
    return {"path": each.path, "kind": each.kind.value, "type": each.type, "size": size or 0}


def _without(left_out: tuple[str, ...]) -> str:
    return f"; not part of it: {', '.join(left_out)}" if left_out else ""


async def _copy(call: Call, given: BoxOperationArguments) -> ToolResult:
    if given.source_path is None:
        example = {"action": "copy_file", "source_path": "a.txt", "target_box": "k3x7…"}
        raise missing_argument("box_operation", "source_path", given.action, example)
    target_path = given.target_path or given.source_path
    async with _reading(call, given.source_box) as source, _writing(call, given.target_box) as target:
        if source.id == target.id and target_path == given.source_path:
            raise Invalid(
                "source and target are the same file", op="box_operation", remedy="name another box or target_path"
            )
        await call.gate.check_path(source, given.source_path, Access.READ)
        await call.gate.check_path(target, target_path, Access.WRITE)
        # The target appears by a rename after the last byte, so a copy is complete or absent.
        info = await source.files.stat(given.source_path)
        if info.kind is FileKind.DIRECTORY:
            raise IsDirectory(
                f"{given.source_path!r} is a directory", op="box_operation", remedy="pack it first: tar -cf all.tar DIR"
            )
        mode = info.mode & 0o777 if info.kind is FileKind.FILE else None
        work = target.files.write(target_path, source.files.open(given.source_path), mode=mode)
        written = await call.with_progress(work, f"copying {given.source_path}")
        text = f"copied {written.size:,} bytes from {source.id}:{given.source_path} to {target.id}:{target_path}"
        facts = {
            "source_box": source.id, "source_path": given.source_path, "target_box": target.id,
            "target_path": target_path, "size": written.size,
        }  # fmt: skip
        return answer(text, facts)


async def _other(call: Call, named: str) -> BoxInfo:
    """Find a named box. A box of another session needs the takeover permission, and a note informs its owner."""
    info, own = await find_reachable(call, named, Others.TAKEOVER)
    if not own:
        call.note(ownership_note(info))
    return info


@asynccontextmanager
async def _reading(call: Call, named: str | None) -> AsyncIterator[Box]:
    """Open a box for reading. A box that this agent does not hold is observed, which takes no lease."""
    if named is None:
        yield await call.box()
        return
    info = await _other(call, named)
    held = call.agent.held.get(info.id)
    yield held if held is not None else await call.agent.hutch.observe(info.id)


@asynccontextmanager
async def _writing(call: Call, named: str | None) -> AsyncIterator[Box]:
    """Open a box for writing. A lease that was taken only for this is released afterwards."""
    if named is None:
        yield await call.box()
        return
    info = await _other(call, named)
    held = call.agent.held.get(info.id)
    if held is not None:
        yield held
        return
    box = await call.agent.hutch.attach(info.id)
    try:
        yield box
    finally:
        await release_quietly(box)


async def _screenshot(call: Call) -> ToolResult:
    await call.gate.check_tool()
    box = await call.box()
    if not isinstance(box, Screen):
        raise Unsupported(
            f"box {box.id} has no screen: profile {box.spec.profile} on {box.spec.provider} runs no desktop",
            op="box_operation",
            remedy="ask the user for a desktop box; to look at a picture file use read",
        )
    picture = await box.screenshot()
    facts = {"box": box.id, "mime": "image/png", "size": len(picture)}
    return answer(f"screenshot of box {box.id}", facts, images=(Image(mime="image/png", data=picture),))
