"""The clocks a box carries itself, which end it where no keeper does: told at its birth, pushed when they change.

A keeper that lives ends a box sooner, in good order: its own clocks (`clocks`) know of operations in flight.
"""

import time

from hutch.config import Config
from hutch.keeper.boxes.records import SCOPE_KEY, BoxRecord
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import Instance, Provider

GRACE_SECONDS = 30.0
"""How long past its ttl a box may finish the operations that were running when it ended (lesson 6)."""


LONGEST_GRACE_SECONDS = 86400.0


def orphan_grace(config: Config, spec: EffectiveSpec, key: str) -> float:
    """How long a box lives without any keeper: as long as the configuration says.

    Where it says nothing, a conversation's box waits as long as it may be idle, at most a day: its program may be
    restarted, in good order or not, and the conversation goes on.
    """
    configured = config.orphan_grace_sec
    if not key.startswith(SCOPE_KEY) or config.origin("orphan_grace_sec") != "default":
        return configured
    return max(configured, min(spec.idle_timeout_sec or LONGEST_GRACE_SECONDS, LONGEST_GRACE_SECONDS))


def own_ttl(spec: EffectiveSpec, created_at: float) -> float:
    """Seconds from now to the end of a box by its own clock; 0: never. The keeper's grace comes before."""
    if not spec.ttl_sec:
        return 0.0
    return max(0.0, created_at + spec.ttl_sec - time.time()) + GRACE_SECONDS


async def push(instance: Instance, record: BoxRecord) -> None:
    """The box's own clocks become those of its record."""
    await instance.set_clocks(
        orphan_grace_sec=record.grace_sec or None, ttl_sec=own_ttl(record.spec, record.created_at)
    )


async def attached(provider: Provider, record: BoxRecord) -> Instance:
    """The box again, with the clocks of the keeper that now has it; raises what `Provider.attach` does."""
    instance = await provider.attach(record.instance, record.spec)
    try:
        await push(instance, record)
    except BaseException:
        await instance.close()
        raise
    return instance
