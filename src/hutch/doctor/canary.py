"""The canary: a real box that runs a real command, timed."""

import time
from collections.abc import AsyncIterator

from hutch.config import Config
from hutch.doctor.findings import Finding, fail, ok, warn
from hutch.errors import HutchError
from hutch.keeper.embedded import Hutch
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.store import MemoryStore
from hutch.model.capabilities import Capabilities
from hutch.model.limits import EnforcedBy
from hutch.providers.native import probe
from hutch.providers.native.network.availability import available

NAME = "canary box"


async def findings(config: Config) -> AsyncIterator[Finding]:
    """Yield whether a box works here, how fast, and what enforces its limits."""
    keeper = Keeper(config, MemoryStore())
    try:
        await keeper.start()
        yield of_limits(await keeper.engines.capabilities(config.provider))
        yield await _one_box(Hutch(keeper=keeper))
        if available().usable:
            yield await _one_connection()
    except HutchError as error:
        yield fail(NAME, error.message, "no box can be made", error.remedy or "the findings above name the obstacle")
    finally:
        await keeper.close()


async def _one_box(hutch: Hutch) -> Finding:
    started = time.perf_counter()
    async with hutch.box() as box:
        made = time.perf_counter()
        result = await box.exec(("echo", "hello"))
        ended = time.perf_counter()
    if result.stdout != "hello\n":
        answer = f"`echo hello` answered {result.stdout!r}: {result.verdict.message or result.verdict.cause}"
        return fail(NAME, answer, "boxes do not work as they should", "report this, with `hutch doctor --json`")
    created, executed = (made - started) * 1000, (ended - made) * 1000
    return ok(NAME, f"ran `echo hello`: first box {created:.1f} ms, engine's start included; command {executed:.1f} ms")


async def _one_connection() -> Finding:
    """Try a connection over the very path of a box's, because installed parts alone prove little."""
    name, started = "network connection", time.perf_counter()
    try:
        await probe.prove_network()
    except HutchError as error:
        return warn(name, error.message, "boxes with network on are refused; off works", probe.NETWORK_REMEDY)
    took = (time.perf_counter() - started) * 1000
    return ok(name, f"one came through, from a namespace as a box's and back, in {took:.0f} ms, start included")


def of_limits(capabilities: Capabilities) -> Finding:
    """Return what enforces each limit here, as the engine reports it."""
    grades = capabilities.grades.to_plain()
    shown = ", ".join(f"{limit} by {grade}" for limit, grade in grades.items())
    unheld = [limit for limit, grade in grades.items() if grade == EnforcedBy.NONE]
    if not unheld:
        return ok("limits", shown)
    return warn(
        "limits",
        shown,
        f"nothing holds {', '.join(unheld)}: every profile refuses such a box, unless it says accept_unenforced",
        "see cgroups above",
    )
