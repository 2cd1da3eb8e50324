"""The simulation of many servers stands on numbers that are counted here, on a real PostgreSQL."""

import re
from pathlib import Path

import psycopg

from bench import scaling
from hutch.config import Config
from hutch.keeper.embedded import Hutch
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.open_store import open_ledger, open_store
from tests.keeper.faulty import Engine, FaultyProvider
from tests.keeper.postgres_server import database as database
from tests.keeper.postgres_server import postgres as postgres

LIVES = 20


def committed(database: str) -> int:
    """Return the transactions of all connections that were closed: open ones report theirs only now and then."""
    with psycopg.connect(database, autocommit=True) as db:
        row = db.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").fetchone()
        assert row is not None
        return int(row[0])


async def transactions(database: str, top: Path, *, lives: int, commands: int) -> int:
    """Return the transactions of a keeper that makes so many boxes, one after the other, and runs commands in each."""
    before = committed(database)
    config = Config.load(
        environ={}, cwd=top, state_dir=str(top / "s"), run_dir=str(top / "r"), provider="faulty", store=database
    )  # fmt: skip
    store, liveness = open_store(config)
    engines = Engines(config, {"faulty": FaultyProvider(Engine())})
    keeper = Keeper(config, store, engines, liveness, ledger=open_ledger(config, store))
    async with Hutch(keeper=keeper) as hutch:
        for _ in range(lives):
            box = await hutch.create()
            for _ in range(commands):
                await box.exec("true")
            await box.destroy()
    return committed(database) - before


async def test_transactions_of_a_box_are_those_of_the_simulation(database: str, tmp_path: Path) -> None:
    """A box's life, and a command in it, cost the store as many transactions as the simulation says."""
    empty = await transactions(database, tmp_path, lives=0, commands=0)
    bare = (await transactions(database, tmp_path, lives=LIVES, commands=0) - empty) / LIVES
    busy = (await transactions(database, tmp_path, lives=LIVES, commands=5) - empty) / LIVES
    assert 0.6 * scaling.STORE_PER_LIFE <= bare <= 1.4 * scaling.STORE_PER_LIFE, bare
    # Receipts are committed in groups, so commands that follow each other closely share a transaction.
    assert busy - bare <= 5 * scaling.STORE_PER_COMMAND, (busy, bare)


def test_the_page_says_what_the_simulation_says() -> None:
    """docs/scaling.md: which part saturates first, and how full each of the named parts is, at each length of life."""
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    rows = re.findall(r"^\| (\d+) min \| the (\w+): ([\d,]+) .*? \| (\d+) % \| (.+) \|$", page, re.M)
    assert [minutes for minutes, *_ in rows] == ["1", "10", "60"]
    for minutes, part, peak, used, others in rows:
        loads = scaling.simulate(scaling.Setting(minutes_of_life=float(minutes)))
        assert loads[0].name.startswith(part) and f"{loads[0].peak:,.0f}" == peak
        assert f"{loads[0].used:.0%}" == f"{used}%"
        filled = {f"{load.used:.0%}" for load in loads[1:]}
        assert {each.replace(" ", "") for each in re.findall(r"\d+ %", others)} <= filled, (minutes, filled)
