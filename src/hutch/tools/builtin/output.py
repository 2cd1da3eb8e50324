"""Renders a command's output for a model: its head and tail, a notice of the gap, and a handle for reading the rest."""

from typing import Any, NamedTuple

from hutch.model.results import Cause, Result, Verdict

OUTPUT_BYTES = 30_000
"""Bytes of each stream that a result shows: 60 % from its beginning and 40 % from its end."""
STREAMS = ("stdout", "stderr")
HANDLE_PREFIX = "output:"


class ClippedOutput(NamedTuple):
    text: str
    omitted: int
    handle: str


def handle_of(job_id: str, stream: str) -> str:
    """Return the handle by which `read` pages through everything that the command wrote."""
    return f"{HANDLE_PREFIX}{job_id}:{stream}"


def clip(data: bytes, total: int, kept: int, job_id: str, stream: str) -> ClippedOutput:
    """Join head and tail of `total` bytes, as `exec(keep_output=kept)` returns them, with a notice between."""
    if total <= len(data):
        return ClippedOutput(data.decode("utf-8", "replace"), 0, "")
    middle = min(kept * 3 // 5, len(data))
    head, tail = _to_line_end(data[:middle]), _from_line_start(data[middle:])
    omitted = total - len(head) - len(tail)
    handle = handle_of(job_id, stream)
    next_line = head.count(b"\n") + 1
    whole = head.endswith(b"\n")
    at = f"offset={next_line}" if whole else f'unit="bytes", offset={len(head)}'
    notice = (
        f"[… {omitted:,} of {total:,} bytes left out here. Nothing is lost: read the rest with "
        f'read(path="{handle}", {at}), page by page …]'
    )
    first = head.decode("utf-8", "replace")
    text = f"{first}{'' if whole else chr(10)}{notice}\n{tail.decode('utf-8', 'replace')}"
    return ClippedOutput(text, omitted, handle)


def _to_line_end(head: bytes) -> bytes:
    """Cut after the last whole line if that keeps at least half, else after the last whole character."""
    end = head.rfind(b"\n") + 1
    return head[:end] if end * 2 >= len(head) else whole_characters(head)


def _from_line_start(tail: bytes) -> bytes:
    start = tail.find(b"\n") + 1
    if start > 0 and start * 2 <= len(tail):
        return tail[start:]
    for position in range(min(4, len(tail))):
        if tail[position] & 0xC0 != 0x80:
            return tail[position:]
    # Four continuation bytes in a row belong to no character, so this is not UTF-8 and stays as it is.
    return tail if len(tail) >= 4 else b""


def whole_characters(data: bytes) -> bytes:
    """Drop an incomplete UTF-8 character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back else data
    return data


def ending_line(result: Result) -> str:
    """Return one line that says how the command ended; after a limit it names the limit, the peak and what to try."""
    took = f"{result.usage.wall_sec:.2f} s"
    verdict = result.verdict
    if verdict.cause is Cause.OK:
        return f"[exit code 0, {took}]"
    if verdict.cause is Cause.EXIT:
        hint = f"; {verdict.remedy}" if verdict.remedy else ""
        return f"[exit code {result.exit_code}, {took}{hint}]"
    code = f", exit code {result.exit_code}" if result.exit_code is not None else ""
    return f"[{verdict.cause} after {took}{code}: {why_it_ended(verdict)}. {_survived(verdict)}]"


def why_it_ended(verdict: Verdict) -> str:
    """Return the reason with the limit that was met, and what to try."""
    text = verdict.message or str(verdict.cause)
    if verdict.limit is not None and verdict.peak is not None and "peak" not in text:
        text += f" (limit {verdict.limit:g} {verdict.unit}, reached {verdict.peak:.4g})"
    if verdict.remedy:
        text += f". Try: {_advice_for_model(verdict)}"
    return text


_ADVICE = {
    Cause.OOM: "process the data in pieces or stream it, use less parallelism, or ask the user for a larger box",
    Cause.PIDS: "start fewer processes or threads at once, or end background processes (job list, job signal)",
    Cause.DISK: "remove files you do not need, or ask the user for a larger box",
}


def _advice_for_model(verdict: Verdict) -> str:
    """Return advice that a model can follow. The verdict's remedy addresses the person who sets the limits."""
    return _ADVICE.get(verdict.cause, verdict.remedy)


def _survived(verdict: Verdict) -> str:
    if verdict.cause is Cause.BOX_BROKEN:
        return "The box is broken; the next call gets a new one"
    return "The box and its files are unharmed"


def verdict_facts(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as structured content."""
    plain = verdict.to_plain()
    plain["try"] = _advice_for_model(verdict)
    return {key: value for key, value in plain.items() if value not in (None, "")}


def render(result: Result, kept: int) -> tuple[str, dict[str, Any]]:
    """Return the text and the structured content for a command that has ended."""
    parts: list[str] = []
    structured: dict[str, Any] = {"exit_code": result.exit_code, "signal": result.signal}
    for stream, data, total in (
        ("stdout", result.stdout_bytes, result.stdout_total),
        ("stderr", result.stderr_bytes, result.stderr_total),
    ):
        clipped = clip(data, total, kept, result.job_id, stream)
        structured |= {stream: clipped.text, f"{stream}_total": total, f"{stream}_truncated": clipped.omitted > 0}
        if clipped.handle:
            structured[f"{stream}_handle"] = clipped.handle
        if clipped.text:
            parts += ["--- stderr ---"] if stream == "stderr" else []
            parts.append(clipped.text.removesuffix("\n"))
    if not parts:
        parts.append("(no output)")
    if result.lingering:
        parts.append(
            "[processes of this command still hold its output open; they were not waited for, "
            f"and what they write can be read: {handle_of(result.job_id, 'stdout')}]"
        )
    parts.append(ending_line(result))
    structured |= {
        "duration_sec": round(result.usage.wall_sec, 4),
        "lingering": result.lingering,
        "verdict": verdict_facts(result.verdict),
        "usage": result.usage.to_plain(),
    }
    return "\n".join(parts), structured
