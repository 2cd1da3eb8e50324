"""Boxes that sleep: paused while nobody works in them, woken by whoever uses them."""

from typing import TYPE_CHECKING

from hutch.errors import Conflict, Unsupported
from hutch.keeper.boxes.live import Live
from hutch.keeper.locks import run_uncancelled
from hutch.model.capabilities import Pause
from hutch.model.state import State

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper


async def pause(keeper: "Keeper", live: Live, reason: str = "paused by a call") -> None:
    """Conflict while an operation runs, Unsupported where the engine cannot."""
    name = live.record.instance.provider
    known = await keeper.engines.capabilities(name)
    if known.usable and known.pause is Pause.NONE:
        raise Unsupported(f"provider {name} cannot pause a box")
    await run_uncancelled(_pause(keeper, live, reason))


async def _pause(keeper: "Keeper", live: Live, reason: str) -> None:
    """The record comes first. An operation that begins from then on wakes the box, and so waits until it is frozen;
    and a keeper that dies in between leaves a box that the next one wakes, frozen or not."""
    async with live.state_lock:
        keeper.check_owned(live)
        if live.record.state is State.PAUSED:
            return
        _check_rest(live)
        await keeper.states.change(live.record, State.PAUSED, into=live, reason=reason)
        try:
            _check_rest(live)  # one may have begun while that was being written
            await live.running.pause()
        except BaseException as error:
            await keeper.states.change(live.record, State.RUNNING, into=live, reason=f"not paused: {error}")
            raise


def _check_rest(live: Live) -> None:
    if live.pins:
        raise Conflict(f"box {live.record.id} is working: {live.pins} operations run", retryable=True)


async def wake(keeper: "Keeper", live: Live) -> None:
    """A paused box runs again because somebody uses it."""
    async with live.state_lock:
        if live.record.state is State.PAUSED:
            await live.running.resume()
            await keeper.states.change(live.record, State.RUNNING, into=live, reason="used")
