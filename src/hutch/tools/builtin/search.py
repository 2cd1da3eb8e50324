"""The tools `glob` and `grep`: find files by name or content. An incomplete result always says so."""

from typing import Annotated

from msgspec import Meta

from hutch.api import Box
from hutch.policy.permissions import Access
from hutch.tools.builtin.answers import GlobAnswer, GrepAnswer
from hutch.tools.call import Call
from hutch.tools.definition import MAX_PATH, Arguments, tool
from hutch.tools.result import ToolResult, answer

LINE_WIDTH = 400

Root = Annotated[
    str, Meta(description="Directory to search in; default: the workdir.", min_length=1, max_length=MAX_PATH)
]


class GlobArguments(Arguments, frozen=True, kw_only=True):
    pattern: Annotated[
        str,
        Meta(
            description="For example src/**/*.py; ** crosses directories, {a,b} are alternatives.",
            min_length=1,
            max_length=MAX_PATH,
        ),
    ]
    path: Root | None = None
    limit: Annotated[int, Meta(description="Paths at most.", ge=1, le=10_000)] = 500


class GrepArguments(Arguments, frozen=True, kw_only=True):
    pattern: Annotated[
        str, Meta(description="A Python regular expression, searched line by line.", min_length=1, max_length=10_000)
    ]
    path: (
        Annotated[
            str,
            Meta(description="File or directory to search; default: the workdir.", min_length=1, max_length=MAX_PATH),
        ]
        | None
    ) = None
    glob: (
        Annotated[
            str,
            Meta(description="Only files that match this pattern, such as **/*.py.", min_length=1, max_length=MAX_PATH),
        ]
        | None
    ) = None
    ignore_case: Annotated[bool, Meta(description="Upper and lower case are the same.")] = False
    limit: Annotated[int, Meta(description="Lines at most.", ge=1, le=5000)] = 200
    timeout: Annotated[float, Meta(description="Seconds to search at most.", gt=0, le=60)] = 15.0


@tool("glob", GlobArguments, answers=GlobAnswer, example={"pattern": "src/**/*.py"}, read_only=True, settles=True)
async def glob_tool(call: Call, given: GlobArguments) -> ToolResult:
    """Find files of the current box by name. `**` crosses any number of directories, hidden names match only a pattern
    that names the dot."""

    async def glob(box: Box) -> ToolResult:
        root = given.path or "."
        await call.gate.check_path(box, given.pattern if given.pattern.startswith("/") else root, Access.READ)
        found = await box.files.glob(given.pattern, root=root, limit=given.limit)
        paths = [path for path in found.paths if call.gate.visible(box, path)]
        lines = paths or ["no file matches"]
        if not found.complete:
            lines = [*lines, f"[not all: {found.note}]"]
        facts = {"box": box.id, "paths": paths, "complete": found.complete, "note": found.note}
        return answer("\n".join(lines), facts, *_hidden_note(len(found.paths) - len(paths)))

    return await call.on_box(glob)


@tool(
    "grep",
    GrepArguments,
    answers=GrepAnswer,
    example={"pattern": "def main", "glob": "**/*.py"},
    read_only=True,
    settles=True,
)
async def grep_tool(call: Call, given: GrepArguments) -> ToolResult:
    """Search the content of text files of the current box with a regular expression. Answers path:line:text. If a bound
    is met, what was found so far is shown and the answer says that it is not all."""

    async def grep(box: Box) -> ToolResult:
        root = given.path or "."
        await call.gate.check_path(box, root, Access.READ)
        search = box.files.grep(
            given.pattern, root=root, glob=given.glob, ignore_case=given.ignore_case, limit=given.limit,
            timeout_sec=given.timeout,
        )  # fmt: skip
        found = await call.with_progress(search, f"searching for {given.pattern[:60]}", given.timeout)
        hits = [hit for hit in found.hits if call.gate.visible(box, hit.path)]
        lines = [f"{hit.path}:{hit.line}:{_short(hit.text)}" for hit in hits] or ["no line matches"]
        if not found.complete:
            lines.append(f"[not all: {found.note}; narrow it with path or glob]")
        facts = {
            "box": box.id, "complete": found.complete, "note": found.note, "files_searched": found.files_searched,
            "hits": [{"path": hit.path, "line": hit.line, "text": _short(hit.text)} for hit in hits],
        }  # fmt: skip
        return answer("\n".join(lines), facts, *_hidden_note(len(found.hits) - len(hits)))

    return await call.on_box(grep)


def _short(text: str) -> str:
    text = text.rstrip("\r\n")
    return text if len(text) <= LINE_WIDTH else f"{text[:LINE_WIDTH]}… (+{len(text) - LINE_WIDTH} characters)"


def _hidden_note(count: int) -> tuple[str, ...]:
    return (f"{count} more are hidden by the permissions of this agent",) if count else ()
