"""The choice of an engine for a box when several may create it: order, skipped engines, and the breaker (S10, B26)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hutch.config import Config
from hutch.errors import ConfigError, EngineError, HutchError, Unavailable
from hutch.keeper import engines
from hutch.keeper.embedded import Hutch
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.sqlite import SqliteStore
from hutch.model.capabilities import Capabilities
from hutch.model.spec import Isolation, Spec
from tests.keeper.faulty import Engine, FaultyProvider


class Named(FaultyProvider):
    """A second engine on the fake machine, with its own name and claims."""

    def __init__(self, engine: Engine, name: str, **claims: Any) -> None:
        super().__init__(engine)
        self.name = name  # type: ignore[misc]
        self.claims = claims

    async def probe(self) -> Capabilities:
        return (await super().probe()).but(provider=self.name, **self.claims)


def house(tmp_path: Path, *providers: Named, **settings: Any) -> Hutch:
    names = [provider.name for provider in providers]
    config = Config.load(
        environ={}, cwd=tmp_path, state_dir=str(tmp_path / "s"), run_dir=str(tmp_path / "r"), provider=names[0],
        fallback=names[1:], **settings,
    )  # fmt: skip
    engines = Engines(config, {provider.name: provider for provider in providers})
    return Hutch(keeper=Keeper(config, SqliteStore(tmp_path / "s" / "hutch.db"), engines))


async def test_an_engine_that_is_not_there_is_stood_in_for_and_the_record_says_why(tmp_path: Path) -> None:
    one, two = Engine(), Engine()
    absent = Named(one, "one", usable=False, reason="its daemon does not answer")
    async with house(tmp_path, absent, Named(two, "two")) as hutch, hutch.box() as box:
        assert (await box.info()).provider == "two"
        assert [str(each) for each in box.adjustments if each.field == "provider"] == [
            "provider one → two: provider one is not usable here: its daemon does not answer"
        ]
        assert set(two.boxes) == {box.id}


async def test_an_engine_that_fails_to_make_the_box_leaves_nothing_and_the_next_makes_it(tmp_path: Path) -> None:
    one, two = Engine(), Engine()
    one.fault = lambda op, box_id: EngineError("out of order") if op == "create" else None
    async with house(tmp_path, Named(one, "one"), Named(two, "two")) as hutch, hutch.box() as box:
        assert (await box.info()).provider == "two"
        assert not one.boxes
        assert [each.id for each in await hutch.boxes()] == [box.id]


async def test_only_an_engine_that_enforces_what_the_profile_needs_stands_in(tmp_path: Path) -> None:
    weak, strong = Engine(), Engine()
    first = Named(Engine(), "first", usable=False, reason="absent")
    walls = {"profiles": {"walled": {"min_isolation": "vm"}}, "profile": "walled"}
    async with house(
        tmp_path, first, Named(weak, "weak"), Named(strong, "strong", isolation=Isolation.VM), **walls
    ) as h:
        async with h.box() as box:
            assert (await box.info()).provider == "strong"
    assert not [op for op, _ in weak.log if op == "create"], "the weak engine was never asked"


async def test_a_caller_who_names_an_engine_gets_that_one_or_an_error(tmp_path: Path) -> None:
    absent = Named(Engine(), "one", usable=False, reason="absent")
    async with house(tmp_path, absent, Named(Engine(), "two")) as hutch:
        with pytest.raises(Unavailable, match="one is not usable"):
            await hutch.create(provider="one")


async def test_when_no_engine_can_make_the_box_every_reason_is_given(tmp_path: Path) -> None:
    one, two = Named(Engine(), "one", usable=False, reason="no daemon"), Named(Engine(), "two")
    two.engine.fault = lambda op, box_id: EngineError("no disk") if op == "create" else None
    async with house(tmp_path, one, two) as hutch:
        with pytest.raises(Unavailable, match=r"no disk.*no daemon"):
            await hutch.create()
    both = [Named(Engine(), name, usable=False, reason=f"{name} is absent") for name in ("one", "two")]
    async with house(tmp_path, *both) as hutch:
        with pytest.raises(Unavailable, match=r"one is absent.*two is absent"):
            await hutch.create()


async def test_an_engine_that_fails_again_and_again_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Engine(), Engine()
    one.fault = lambda op, box_id: EngineError("out of order") if op == "create" else None
    tried = lambda: sum(op == "create" for op, _ in one.log)  # noqa: E731
    async with house(tmp_path, Named(one, "one"), Named(two, "two")) as hutch:
        for _ in range(engines.MAX_FAILURES + 2):
            await hutch.create()
        assert tried() == engines.MAX_FAILURES
        monkeypatch.setattr(engines, "COOL_DOWN_SECONDS", 0.0)
        one.fault = lambda op, box_id: None
        assert (await (await hutch.create()).info()).provider == "one", "its time is over, and it works again"


async def test_each_box_gets_the_answer_to_its_own_spec(tmp_path: Path) -> None:
    """The last policy decision is reused for an equal request only, and it keeps no secrets."""
    config = Config.load(environ={}, cwd=tmp_path, state_dir=str(tmp_path / "s"), provider="one", fallback=["two"])
    engines = Engines(config, {name: Named(Engine(), name) for name in ("one", "two")})
    plain = (await engines.decide(Spec()))[1]
    assert (await engines.decide(Spec()))[1] is plain
    assert (await engines.decide(Spec(env={"A": "1"})))[1].env == {"A": "1"}
    assert (await engines.decide(Spec()))[1] == plain
    assert (await engines.decide(Spec(provider="two")))[1].provider == "two"
    assert (await engines.decide(Spec(), {"one": "it failed"}))[1].provider == "two"
    secret = (await engines.decide(Spec(secrets={"KEY": "hidden"})))[1]
    assert secret.secrets == {"KEY": "hidden"} and "hidden" not in repr(engines._last)
    assert (await engines.decide(Spec()))[1] == plain


def test_the_host_is_never_a_stand_in(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="isolates nothing"):
        Config.load(environ={}, cwd=tmp_path, fallback=["host"])


class Slow(Named):
    """An engine whose probe ends only when the test says so."""

    def __init__(self, engine: Engine, name: str, **claims: Any) -> None:
        super().__init__(engine, name, **claims)
        self.probes = 0
        self.go_on = asyncio.Event()

    async def probe(self) -> Capabilities:
        self.probes += 1
        await self.go_on.wait()
        return await super().probe()


async def test_callers_who_come_at_once_share_one_probe(tmp_path: Path) -> None:
    """A probe may create a box, so thirty first callers share one probe (lesson 9)."""
    slow = Slow(Engine(), "slow")
    async with house(tmp_path, slow) as hutch:
        making = [asyncio.create_task(hutch.create()) for _ in range(30)]
        while not slow.probes:
            await asyncio.sleep(0)
        making[0].cancel()  # the caller that started the probe may give up too
        slow.go_on.set()
        outcomes = await asyncio.gather(*making, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert len(await hutch.boxes()) == 29
    assert slow.probes == 1


async def test_a_probe_under_way_ends_with_its_keeper(tmp_path: Path) -> None:
    slow = Slow(Engine(), "slow")
    hutch = house(tmp_path, slow)
    await hutch.__aenter__()
    making = asyncio.create_task(hutch.create())
    while not slow.probes:
        await asyncio.sleep(0)
    await asyncio.wait_for(hutch.__aexit__(None, None, None), 20)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    assert making.cancelled() or isinstance(making.exception(), HutchError)
