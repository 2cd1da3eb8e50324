"""A box that could not be reached is tried again when somebody uses it: the engine may be back."""

from hutch.errors import BoxBroken, HutchError, NotFound, Unavailable
from hutch.keeper.boxes.deadlines import attached
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import States
from hutch.keeper.engines import Engines
from hutch.keeper.uncancelled import whole
from hutch.model.state import State


async def recover(live: Live, states: States, engines: Engines) -> None:
    """From `unknown` to `running`, with its jobs. Unavailable while the engine is away, BoxBroken if it is lost."""
    await whole(_recover(live, states, engines))


async def _recover(live: Live, states: States, engines: Engines) -> None:
    async with live.changing:
        if live.record.state is not State.UNKNOWN:
            return
        await states.change(live.record, State.RESTORING, into=live, reason="used again")
        provider = engines.provider(live.record.instance.provider)
        try:
            instance = await attached(provider, live.record)
        except NotFound as gone:
            await states.change(live.record, State.ERROR, into=live, reason=f"lost: {gone.message}")
            raise BoxBroken(f"box {live.record.id} is lost: {gone.message}", remedy="destroy it") from gone
        except HutchError as error:
            engines.doubt(provider.name)
            await states.change(live.record, State.UNKNOWN, into=live, reason=error.message)
            raise Unavailable(f"box {live.record.id} cannot be reached: {error.message}") from error
        if live.instance is not None:
            await live.instance.close()
        live.instance = instance
        await states.change(live.record, State.RUNNING, into=live, reason="reached again", instance=instance.record)
