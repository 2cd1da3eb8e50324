"""A house in which keepers are killed: directories of its own, processes that are all accounted for, traces counted.

Every process below a killed one comes to us when its parent dies (we are their subreaper), so that "no process is left"
is counted, not guessed.
"""

import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from hutch.config import Config
from hutch.keeper.embedded import Hutch
from hutch.linux import kernel
from hutch.model.ids import is_box_id
from tests.conftest import remove
from tests.leaks import cgroups_of, descendants

PATIENCE = 60.0
GRACE = 120.0
"""The boxes' dead-man's clock, unless a test is about it: longer than any test."""
PR_SET_CHILD_SUBREAPER = 36


class Resident:
    """A process that keeps boxes here, and what it has said so far."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._said = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self) -> list[str]:
        """Every whole line so far; what stands there had been acknowledged."""
        return self._said.decode().split("\n")[:-1]

    def hear(self, count: int) -> list[str]:
        """Wait until it has said so many lines."""
        while self._said.count(b"\n") < count:
            assert select.select([self._stdout], [], [], PATIENCE)[0], f"stuck after {self.lines()[-10:]}"
            read = os.read(self._stdout.fileno(), 65536)
            assert read, f"it died after {self.lines()[-10:]}"
            self._said += read
        return self.lines()

    def say(self, line: str) -> None:
        self._stdin.write(line.encode() + b"\n")
        self._stdin.flush()

    def ask(self, line: str) -> str:
        """Say something to it; its next line."""
        before = len(self.lines())
        self.say(line)
        return self.hear(before + 1)[before]

    def kill(self, victims: Callable[[int], list[int]] = lambda pid: [pid]) -> list[str]:
        """SIGKILL to these (the keeper itself must be among them); all that it had said."""
        assert self._process.poll() is None, f"it ended by itself after {self.lines()[-10:]}"
        for pid in victims(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._said += self._stdout.read()
        self.end()
        return self.lines()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()


class House:
    """A state and a run directory, and the names of all keepers that ever used them."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.state, self.run = top / "s", top / "r"
        self.keepers: list[str] = []
        self.residents: list[Resident] = []
        self._before = set(descendants(os.getpid()))

    def settings(self, grace: float = GRACE) -> dict[str, Any]:
        return {
            "state_dir": str(self.state), "run_dir": str(self.run), "provider": "native", "orphan_grace_sec": grace,
            "log_level": "off",
        }  # fmt: skip

    def config(self) -> Config:
        return Config.load(environ={}, cwd=self.top, **self.settings())

    def opened(self, grace: float = GRACE) -> Hutch:
        """A keeper in this process."""
        hutch = Hutch(**self.settings(grace))
        self.keepers.append(hutch._keeper.id)
        return hutch

    def resident(self, program: Path, *arguments: str) -> Resident:
        """A keeper in a process of its own; the first line it says is `keeper ID`."""
        resident = Resident([sys.executable, str(program), str(self.state), str(self.run), *arguments])
        self.residents.append(resident)
        self.keepers.append(resident.hear(1)[0].removeprefix("keeper "))
        return resident

    def processes(self) -> list[int]:
        """All that is below us and was not before, but for the dead, who are buried."""
        left = set(descendants(os.getpid())) - self._before
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return sorted(left & set(descendants(os.getpid())))

    def empty(self) -> list[int]:
        """Wait until every process has gone; those that do not go."""
        deadline = time.monotonic() + PATIENCE
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def boxes(self) -> list[str]:
        """Directories of boxes, living or dead."""
        return [path.name for path in self.run.glob("*") if is_box_id(path.name)]

    def traces(self) -> list[str]:
        """Whatever is left of anything that ever lived here, once nobody uses it."""
        left = [f"process {pid}" for pid in self.empty()]
        left += [str(path) for path in self.run.glob("*") if path.name != "keepers"]
        left += [str(path) for name in ("boxes", "keepers") for path in (self.state / name).glob("*")]
        left += [str(path) for path in (self.run / "keepers").glob("*")]
        left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.top) in line]
        left += [path for keeper in self.keepers for path in cgroups_of(keeper)]
        left += [f"row {row}" for row in self.rows()]
        return left

    def fates(self, boxes: Iterable[str]) -> dict[str, list[str]]:
        """What the store has about these boxes: their events, in order."""
        with closing(sqlite3.connect(self.state / "hutch.db")) as db:
            query = "SELECT body FROM events WHERE box_id = ? ORDER BY seq"
            return {box: [str(body) for (body,) in db.execute(query, (box,))] for box in boxes}

    def rows(self) -> list[str]:
        """The boxes that the store knows."""
        with closing(sqlite3.connect(self.state / "hutch.db")) as db:
            return [row for (row,) in db.execute("SELECT id FROM boxes")]


def spawners_of(pid: int) -> list[int]:
    """The direct children of a keeper."""
    return [child for child in descendants(pid) if _parent(child) == pid]


def any_order(dice: random.Random) -> Callable[[int], list[int]]:
    """The keeper alone, or its spawners just before, or just after it."""

    def victims(pid: int) -> list[int]:
        return ([pid], [*spawners_of(pid), pid], [pid, *spawners_of(pid)])[dice.randrange(3)]

    return victims


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


@contextmanager
def house() -> Iterator[House]:
    """Orphans come to us while it stands; what still lives at its end is killed."""
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    top = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    top.chmod(0o755)
    place = House(top)
    try:
        yield place
    finally:
        for resident in place.residents:
            resident.end()
        for pid in place.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        place.empty()
        kernel.prctl(PR_SET_CHILD_SUBREAPER, 0)
        remove(top)
