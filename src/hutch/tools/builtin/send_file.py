"""The tool `send_file`: put a file into the outbox, from which the application sends it to the user."""

import posixpath
from typing import Annotated

from msgspec import Meta

from hutch.api import Box
from hutch.errors import FileMissing, FileTooLarge, IsDirectory, QuotaExceeded
from hutch.model.files import FileKind
from hutch.policy.permissions import Access
from hutch.tools.attachments import guess_mime, outbox_path, safe_name, unique_name
from hutch.tools.builtin.answers import SendFileAnswer
from hutch.tools.call import Call
from hutch.tools.definition import MAX_PATH, Arguments, tool
from hutch.tools.result import ToolResult, answer


class SendFileArguments(Arguments, frozen=True, kw_only=True):
    path: Annotated[
        str, Meta(description="The file to send; relative to the workdir.", min_length=1, max_length=MAX_PATH)
    ]
    name: Annotated[str, Meta(description="Name the user sees; default: its own.", max_length=200)] | None = None


@tool("send_file", SendFileArguments, answers=SendFileAnswer, example={"path": "report.pdf"}, settles=True)
async def send_file_tool(call: Call, given: SendFileArguments) -> ToolResult:
    """Send a file of the current box to the user, together with your answer. To send a directory, pack it first."""
    bounds = call.tools.attachments.bounds

    async def send(box: Box) -> ToolResult:
        await call.gate.check_path(box, given.path, Access.READ)
        directory = outbox_path(call.message)
        there = await _waiting(box, directory)
        if len(there) >= bounds.files:
            raise QuotaExceeded(
                f"{bounds.files} files wait already to be sent", op="send_file", remedy="pack files into one archive"
            )
        info = await box.files.stat(given.path)
        if info.kind is FileKind.DIRECTORY:
            raise IsDirectory(
                f"{given.path!r} is a directory", op="send_file", remedy="pack it first: zip -r all.zip DIR"
            )
        if info.size > bounds.file_bytes:
            raise FileTooLarge(
                f"{given.path!r} has {info.size:,} bytes; {bounds.file_bytes:,} can be sent", op="send_file",
                remedy="send a part of it, or compress it",
            )  # fmt: skip
        name = unique_name(safe_name(given.name or posixpath.basename(given.path.rstrip("/"))), there)
        # The bytes read are bounded too: a file may grow, and files of /proc have size 0.
        pieces = box.files.open(given.path, limit=bounds.file_bytes)
        written = await call.with_progress(box.files.write(f"{directory}/{name}", pieces), f"sending {name}")
        facts = {
            "box": box.id, "path": given.path, "name": name, "size": written.size, "mime": guess_mime(name),
            "outbox": f"{directory}/{name}", "message": call.message,
        }  # fmt: skip
        return answer(f"{name} ({written.size:,} bytes) will reach the user with your answer", facts)

    return await call.on_box(send)


async def _waiting(box: Box, directory: str) -> set[str]:
    try:
        return {posixpath.basename(info.path).casefold() for info in await box.files.list(directory)}
    except FileMissing:
        return set()
