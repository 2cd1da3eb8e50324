"""Runs the scenarios of a script in another environment: it needs the standard library only."""

import asyncio
import json
import time
import traceback
from collections.abc import Awaitable, Callable


def run(scenarios: list[Callable[[], Awaitable[None]]]) -> None:
    """Run each scenario, and print one JSON line with its outcome."""
    asyncio.run(_run(scenarios))


async def _run(scenarios: list[Callable[[], Awaitable[None]]]) -> None:
    for scenario in scenarios:
        started, error = time.monotonic(), ""
        try:
            await asyncio.wait_for(scenario(), 240)
        except Exception:
            error = traceback.format_exc()
        outcome = {"scenario": scenario.__name__, "error": error, "seconds": round(time.monotonic() - started, 2)}
        print(json.dumps(outcome), flush=True)
