"""Two servers, one PostgreSQL, one cluster, and everything that can go wrong while boxes are made and used."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hutch import Hutch
from hutch.client.transport.heartbeat import Rhythm
from hutch.errors import Gone, HutchError, NotFound
from hutch.providers.kubernetes import manifests
from hutch.providers.kubernetes.pods import Phase, phase
from tests.keeper.postgres_server import Server as Database
from tests.keeper.postgres_server import postgres as postgres
from tests.kubernetes.conftest import provider_of
from tests.proofs import write
from tests.server.serving import Server
from tests.server.test_several_servers import free_port

pytestmark = [pytest.mark.proof, pytest.mark.timeout(0)]

PAUSE_SECONDS = 15
"""Between two kinds of harm."""
WORKERS = 4
SEED = 20_261


class Servers:
    """Two servers on one store and one cluster, each started again after it was killed."""

    def __init__(self, top: Path, store: str, settings: dict[str, Any]) -> None:
        config = top / "hutch.toml"
        lines = [f"{name} = {_toml(value)}" for name, value in settings.items()]
        config.write_text("\n".join(['provider = "kubernetes"', "", "[providers.kubernetes]", *lines]) + "\n")
        self._ports = [free_port(), free_port()]
        self._config = config
        self.all = [
            Server(HUTCH_STORE=store, HUTCH_SERVER_ADVERTISE=f"http://127.0.0.1:{port}") for port in self._ports
        ]
        for number in range(2):
            self.start(number)
        self.key = self.all[0].key("user", "ann")

    def start(self, number: int) -> None:
        (self.all[number].state / "server.json").unlink(missing_ok=True)
        self.all[number].start("--config", str(self._config), "--port", str(self._ports[number]), patience=300)

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self._ports[number]}"

    def close(self) -> None:
        for server in self.all:
            server.close()


class Load:
    """Boxes that workers make, use and destroy through either server; it remembers what was acknowledged."""

    def __init__(self, servers: Servers, dice: random.Random) -> None:
        self._servers = servers
        self._dice = dice
        self.acknowledged: dict[str, str] = {}
        """Boxes that were made and not destroyed, with the text that was written into each."""
        self.may_be_gone: set[str] = set()
        """Boxes whose Pod the chaos deleted, and those whose destruction was asked for and not answered."""
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.final: list[str] = []
        """Errors that say that trying again is of no use, though nothing was done to the box."""

    async def work(self, number: int, chaos: "asyncio.Task[Any]") -> None:
        """Make and use boxes until all harm was done."""
        while not chaos.done():
            url = self._servers.url(self._dice.randrange(2))
            used: list[str] = []
            try:
                async with Hutch(url, key=self._servers.key, rhythm=Rhythm(outage_timeout_sec=5.0)) as hutch:
                    await self._round(hutch, f"worker {number}", used)
            except HutchError as error:
                self.errors[error.code] += 1
                if not error.retryable and not self.may_be_gone.intersection(used):
                    self.final.append(repr(error))
                await asyncio.sleep(0.5)

    async def _round(self, hutch: Hutch, text: str, used: list[str]) -> None:
        box = await hutch.create()
        used.append(box.id)
        await box.files.write("note.txt", text)
        self.acknowledged[box.id] = text
        self.done["made"] += 1
        for _ in range(5):
            result = await box.exec("cat note.txt")
            assert result.stdout == text or not result.ok
            self.done["commands"] += 1
        if self._dice.random() < 0.7:
            self.may_be_gone.add(box.id)
            await box.destroy()
            self.acknowledged.pop(box.id, None)
            self.done["destroyed"] += 1

    async def check_and_end(self, hutch: Hutch) -> None:
        """Read what was written into each box that must still be there, and destroy it."""
        for box_id, text in list(self.acknowledged.items()):
            try:
                box = await _patiently(hutch.attach, box_id, takeover=True)
                assert (await box.files.read_text("note.txt")) == text
                self.done["found again"] += 1
            except HutchError as error:
                assert box_id in self.may_be_gone, (box_id, error)
            with suppress(Gone, NotFound):
                await _patiently(hutch.destroy, box_id, force=True)


async def test_no_pod_leaks_and_no_box_is_lost(
    cluster_settings: dict[str, Any], postgres: Database, tmp_path: Path
) -> None:
    """Servers are killed, Pods deleted, the database stopped for 30 s, the API server restarted where the environment
    says how (HUTCH_TEST_KUBE_RESTART): every error is typed, and retryable unless the box was harmed; every
    acknowledged box is there; Pods and rows agree on one owner and keeper for each; and no Pod is left (B8)."""
    dice = random.Random(SEED)
    provider = provider_of(cluster_settings)
    with postgres.database() as store:
        servers = Servers(tmp_path, store, cluster_settings)
        try:
            load = Load(servers, dice)
            chaos = asyncio.create_task(_chaos(servers, load, provider, postgres, dice))
            await asyncio.gather(*(load.work(number, chaos) for number in range(WORKERS)))
            harm = await chaos
            owners = await _agreed_owners(provider, store)
            async with Hutch(servers.url(0), key=servers.key) as hutch:
                await load.check_and_end(hutch)
                for info in await hutch.boxes():  # creations whose answer was lost
                    with suppress(Gone, NotFound):
                        await _patiently(hutch.destroy, info.id, force=True)
                assert await hutch.boxes() == ()
            left = await _pods_left(provider)
        finally:
            servers.close()
            await provider.close()
    assert left == []
    assert load.done["made"] > 10 and load.done["found again"] > 0, load.done
    assert load.final == []
    write("kubernetes-chaos", seed=SEED, harm=dict(harm), done=dict(load.done), errors=dict(load.errors), owners=owners)


async def _chaos(servers: Servers, load: Load, provider: Any, postgres: Database, dice: random.Random) -> Counter[str]:
    harm: Counter[str] = Counter()
    for kind in ("server", "pod", "store", "server", "pod", *(("api server",) if _restart() else ())):
        await asyncio.sleep(PAUSE_SECONDS)
        harm[kind] += 1
        if kind == "server":
            number = dice.randrange(2)
            servers.all[number].end(signal.SIGKILL)
            await asyncio.sleep(3)
            await asyncio.to_thread(servers.start, number)
        elif kind == "pod" and load.acknowledged:
            box_id = dice.choice(sorted(load.acknowledged))
            load.may_be_gone.add(box_id)
            await provider.cluster.delete("Pod", manifests.name(box_id))
        elif kind == "store":
            postgres.freeze(signal.SIGSTOP)
            await asyncio.sleep(30)
            postgres.freeze(signal.SIGCONT)
        elif kind == "api server":
            await asyncio.to_thread(subprocess.run, _restart(), shell=True, check=True)
    await asyncio.sleep(PAUSE_SECONDS)
    return harm


def _restart() -> str:
    return os.environ.get("HUTCH_TEST_KUBE_RESTART", "")


async def _agreed_owners(provider: Any, store: str) -> int:
    """Wait until each Pod's labels name the one owner and keeper that its row names; return how many Pods there are."""
    deadline = time.monotonic() + 180
    while True:
        with psycopg.connect(store) as database:
            rows = database.execute("SELECT id, owner, keeper FROM hutch.boxes").fetchall()
        pods = await provider.cluster.objects("Pod", {manifests.BOX: None})
        living = [each["metadata"]["labels"] for each in pods if phase(each) is Phase.RUNNING]
        shown = {each[manifests.BOX]: (each[manifests.OWNER], each[manifests.KEEPER]) for each in living}
        kept = {row[0]: tuple(manifests.holder(row[1], row[2]).values()) for row in rows}
        wrong = {box: holder for box, holder in shown.items() if kept.get(box) != holder}
        if not wrong:
            return len(shown)
        assert time.monotonic() < deadline, (wrong, kept)
        await asyncio.sleep(2)


async def _patiently(work: Any, *arguments: Any, **options: Any) -> Any:
    """Try again while the error says that it may pass: a dead server's boxes are taken over after half a minute."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return await work(*arguments, **options)
        except (Gone, NotFound):
            raise
        except HutchError as error:
            if time.monotonic() > deadline or not (error.retryable or error.code in ("held_elsewhere", "busy")):
                raise
        await asyncio.sleep(2)


async def _pods_left(provider: Any) -> list[str]:
    deadline = time.monotonic() + 120
    while True:
        pods = await provider.cluster.objects("Pod", {manifests.BOX: None})
        names = [each["metadata"]["name"] for each in pods if not each["metadata"].get("deletionTimestamp")]
        if not names or time.monotonic() > deadline:
            return names
        await asyncio.sleep(2)


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
