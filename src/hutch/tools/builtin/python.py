"""The tool `python`: run code in the current box's Python kernel, which keeps its variables."""

from typing import Annotated, Any

from msgspec import Meta

from hutch.api import Box
from hutch.model.code import CodeResult
from hutch.model.results import Cause
from hutch.tools.builtin.answers import CodeAnswer
from hutch.tools.builtin.output import verdict_facts, why_it_ended
from hutch.tools.call import Call, shorten
from hutch.tools.definition import Arguments, tool
from hutch.tools.result import Image, ToolResult, answer

MAX_PICTURES = 8
"""Pictures of one answer; models pay for each."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class PythonArguments(Arguments, frozen=True, kw_only=True):
    code: Annotated[
        str,
        Meta(
            description="Python code, as in a notebook's cell: the last expression's value is shown, "
            "`!command` and magics work where IPython is installed.",
            examples=["import pandas as pd\npd.read_csv('data.csv').describe()"],
            max_length=1_000_000,
        ),
    ]
    timeout: (
        Annotated[float, Meta(description="Seconds until it is interrupted; variables stay.", gt=0, le=86400)] | None
    ) = None


@tool(
    "python",
    PythonArguments,
    answers=CodeAnswer,
    example={"code": "x = 6 * 7\nx", "timeout": 30},
    settles=True,
)
async def python_tool(call: Call, given: PythonArguments) -> ToolResult:
    """Run Python code in the current box. Variables, imports and the working directory persist between calls. Returns
    what it printed, the value of the last expression, its pictures (matplotlib figures are shown by themselves) and, if
    it failed, the traceback. Files are shared with exec and the other tools."""
    # Rules about commands hold for code too, which could run any of them.
    await call.gate.check_command(("python3", "-c", given.code))
    kept = call.tools.output_bytes

    async def run(box: Box) -> tuple[Box, CodeResult]:
        work = box.kernels.run("python", given.code, timeout=given.timeout, keep_output=kept)
        limit = given.timeout or box.spec.limits.timeout_sec
        return box, await call.with_progress(work, f"running: {shorten(given.code)}", limit)

    box, result = await call.on_box(run)
    return answer(
        _text(result, kept), {"box": box.id, **_structured(result)}, *result.notes, images=_images(result)
    )  # fmt: skip


def _text(result: CodeResult, kept: int) -> str:
    parts = [result.stdout.rstrip("\n")]
    if result.stderr:
        parts.append(f"[stderr]\n{result.stderr.rstrip()}")
    shown = [display.text for display in result.displays if display.text and not _pictures_of(display.data)]
    parts += [text if len(text) <= kept else f"{text[:kept]}…" for text in shown]
    if result.error is not None:
        parts.append((result.error.traceback or f"{result.error.name}: {result.error.value}").rstrip())
    pictures = sum(1 for display in result.displays if _pictures_of(display.data))
    if pictures:
        parts.append(f"[{pictures} picture{'s' if pictures > 1 else ''}]")
    if result.displays_dropped:
        parts.append(f"[{result.displays_dropped} more displays were left out]")
    if result.verdict.cause not in (Cause.OK, Cause.EXIT):
        parts.append(f"[{result.verdict.cause} after {result.duration_sec:.2f} s: {why_it_ended(result.verdict)}]")
    return "\n".join(part for part in parts if part) or "(no output)"


def _structured(result: CodeResult) -> dict[str, Any]:
    error = result.error
    return {
        "stdout": result.stdout, "stderr": result.stderr, "value": result.text, "count": result.count,
        "displays": [sorted(display.data) for display in result.displays],
        "raised": None if error is None else {"name": error.name, "value": error.value, "traceback": error.traceback},
        "duration_sec": round(result.duration_sec, 3), "verdict": verdict_facts(result.verdict),
    }  # fmt: skip


def _images(result: CodeResult) -> list[Image]:
    found = [
        Image(mime=mime, data=display.binary(mime))
        for display in result.displays
        for mime in _pictures_of(display.data)[:1]
    ]
    return [image for image in found if image.data][:MAX_PICTURES]


def _pictures_of(data: dict[str, str]) -> list[str]:
    return [mime for mime in _PICTURES if mime in data]
