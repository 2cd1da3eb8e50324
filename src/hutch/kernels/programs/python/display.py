"""Rich display: the forms of a value by media type, matplotlib's figures, and tables as data."""

from __future__ import annotations

import base64
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from .channel import Capture, Channel
from .charts import chart_of

MAX_DISPLAYS = 256
MAX_DISPLAY_BYTES = 8 << 20
MAX_TABLE_ROWS = 1000
TABLE_MIME = "application/vnd.hutch.table+json"
CHART_MIME = "application/vnd.hutch.chart+json"
BACKEND = "hutch_kernel_figures"

REPR_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}


class Displays:
    """Sends displays of the current run, within bounds on their number and size."""

    def __init__(self, channel: Channel, capture: Capture) -> None:
        self._channel = channel
        self._capture = capture
        self._run = ""
        self._sent = 0
        self.dropped = 0

    def begin(self, run: str) -> None:
        self._run, self._sent, self.dropped = run, 0, 0

    def send(self, data: dict[str, Any], *, main: bool = False) -> None:
        if self._sent >= MAX_DISPLAYS:
            self.dropped += 1
            return
        forms = {mime: form for mime, form in ((str(m), as_text(m, v)) for m, v in data.items()) if form is not None}
        total = 0
        for mime in sorted(forms, key=lambda mime: (mime != "text/plain", len(forms[mime]))):
            total += len(forms[mime])
            if total > MAX_DISPLAY_BYTES:
                del forms[mime]
        if not forms:
            self.dropped += 1
            return
        self._sent += 1
        self._capture.drain()
        self._channel.send(type="display", run=self._run, data=forms, main=main)


def as_text(mime: str, value: Any) -> str | None:
    """Return a form as text: base64 for bytes, JSON for other objects; None for a form that is none."""
    if value is None:
        return None
    if mime.endswith("json"):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if mime.startswith("image/") and mime != "image/svg+xml":
        return "".join(str(value).split())  # Base64 may come in lines.
    return str(value)


def forms_of(value: Any) -> dict[str, Any]:
    """Return all forms of a value without IPython, by the `_repr_*_` methods that its class has."""
    forms: dict[str, Any] = {"text/plain": repr(value)}
    if isinstance(value, type):
        return forms
    for mime, name in REPR_METHODS.items():
        method = getattr(value, name, None)
        if callable(method):
            made = method()
            forms[mime] = made[0] if isinstance(made, tuple) else made
    bundle = getattr(value, "_repr_mimebundle_", None)
    if callable(bundle):
        made = bundle()
        forms.update(made[0] if isinstance(made, tuple) else made)
    for name, convert in DATA_FORMS.items():
        if _is_a(value, name):
            forms.update(convert(value))
    return forms


def _is_a(value: Any, name: str) -> bool:
    module, _, kind = name.rpartition(".")
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, kind, ()))


def table_of(frame: Any) -> dict[str, Any]:
    """Return a pandas DataFrame or Series as columns of plain values."""
    frame = frame.to_frame() if hasattr(frame, "to_frame") else frame
    text = frame.head(MAX_TABLE_ROWS).to_json(orient="split", date_format="iso", default_handler=str)
    split = json.loads(text)
    columns = {str(name): [row[i] for row in split["data"]] for i, name in enumerate(split["columns"])}
    return {TABLE_MIME: {"columns": columns, "rows": len(frame)}}


def figure_forms(figure: Any) -> dict[str, Any]:
    """Return a matplotlib figure as a picture, and as the data that it draws."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    forms: dict[str, Any] = {"text/plain": repr(figure), "image/png": picture.getvalue()}
    try:
        forms[CHART_MIME] = chart_of(figure)
    except Exception as error:  # The picture is what was asked for; an unusual plot may have no data that we can read.
        forms[CHART_MIME] = {"type": "unknown", "title": "", "elements": [], "problem": str(error)}
    return forms


DATA_FORMS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "pandas.DataFrame": table_of,
    "pandas.Series": table_of,
    "matplotlib.figure.Figure": figure_forms,
}


def install_figures(displays: Displays) -> None:
    """Provide a matplotlib backend whose figures are displayed by `show`, and after the run at the latest."""
    sys.meta_path.append(_BackendFinder(displays))


class _BackendFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the backend's module when matplotlib imports it, because it needs matplotlib's own classes."""

    def __init__(self, displays: Displays) -> None:
        self._displays = displays

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name == BACKEND else None

    def exec_module(self, module: types.ModuleType) -> None:
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        module.__dict__.update(
            FigureCanvas=FigureCanvasAgg,
            FigureManager=FigureManagerBase,
            show=lambda *_args, **_kwargs: show_figures(self._displays),
        )


def install_pictures(displays: Displays) -> None:
    """Display the pictures of Pillow that code shows, which nobody else would see, as soon as it is imported.

    In a sandbox of E2B's clients those that code saves as files are displayed too, as their own interpreter does it.
    """
    if (loaded := sys.modules.get("PIL.Image")) is not None:
        _patch_pictures(loaded, displays)
    else:
        sys.meta_path.insert(0, _PictureFinder(displays))


class _PictureFinder(importlib.abc.MetaPathFinder):
    def __init__(self, displays: Displays) -> None:
        self._displays = displays

    def find_spec(self, name: str, path: Any = None, target: object = None) -> Any:
        if name != "PIL.Image":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: types.ModuleType) -> None:
                execute(module)
                _patch_pictures(module, self._displays)

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def _patch_pictures(pillow: types.ModuleType, displays: Displays) -> None:
    kind: Any = pillow.__dict__["Image"]
    save = kind.save

    def show(picture: Any, *_args: Any, **_options: Any) -> None:
        displays.send(forms_of(picture))

    def save_and_show(picture: Any, target: Any, *args: Any, **options: Any) -> None:
        save(picture, target, *args, **options)
        if isinstance(target, (str, os.PathLike)):  # Not what is drawn into memory, as for a display.
            displays.send(forms_of(picture))

    kind.show = show
    if "E2B_SANDBOX" in os.environ:
        kind.save = save_and_show


def show_figures(displays: Displays) -> None:
    """Display and close every figure that pyplot holds."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        try:
            displays.send(figure_forms(figure))
        finally:
            pyplot.close(figure)
