"""Code run by IPython itself: its magics, `!commands`, top-level await, displays and tracebacks."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from IPython.core import async_helpers, interactiveshell
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import BaseFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Any as AnyTrait
from traitlets import ObjectName, Type, Unicode
from traitlets.config import Config

from .charts import chart_of
from .display import CHART_MIME, TABLE_MIME, Displays, figure_forms, table_of

if TYPE_CHECKING:
    import asyncio

if hasattr(interactiveshell, "PickleShareDB"):  # Before IPython 9 every shell makes a directory for what magics keep.
    interactiveshell.PickleShareDB = lambda _directory: {}


class _ValueHook(DisplayHook):
    """Sends the value of the last expression instead of printing it."""

    displays: Any = AnyTrait()

    def start_displayhook(self) -> None:
        self._forms: dict[str, Any] = {}

    def write_output_prompt(self) -> None:
        """Print no `Out[1]:`."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
        self._forms = format_dict

    def finish_displayhook(self) -> None:
        if self._forms and self.displays is not None:
            self.displays.send(self._forms, main=True)


class _Publisher(DisplayPublisher):
    """Sends what `display` is called with."""

    displays: Any = AnyTrait()

    def publish(self, data: dict[str, Any], *_args: Any, **_options: Any) -> None:
        if self.displays is not None:
            self.displays.send(data)

    def clear_output(self, wait: bool = False) -> None:
        """Take back nothing: what was shown was sent already."""


class _TableFormatter(BaseFormatter):
    format_type = Unicode(TABLE_MIME)
    print_method = ObjectName("_repr_hutch_table_")
    _return_type = dict


class _ChartFormatter(BaseFormatter):
    format_type = Unicode(CHART_MIME)
    print_method = ObjectName("_repr_hutch_chart_")
    _return_type = dict


class _Shell(InteractiveShell):
    """An IPython shell without a terminal, a profile or a history file."""

    displayhook_class = Type(_ValueHook)
    display_pub_class = Type(_Publisher)
    system = InteractiveShell.system_raw  # Its children write to our pipes; the other way needs a terminal.
    profile_dir: Any = AnyTrait()
    failure: dict[str, str] | None = None
    db: ClassVar[dict[str, Any]] = {}  # What magics remember; IPython's own is a file of a profile.

    def init_profile_dir(self, profile_dir: Any = None) -> None:
        """Make no profile in the user's home. Before IPython 9 every shell asks where its profile is."""
        self.profile_dir = SimpleNamespace(location="")

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        own = "Interrupts._handle"  # The handler of an interrupt is no part of the code that was interrupted.
        lines = "\n".join(frame for frame in stb if own not in frame)
        self.failure = {"name": etype.__name__, "value": str(evalue), "traceback": lines}

    def enable_gui(self, gui: str | None = None) -> None:
        """Have no event loop of a user interface."""


class IPythonEvaluator:
    """Runs code in one IPython shell."""

    def __init__(self, displays: Displays | None) -> None:
        """With None the evaluator is prepared ahead, and `bind` says later where its displays go."""
        warnings.filterwarnings("ignore", message="To exit: use")  # It explains a terminal that is not there.
        config = Config()
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.xmode = "Context"
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.Completer.use_jedi = False
        shell: Any = _Shell.instance(config=config)
        self._shell = shell
        self._add_formatters(shell)
        self.bind(displays)

    def bind(self, displays: Displays | None) -> None:
        self._shell.displayhook.displays = self._shell.display_pub.displays = displays

    def forget(self) -> None:
        """Forget every run, so that the next one is the first."""
        self._shell.reset(new_session=True)

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of top-level await; IPython replaces a closed one."""
        found: asyncio.AbstractEventLoop | None = getattr(async_helpers, "_asyncio_event_loop", None)
        return found

    @property
    def namespace(self) -> dict[str, Any]:
        namespace: dict[str, Any] = self._shell.user_ns
        return namespace

    def _add_formatters(self, shell: Any) -> None:
        formatters = shell.display_formatter.formatters
        tables: Any = _TableFormatter(parent=shell.display_formatter)
        charts: Any = _ChartFormatter(parent=shell.display_formatter)
        formatters[TABLE_MIME], formatters[CHART_MIME] = tables, charts
        for module in ("pandas", "pandas.core.frame", "pandas.core.series"):
            for name in ("DataFrame", "Series"):
                tables.for_type_by_name(module, name, lambda frame: table_of(frame)[TABLE_MIME])
        charts.for_type_by_name("matplotlib.figure", "Figure", chart_of)
        formatters["image/png"].for_type_by_name(
            "matplotlib.figure", "Figure", lambda figure: figure_forms(figure)["image/png"]
        )
        # Figures are shown without it, and the backend that it would choose knows neither tables nor charts.
        shell.register_magic_function(lambda _line: None, "line", "matplotlib")

    def run(self, code: str) -> tuple[int, dict[str, str] | None]:
        """Run one cell. Return its number and the error that ended it."""
        shell = self._shell
        shell.failure = None
        count: int = shell.execution_count
        result = shell.run_cell(code, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return count, None
        if shell.failure is None or shell.failure["name"] != type(error).__name__:
            return count, {"name": type(error).__name__, "value": str(error), "traceback": ""}
        return count, shell.failure
