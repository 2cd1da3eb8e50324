"""The main loop of the Python kernel: it receives code, runs it, and sends what it printed, showed and raised."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .channel import Capture, Channel
from .display import BACKEND, Displays, install_figures, install_pictures, show_figures
from .snapshot import fork, reseed

if TYPE_CHECKING:
    import asyncio


class Evaluator(Protocol):
    """Runs code in one namespace."""

    @property
    def namespace(self) -> dict[str, Any]: ...

    def bind(self, displays: Displays | None) -> None: ...

    def forget(self) -> None: ...

    def loop(self) -> asyncio.AbstractEventLoop | None: ...

    def run(self, code: str) -> tuple[int, dict[str, str] | None]: ...


def main() -> None:
    """Serve the keeper on the standard streams until it closes them."""
    source, target = os.dup(0), os.dup(1)
    complaints = os.dup(2)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    try:
        serve(source, target, complaints=complaints)
    except BaseException:
        os.dup2(complaints, 2)  # The keeper reads why its kernel could not go on.
        raise


def serve(source: int, target: int, prepared: Prepared | None = None, complaints: int | None = None) -> None:
    """Serve requests from `source`, and answer on `target`."""
    channel = Channel(source, target, complaints)
    channel.interrupts.install()
    capture = Capture(channel)
    displays = Displays(channel, capture)
    install_figures(displays)
    install_pictures(displays)
    os.environ["MPLBACKEND"] = "module://" + BACKEND
    prepared = prepared or prepare()
    evaluator, notes = prepared.evaluator, prepared.notes
    evaluator.bind(displays)
    sys.path.insert(0, "")
    capture.start()
    version = "{}.{}.{}".format(*sys.version_info[:3])
    channel.send(type="ready", version=version, notes=notes)
    own = os.getpid()
    for request in channel.requests():
        if request["op"] == "fork":
            if fork(request["run"], channel, capture, evaluator.loop()):
                own = os.getpid()
            continue
        if request["op"] == "interrupt":
            channel.interrupts.forget()
            continue
        _run(request, channel, capture, displays, evaluator)
        if os.getpid() != own:
            os._exit(0)  # The code has forked and let the child come back here; only the parent may answer.


class Prepared:
    """An evaluator that is ready before anybody needs it; a process that is forked with it becomes a kernel at once."""

    def __init__(self, evaluator: Evaluator, notes: list[str]) -> None:
        self.evaluator = evaluator
        self.notes = notes
        self.own_path = ""
        """Where the process that prepares it has its own modules, which are no business of a kernel."""
        self.own_modules: list[str] = []
        """Their names. Looking for them touches every module's name, and so copies hundreds of pages."""

    def warm_up(self) -> None:
        """Run a value of each kind, so that the first real run finds everything imported."""
        for code in ("1 + 1", "import pandas; pandas.DataFrame({'a': [1, 2]})", "1 / 0"):
            self.evaluator.run(code)
        self.evaluator.forget()

    def become(self, env: Mapping[bytes, bytes], cwd: str) -> None:
        """Become the kernel of a box, in a fork: with the box's environment and new random numbers.

        It returns when the keeper closes its input.
        """
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environb.update(env)
        os.chdir(cwd)
        reseed()
        for name in self.own_modules:
            del sys.modules[name]
        version = "python{}.{}".format(*sys.version_info[:2])
        packages = os.path.join(os.environ.get("HOME", "/"), ".local", "lib", version, "site-packages")
        sys.path[:] = [path for path in sys.path if path not in ("", self.own_path)]
        sys.path.append(packages)
        sys.argv = [""]
        gc.enable()
        os.environ.setdefault("PIP_USER", "1")  # Its environment cannot be written to; the user's own directory can.
        source, target = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        serve(source, target, self)


def prepare() -> Prepared:
    """Make the evaluator: IPython's, or a plain one where that is missing."""
    return Prepared(*_evaluator(None))


def _evaluator(displays: Displays | None) -> tuple[Evaluator, list[str]]:
    try:
        from .ipython import IPythonEvaluator

        return IPythonEvaluator(displays), []
    except ImportError as error:
        from .plain import PlainEvaluator

        return PlainEvaluator(displays), [f"IPython is not installed in this box: most magics are missing ({error})"]


def _run(request: dict[str, Any], channel: Channel, capture: Capture, displays: Displays, evaluator: Evaluator) -> None:
    run = request["run"]
    before = _set_environment(request.get("env") or {})
    capture.begin(run)
    displays.begin(run)
    own = os.getpid()
    error: dict[str, str] | None = None
    count = 0
    try:
        channel.interrupts.begin()
        count, error = evaluator.run(request["code"])
        show_figures(displays)
    except KeyboardInterrupt as interrupt:
        error = {"name": "KeyboardInterrupt", "value": str(interrupt), "traceback": "KeyboardInterrupt"}
    except Exception as failure:  # A broken library failed while its figure was drawn; the kernel goes on.
        error = error or {"name": type(failure).__name__, "value": str(failure), "traceback": repr(failure)}
    finally:
        channel.interrupts.end()
    if os.getpid() != own:
        return
    _restore_environment(before)
    capture.end()
    channel.send(type="done", run=run, count=count, error=error, dropped=displays.dropped)


def _set_environment(values: dict[str, str]) -> dict[str, str | None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    return before


def _restore_environment(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
