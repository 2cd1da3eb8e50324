"""The owner of a box is checked before anything happens to it."""

from pathlib import Path

import pytest

from hutch.errors import NotFound
from hutch.keeper.embedded import Hutch
from hutch.keeper.keys import Role
from hutch.model.spec import Spec
from hutch.policy.rights import UNBOUND
from hutch.server.access import find
from hutch.server.auth import Caller
from hutch.server.request import Call, Message
from hutch.server.service import Service
from tests.keeper.faulty import Engine
from tests.keeper.faulty_keeper import crash, keeper_on, opened


def call(service: Service, owner: str, box: str) -> Call:
    async def nothing() -> Message:
        raise AssertionError("there is no body")

    caller = Caller(key_id="k", role=Role.USER, owner=owner, session="s", rights=UNBOUND)
    return Call(service, caller, {"headers": []}, nothing, {"box": box})


async def test_a_stranger_takes_over_nothing(tmp_path: Path) -> None:
    """A box whose keeper has died is adopted only for its owner; for others it does not exist, and their requests
    change nothing (P16)."""
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path))
    async with opened(engine, tmp_path) as second:
        made = (await first._keeper.create(Spec(), session="s", owner="victim")).record
        await crash(first._keeper)
        service = Service(second._keeper)
        with pytest.raises(NotFound) as foreign:
            await find(call(service, "stranger", made.id))
        with pytest.raises(NotFound) as none:
            await find(call(service, "stranger", "a" * 20))
        assert foreign.value.message.replace(made.id, "a" * 20) == none.value.message
        kept = await second._keeper.store.get(made.id)
        assert kept is not None
        assert kept.keeper == first._keeper.id, "nobody has touched it"
        live = await find(call(service, "victim", made.id))
        assert live.record.keeper == second._keeper.id
