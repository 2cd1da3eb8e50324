"""Commands and Python of AstrBot: what runs in the box, and its result in the words that both doors share."""

from dataclasses import dataclass, field

from hutch.keeper.access.handles import BoxHandle
from hutch.model.results import Cause, Result
from hutch.server.bay.http import WORKSPACE

TIMED_OUT = -1
"""The exit code that the Bay API gives to a command whose time was over."""
EXPLAINED = frozenset({Cause.OOM, Cause.PIDS, Cause.DISK, Cause.SYSCALL_DENIED, Cause.EGRESS_DENIED})


@dataclass(frozen=True)
class ShellOutcome:
    success: bool
    stdout: str
    stderr: str
    exit_code: int
    milliseconds: int


@dataclass(frozen=True)
class PythonOutcome:
    success: bool
    text: str
    """What was printed, and the value of the last expression."""
    error: str | None
    count: int
    milliseconds: int
    images: list[dict[str, str]] = field(default_factory=list)
    """PNG pictures, each as base64 under its media type."""


async def run_shell(
    box: BoxHandle, command: str | list[str], *, cwd: str = WORKSPACE, env: dict[str, str] | None = None, timeout: float
) -> ShellOutcome:
    """Run a command. A command that fails or takes too long is an outcome, not an error."""
    result = await box.exec(command, cwd=cwd, env=env, timeout=timeout)
    timed_out = result.verdict.cause is Cause.TIMEOUT
    code = TIMED_OUT if timed_out else result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
    return ShellOutcome(
        success=code == 0,
        stdout=_text(result.stdout_bytes, result.stdout_total),
        stderr=_stderr(result),
        exit_code=code,
        milliseconds=round(result.duration_sec * 1000),
    )


async def run_python(box: BoxHandle, code: str, *, timeout: float) -> PythonOutcome:
    """Run Python in the box's kernel, whose variables stay from one call to the next."""
    result = await box.python(code, timeout=timeout)
    error = result.error
    failure = None if error is None else error.traceback or f"{error.name}: {error.value}"
    if error is None and not result.ok:
        failure = result.verdict.message or str(result.verdict.cause)
    return PythonOutcome(
        success=failure is None,
        text=result.stdout + result.text,
        error=failure,
        count=result.count,
        milliseconds=round(result.duration_sec * 1000),
        images=[{"image/png": each.data["image/png"]} for each in result.displays if "image/png" in each.data],
    )


def _stderr(result: Result) -> str:
    text = _text(result.stderr_bytes, result.stderr_total)
    verdict = result.verdict
    if verdict.cause is Cause.TIMEOUT:
        return f"{text}\nCommand timed out".strip()
    if verdict.cause not in EXPLAINED:
        return text
    return f"{text}\n{verdict.message} ({verdict.remedy})".strip()


def _text(kept: bytes, total: int) -> str:
    text = kept.decode("utf-8", "replace").strip()
    return text if total <= len(kept) else f"{text}\n... [{total - len(kept)} bytes in the middle were left out]"
