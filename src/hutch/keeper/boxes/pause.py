"""Paused boxes: frozen while nobody works in them, resumed by whoever uses them."""

from collections.abc import Callable

from hutch.errors import Conflict, Unsupported
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import States
from hutch.keeper.engines import Engines
from hutch.keeper.locks import run_uncancelled
from hutch.model.boxes import State
from hutch.model.capabilities import Pause


class Pauser:
    """Pauses and resumes boxes."""

    def __init__(self, states: States, engines: Engines, check_owned: Callable[[Live], None]) -> None:
        self._states = states
        self._engines = engines
        self._check_owned = check_owned

    async def pause(self, live: Live, reason: str = "paused by a call", *, halt: bool = False) -> None:
        """Freeze a box; with `halt` its processes end first, so that it keeps its files and no memory.

        Raises:
            Conflict: An operation runs in the box.
            Unsupported: The engine cannot pause boxes, or cannot end all their processes.
        """
        name = live.record.instance.provider
        known = await self._engines.capabilities(name)
        if known.usable and known.pause is Pause.NONE:
            raise Unsupported(f"provider {name} cannot pause a box")
        await run_uncancelled(self._pause(live, reason, halt))

    async def _pause(self, live: Live, reason: str, halt: bool) -> None:
        """Write the record first, then freeze the box.

        An operation that begins after the write resumes the box, and so waits until it is frozen. A keeper that dies
        between the two leaves a box that the next keeper resumes, frozen or not.
        """
        async with live.state_lock:
            self._check_owned(live)
            if live.record.state is State.PAUSED:
                return
            _check_no_operation(live)
            await self._states.change(live.record, State.PAUSED, into=live, reason=reason)
            try:
                _check_no_operation(live)  # One may have begun during the write.
                if halt:
                    await live.running.reboot()
                await live.running.pause()
            except BaseException as error:
                await self._states.change(live.record, State.RUNNING, into=live, reason=f"not paused: {error}")
                raise

    async def resume(self, live: Live, reason: str = "used") -> None:
        """Let a paused box run again."""
        async with live.state_lock:
            if live.record.state is State.PAUSED:
                await live.running.resume()
                await self._states.change(live.record, State.RUNNING, into=live, reason=reason)


def _check_no_operation(live: Live) -> None:
    if live.pins:
        raise Conflict(f"box {live.record.id} is working: {live.pins} operations run", retryable=True)
