"""The harness of the attack suite: boxes with or without their defences, and attacks as Python code that runs in them.

An attack is code that tries something from inside a box and reports how it went: "ok", or the name of the error. A test
says which answers mean that it was refused, and shows with a *control* that the same code succeeds where the defence
is left out (`NativeProvider(without=...)`), so that the test can fail and the defence is what stops it. Targets are
always the test's own: a file, process or socket that nobody else has. Nothing harms the machine when it succeeds.
"""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hutch.config import Config
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.sqlite import SqliteStore
from hutch.linux.syscall_numbers import NUMBERS
from hutch.providers.native.provider import NativeProvider
from hutch.sync import Box, Hutch

PRELUDE = f"""
import ctypes, errno, fcntl, json, os, signal, socket, stat, struct, sys, time
NUMBERS = {NUMBERS[platform.machine()]!r}
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
PARENT = os.getpid()

def call(name, *arguments):
    "The result of a system call, or the name of its error."
    number = NUMBERS[name] if isinstance(name, str) else name
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = libc.syscall(ctypes.c_long(number), *wide)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]

def called(name, *arguments):
    answer = call(name, *arguments)
    return answer if isinstance(answer, str) else "ok"

def tried(work, *arguments, **options):
    try:
        work(*arguments, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "ok"

def tell(value):
    "The answer of the attack; only once, and only by the process that was started."
    print(json.dumps(value), flush=True)
"""


@dataclass(frozen=True)
class Attack:
    """One row of a table: what is tried, which answers mean "refused", and the defences that refuse it.

    Every defence named refuses it alone; the control leaves out all of them.
    """

    name: str
    threat: str
    code: str
    refused: frozenset[str]
    defences: tuple[str, ...]
    achieved: frozenset[str] = frozenset({"ok"})


def python(code: str, **values: object) -> list[str]:
    """The command that runs `code` with the prelude; `values` become its variables."""
    known = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return ["python3", "-I", "-S", "-c", PRELUDE + known + textwrap.dedent(code)]


def outcome(box: Box, code: str, *, user: str | None = None, cwd: str | None = None, **values: object) -> Any:
    """What `code` reports when it runs in the box."""
    result = box.exec(python(code, **values), user=user, cwd=cwd, timeout=60, keep_output=8 << 20)
    assert result.exit_code == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


def outcome_outside(code: str, **values: object) -> Any:
    """What `code` reports when it runs on the host, as an ordinary user without any box: the control of a namespace."""
    command = python(code, **values)
    command[0] = "/usr/bin/python3"
    if os.geteuid() == 0:
        drop = ["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
        command = ["setpriv", *drop, *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/", env={})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


class Arena:
    """Where attacks happen. The engine with all defences is kept for all tests; one with holes lives for one."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._sound: Hutch | None = None

    @contextlib.contextmanager
    def box(self, *without: str, **spec: Any) -> Iterator[Box]:
        """A fresh box, lacking the defences named."""
        if without:
            with self.opened(*without) as hutch, hutch.box(**spec) as box:
                yield box
            return
        if self._sound is None:
            self._sound = self._open(frozenset(), "sound")
        with self._sound.box(**spec) as box:
            yield box

    @contextlib.contextmanager
    def opened(self, *without: str, state: str = "control") -> Iterator[Hutch]:
        """A whole Hutch, on a state directory of its own; one that is opened again finds its persistent boxes."""
        with self._open(frozenset(without), state) as hutch:
            yield hutch

    def _open(self, without: frozenset[str], name: str) -> Hutch:
        state, run = self.place / name / "s", self.place / name / "r"
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        # An empty file, or one of the machine's would be found.
        file = self.place / "hutch.toml"
        file.touch()
        config = Config.load(file, environ={}, state_dir=str(state), run_dir=str(run), mount_roots=["/tmp"])
        engine = NativeProvider(state_dir=state, run_dir=run, without=without)
        return Hutch(keeper=Keeper(config, SqliteStore(state / "hutch.db"), Engines(config, {"native": engine})))

    def close(self) -> None:
        if self._sound is not None:
            self._sound.close()


class Sentinel:
    """A directory on the host with one file that everybody may read, and no box may find, read or change."""

    NAME = "hutch-sentinel"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / self.NAME
        self.secret = f"secret-{os.urandom(12).hex()}"
        directory.chmod(0o755)
        self.file.write_text(self.secret)
        self.file.chmod(0o644)
        self._facts = self._look()

    def _look(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for path in (self.directory, *sorted(self.directory.rglob("*"))):
            facts = path.lstat()
            found[str(path)] = (
                facts.st_mode,
                facts.st_uid,
                facts.st_gid,
                facts.st_ino,
                facts.st_size,
                facts.st_mtime_ns,
            )
        return found

    def unchanged(self) -> bool:
        return self._look() == self._facts and self.file.read_text() == self.secret

    def changed_on_purpose(self) -> None:
        """A control has reached it: what is there now is what must stay."""
        self.file.write_text(self.secret)
        self._facts = self._look()


def compiled(source: str, directory: Path, *options: str) -> bytes:
    """A small program, linked statically so that it runs in any root."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (package gcc)")
    target = directory / "program"
    command = [compiler, "-static", "-O1", "-o", str(target), "-x", "c", *options, "-"]
    subprocess.run(command, input=textwrap.dedent(source), text=True, check=True, capture_output=True, timeout=120)
    return target.read_bytes()


def start_on_host(*words: str) -> "subprocess.Popen[bytes]":
    """A process of the test's own that an attack may aim at."""
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", *words], stdin=subprocess.PIPE, start_new_session=True
    )
