"""`box_exec`: one command in a session, and its result as LangBot expects it."""

import secrets
import shlex
from typing import Any

from hutch.errors import Invalid
from hutch.keeper.access.handles import BoxHandle
from hutch.model.results import Cause, Result
from hutch.server.langbot.messages import MOUNT_PATH, BoxSpec
from hutch.server.langbot.sessions import BACKEND

OUTPUT_BYTES = 1 << 20
MAX_ARGUMENT_BYTES = 100 << 10
"""The kernel takes at most 128 KiB in one argument (MAX_ARG_STRLEN); LangBot sends attachments as longer commands."""
EXPLAINED = frozenset({Cause.OOM, Cause.PIDS, Cause.DISK, Cause.SYSCALL_DENIED, Cause.EGRESS_DENIED})
"""Causes that a command's own output does not name, so the verdict is added to it."""


async def run(box: BoxHandle, spec: BoxSpec) -> dict[str, Any]:
    """Run the spec's command. A timeout ends the command and keeps the session with its files and processes."""
    if not spec.cmd:
        raise Invalid("cmd must not be empty")
    command = spec.cmd
    if spec.workdir != MOUNT_PATH:
        place = shlex.quote(spec.workdir)
        command = f"mkdir -p {place} && cd {place} || exit\n{command}"
    if len(command.encode()) > MAX_ARGUMENT_BYTES:
        command = await _as_script(box, command)
    result = await box.exec(command, cwd=MOUNT_PATH, env=spec.env, timeout=spec.timeout_sec, keep_output=OUTPUT_BYTES)
    timed_out = result.verdict.cause is Cause.TIMEOUT
    return {
        "session_id": spec.session_id,
        "backend_name": BACKEND,
        "status": "timed_out" if timed_out else "completed",
        "exit_code": None if timed_out else _exit_code(result),
        "stdout": _text(result.stdout_bytes, result.stdout_total),
        "stderr": _stderr(result, spec.timeout_sec),
        "duration_ms": round(result.duration_sec * 1000),
    }


async def _as_script(box: BoxHandle, command: str) -> str:
    """Write a long command to a file that removes itself as soon as the shell has opened it."""
    path = f"/tmp/.langbot-{secrets.token_hex(8)}"
    await box.files.write(path, f"rm -f {path}\n{command}\n", mode=0o600)
    return f"exec $(command -v bash || echo sh) {path}"


def _exit_code(result: Result) -> int:
    """Return the exit code as a shell shows it; 137 is what LangBot reports as out of memory."""
    if result.exit_code is not None:
        return result.exit_code
    return 128 + (result.signal or 0)


def _stderr(result: Result, timeout_sec: int) -> str:
    text = _text(result.stderr_bytes, result.stderr_total)
    verdict = result.verdict
    if verdict.cause is Cause.TIMEOUT:
        return text or f"Command timed out after {timeout_sec} seconds."
    if verdict.cause not in EXPLAINED:
        return text
    explained = f"{verdict.message} ({verdict.remedy})" if verdict.remedy else verdict.message
    return f"{text}\n{explained}".strip()


def _text(kept: bytes, total: int) -> str:
    """Decode output; LangBot recognises a cut by the exact form of its last line."""
    text = kept.decode("utf-8", "replace").strip()
    if total <= len(kept):
        return text
    return f"{text}\n... [raw output clipped at {OUTPUT_BYTES} bytes, {total - len(kept)} bytes discarded]"
