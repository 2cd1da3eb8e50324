"""What every bench is given: the peers of this run, how thorough to be, and a Hutch in directories of its own."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import Peers
from hutch.config import Config
from hutch.keeper.embedded import Hutch
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.sqlite import SqliteStore
from hutch.keeper.store.store import Store
from hutch.providers.base import Provider
from hutch.providers.native.provider import NativeProvider


@dataclass(frozen=True)
class Context:
    peers: Peers
    brief: bool
    state: Path
    run: Path

    def count(self, full: int) -> int:
        """The number of samples: a brief run shows that the bench works, not how fast Hutch is."""
        return max(2, full // 50) if self.brief else full

    @contextlib.asynccontextmanager
    async def hutch(
        self, store: Store | None = None, without: frozenset[str] = frozenset(), **settings: Any
    ) -> AsyncIterator[Hutch]:
        """An embedded Hutch as any program would have it.

        `store` takes the place of the usual one; `without` names optimisations that the native engine leaves out.
        """
        config = Config.load(state_dir=str(self.state), run_dir=str(self.run), max_boxes=0, **settings)
        given: dict[str, Provider] = {}
        if without:
            given["native"] = NativeProvider(state_dir=self.state, run_dir=self.run, without=without)
        keeper = Keeper(config, store or self.store(), Engines(config, given))
        async with Hutch(keeper=keeper) as hutch:
            yield hutch

    def store(self) -> SqliteStore:
        return SqliteStore(self.state / "hutch.db")

    def environment(self) -> list[str]:
        """The whole environment of our commands: that of a cold shell, and where our directories are."""
        return [
            f"PATH={os.environ['PATH']}",
            f"HUTCH_STATE_DIR={self.state}",
            f"HUTCH_RUN_DIR={self.run}",
        ]


@contextlib.contextmanager
def open_context(peers: Peers, *, brief: bool) -> Iterator[Context]:
    # Not below TMPDIR: the path of a Unix socket has 108 bytes, and that may use up most of them.
    state = Path(tempfile.mkdtemp(prefix="hutch-bench-", dir="/tmp"))
    run = Path(tempfile.mkdtemp(prefix="hutch-bench-", dir=_memory_directory()))
    try:
        yield Context(peers, brief, state, run)
    finally:
        shutil.rmtree(run)
        shutil.rmtree(state)


def _memory_directory() -> str:
    """Run directories are in memory wherever an init system made /run; on a machine without, /dev/shm stands for it."""
    memory = "/dev/shm"
    return memory if os.access(memory, os.W_OK) and os.path.ismount(memory) else "/tmp"


def available_memory() -> int:
    """Bytes that new programs could have: free memory and what the kernel would give back."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def settled_memory() -> int:
    """The same once it has stopped moving: the kernel takes its time to give back what ended processes had."""
    before, now = 0, available_memory()
    for _ in range(20):
        if abs(now - before) < 2 << 20:
            break
        time.sleep(0.5)
        before, now = now, available_memory()
    return now
