"""Interrupts that arrive before the code that they are meant for, because nobody waits for a kernel to be ready."""

import asyncio
import json
import signal
import subprocess
from typing import Any

import pytest

from hutch import Hutch
from hutch.kernels.programs.start import program
from hutch.model.code import Language
from hutch.model.results import Cause


def _request(run: str, code: str) -> bytes:
    fields = {"op": "run", "run": run, "language": "python", "code": code, "env": {}}
    return json.dumps(fields).encode() + b"\n"


def test_a_signal_that_overtakes_its_code_interrupts_it() -> None:
    """Code that comes after the signal and before the keeper's line is interrupted, and no other code."""
    start = program(Language.PYTHON)
    with subprocess.Popen(start.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as kernel:
        assert kernel.stdin is not None and kernel.stdout is not None

        def next_message(kind: str) -> dict[str, Any]:
            assert kernel.stdout is not None
            return next(message for line in kernel.stdout if (message := json.loads(line))["type"] == kind)

        def write(data: bytes) -> None:
            assert kernel.stdin is not None
            kernel.stdin.write(data)
            kernel.stdin.flush()

        write(start.first)
        next_message("ready")
        kernel.send_signal(signal.SIGINT)
        write(_request("meant", "while True: pass"))
        assert next_message("done")["error"]["name"] == "KeyboardInterrupt"
        kernel.send_signal(signal.SIGINT)
        write(b'{"op":"interrupt"}\n' + _request("next", "6 * 7"))
        assert next_message("done")["error"] is None
        kernel.stdin.close()


@pytest.mark.usefixtures("prepared")
async def test_a_kernel_can_be_interrupted_from_its_first_moment() -> None:
    """Whenever the interrupt comes, from the call on, the endless first code ends and its kernel goes on."""
    async with Hutch() as hutch:
        for milliseconds in (0, 1, 2, 4, 8, 16):
            async with hutch.box(memory_mb=512) as box:
                running = asyncio.create_task(box.python("while True: pass", timeout=60))
                async with asyncio.timeout(60):
                    while not await box.kernels.all():
                        await asyncio.sleep(0)
                await asyncio.sleep(milliseconds / 1000)
                await box.kernels.interrupt("python")
                result = await running
                assert result.verdict.cause is Cause.CANCELLED, (milliseconds, result)
                assert (await box.python("1 + 1")).text == "2"
