"""Runs a single file operation to its end, as the guest's loop would."""

import json
import select
import time
from pathlib import Path
from types import GeneratorType
from typing import Any

from hutch.guest.files.driver import OPERATIONS
from hutch.guest.operations import Readable, Reply, Steps


def run(op: str, workdir: Path, content: bytes = b"", **fields: Any) -> tuple[Reply, bytes]:
    """Return the reply and the content that came before it."""
    work: Any = OPERATIONS[f"files.{op}"](fields, str(workdir))
    if isinstance(work, dict):
        return work, b""
    if not isinstance(work, GeneratorType):
        try:
            for start in range(0, len(content), 1000):
                work.data(content[start : start + 1000])
        except BaseException:
            work.abort()
            raise
        work = work.end()
        if isinstance(work, dict):
            return work, b""
    return drive(work)


def drive(steps: Steps) -> tuple[Reply, bytes]:
    sent = bytearray()
    try:
        while True:
            step = next(steps)
            if isinstance(step, Readable):
                wait = None if step.until is None else max(0.0, step.until - time.monotonic())
                select.select([step.descriptor], [], [], wait)
            elif step is not None:
                sent += step
    except StopIteration as end:
        return end.value, bytes(sent)


def rows(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]
