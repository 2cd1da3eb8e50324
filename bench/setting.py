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
from hutch.keeper.keeper import Keeper
from hutch.keeper.sqlite import SqliteStore
from hutch.keeper.store import Store


@dataclass(frozen=True)
class Setting:
    peers: Peers
    brief: bool
    directory: Path

    def count(self, full: int) -> int:
        """How many samples: a brief run shows that the bench works, not how fast Hutch is."""
        return max(2, full // 50) if self.brief else full

    @contextlib.asynccontextmanager
    async def hutch(self, store: Store | None = None, **settings: Any) -> AsyncIterator[Hutch]:
        """An embedded Hutch as any program would have it; `store` in place of the usual one."""
        state, run = str(self.directory / "s"), str(self.directory / "r")
        config = Config.load(state_dir=state, run_dir=run, max_boxes=0, **settings)
        async with Hutch(keeper=Keeper(config, store or SqliteStore(config.state_dir / "hutch.db"))) as hutch:
            yield hutch

    def environment(self) -> list[str]:
        """All that a command of ours finds around itself: a cold shell's, and where our directories are."""
        return [
            f"PATH={os.environ['PATH']}",
            f"HUTCH_STATE_DIR={self.directory / 's'}",
            f"HUTCH_RUN_DIR={self.directory / 'r'}",
        ]


@contextlib.contextmanager
def setting(peers: Peers, *, brief: bool) -> Iterator[Setting]:
    # Right under /tmp: the path of a Unix socket has 108 bytes, and TMPDIR may use up most of them.
    directory = Path(tempfile.mkdtemp(prefix="hutch-bench-", dir="/tmp"))
    try:
        yield Setting(peers, brief, directory)
    finally:
        shutil.rmtree(directory)


def available_memory() -> int:
    """Bytes that new programs could have: free memory and what the kernel would give back."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def settled_memory() -> int:
    """The same once it has stopped moving: the kernel gives back what ended processes had in its own time."""
    before, now = 0, available_memory()
    for _ in range(20):
        if abs(now - before) < 2 << 20:
            break
        time.sleep(0.5)
        before, now = now, available_memory()
    return now
