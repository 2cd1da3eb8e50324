"""The tool `exec`: run a command in the current box and wait for its end."""

from typing import Annotated

from msgspec import Meta

from hutch.api import Box
from hutch.errors import Invalid
from hutch.model.results import Result
from hutch.tools.builtin.answers import CommandAnswer
from hutch.tools.builtin.output import render
from hutch.tools.call import Call, shorten
from hutch.tools.definition import MAX_PATH, Arguments, tool
from hutch.tools.result import ToolResult, answer

Command = Annotated[
    str | tuple[str, ...],
    Meta(
        description="A shell command line (bash), or a list of arguments that no shell looks at.",
        examples=["python3 -m pytest -q", ["grep", "-n", "a b", "notes.txt"]],
    ),
]
Cwd = Annotated[str, Meta(description="Directory to run it in; relative to the workdir.", max_length=MAX_PATH)]
Env = Annotated[dict[str, str], Meta(description="Environment variables for this command only.")]


class ExecArguments(Arguments, frozen=True, kw_only=True):
    command: Command
    cwd: Cwd | None = None
    env: Env | None = None
    stdin: Annotated[str, Meta(description="Text for its standard input.")] | None = None
    timeout: (
        Annotated[
            float,
            Meta(
                description="Seconds until it is killed; the box sets a default and a maximum. "
                "For longer work use the tool job.",
                gt=0,
                le=86400,
            ),
        ]
        | None
    ) = None


@tool(
    "exec",
    ExecArguments,
    answers=CommandAnswer,
    example={"command": "python3 -c 'print(6*7)'", "timeout": 30},
    settles=True,
)
async def exec_tool(call: Call, given: ExecArguments) -> ToolResult:
    """Run a shell command in the current box and wait for it. Returns its output, exit code and, if a limit ended it,
    which one and what to try. Every call is a new shell: files and jobs persist, variables and the working directory do
    not. Long output is shown with its beginning and end; the notice in between says how to read the rest."""
    await call.gate.check_command(given.command)
    kept = call.tools.output_bytes

    async def run(box: Box) -> tuple[Box, Result]:
        longest = box.spec.limits.max_timeout_sec
        if given.timeout is not None and longest and given.timeout > longest:
            # A model that learns it only after the box's longest timeout has waited that long for nothing.
            raise Invalid(
                f"no command may run {given.timeout:g} s here: the longest timeout is {longest:g} s", op="exec",
                details={"max_timeout_sec": longest},
                remedy=f'ask for at most {longest:g} s, or start it as a job: job(action="start")',
            )  # fmt: skip
        work = box.exec(
            given.command, cwd=given.cwd, env=given.env, stdin=given.stdin, timeout=given.timeout, keep_output=kept
        )
        limit = given.timeout or box.spec.limits.timeout_sec
        return box, await call.with_progress(work, f"running: {shorten(given.command)}", limit)

    box, result = await call.on_box(run)
    text, structured = render(result, kept)
    return answer(text, {"box": box.id, **structured}, *result.notes)
