"""Fixtures and hooks of every test: default signals, fixed seeds, coroutine tests, and temporary Hutch directories."""

import asyncio
import importlib
import inspect
import json
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hutch import logs

# A machine under load is slow, and slowness is not a finding: only counterexamples fail a property.
settings.register_profile(
    "ci", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")


LOOP = os.environ.get("HUTCH_TEST_LOOP", "")
"""The event loop of coroutine tests: asyncio's own, or `uvloop`, which many web servers choose by themselves."""
LOOP_FACTORY: Callable[[], asyncio.AbstractEventLoop] | None = (
    importlib.import_module(LOOP).new_event_loop if LOOP else None
)


def pytest_configure(config: pytest.Config) -> None:
    """Undo what a parent ignored or blocked: exec keeps both, so every process of every test would inherit them."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if PROGRESS:
        config.pluginmanager.register(Progress(Path(PROGRESS), notes=not hasattr(config, "workerinput")))


PROGRESS = os.environ.get("HUTCH_TEST_PROGRESS", "")


class Progress:
    """Notes the tests that have ended well in a file, and leaves out those that it finds there.

    tools/test.sh uses it to run only the rest after pytest itself has died.
    """

    def __init__(self, file: Path, *, notes: bool) -> None:
        """An xdist worker notes nothing, because its controller is notified of every test."""
        self._file = file
        self._notes = notes
        self._ended = frozenset(json.loads(line) for line in file.read_text().splitlines()) if file.exists() else ()
        self._failed: set[str] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        ended = [item for item in items if item.nodeid in self._ended]
        if ended:
            config.hook.pytest_deselected(items=ended)
            items[:] = [item for item in items if item.nodeid not in self._ended]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif self._notes and report.when == "teardown" and report.nodeid not in self._failed:
            with self._file.open("a") as file:
                file.write(json.dumps(report.nodeid) + "\n")


WORKER_DIED = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Note that an xdist worker died: the tests it still had are then never run."""
    if error:
        node.config.stash[WORKER_DIED] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that lost a worker is broken, not failed: running the failed tests again would hide the lost ones."""
    if session.config.stash.get(WORKER_DIED, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in a fresh event loop. Async fixtures do not exist here: a test says `async with`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    with asyncio.Runner(loop_factory=LOOP_FACTORY) as runner:
        runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.fixture(scope="session")
def rootless() -> bool:
    """Whether the tests run as an ordinary user."""
    return os.geteuid() != 0


@pytest.fixture(scope="session", autouse=True)
def hutch_directories() -> Iterator[Path]:
    """State and run directory for this test process (each xdist worker is one).

    Right under /tmp, because a Unix socket's path has 108 bytes and TMPDIR may use up most of them.
    """
    parent = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    parent.chmod(0o755)
    (parent / "s").mkdir(mode=0o700)  # as a keeper does, before any provider writes below it
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HUTCH_STATE_DIR", str(parent / "s"))
        environment.setenv("HUTCH_RUN_DIR", str(parent / "r"))
        for name in (
            "HUTCH_PROVE",
            "HUTCH_TEST_LOOP",
            "HUTCH_TEST_PROGRESS",
        ):  # for the tests, which have read them; no settings of Hutch
            environment.delenv(name, raising=False)
        yield parent
    remove(parent)


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """What this process logs while the test runs."""
    written: list[str] = []
    logs.configure(level="debug", write=written.append)
    yield written
    logs.configure()


def remove(directory: Path) -> None:
    """Remove a tree that boxes have used, and say so if something still holds it."""
    # A mount left under it may show the host's own files, and rmtree would follow it into them.
    if f" {directory}/" in Path("/proc/self/mountinfo").read_text():
        warnings.warn(f"{directory} is kept: something is still mounted under it", stacklevel=2)
        return
    if os.geteuid() != 0:
        # overlayfs leaves work directories of mode 0, which only root may remove as they are.
        for path, names, _ in os.walk(directory):
            for child in (Path(path, name) for name in names):
                if not child.is_symlink():
                    child.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        warnings.warn(f"{directory} could not be removed: a process of the tests still uses it", stacklevel=2)
