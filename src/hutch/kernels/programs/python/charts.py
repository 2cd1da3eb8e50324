"""What matplotlib's figures draw, as data: lines, points, bars, pies and boxes with their labels, units and scales."""

from __future__ import annotations

import re
from typing import Any

MAX_POINTS = 5000
_UNIT = re.compile(r"\(([^()]+)\)\s*$")
"""The unit in the label of an axis, such as `s` in "Time (s)"."""


def chart_of(figure: Any) -> dict[str, Any]:
    """Return what a figure draws; several axes are a `superchart` of charts."""
    charts = [_chart_of_axes(axes) for axes in figure.axes]
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else ""
    return {"type": "superchart" if charts else "unknown", "title": title or None, "elements": charts}


def _chart_of_axes(axes: Any) -> dict[str, Any]:
    across, up = _Axis(axes.xaxis), _Axis(axes.yaxis)
    kind, elements = _elements(axes, across, up)
    chart = {"type": kind, "title": axes.get_title() or None, "elements": elements}
    for name, axis in (("x", across), ("y", up)):
        unit = _UNIT.search(axis.label)
        chart[f"{name}_label"] = axis.label or None
        chart[f"{name}_unit"] = unit.group(1) if unit else None
        chart[f"{name}_scale"] = axis.scale
        chart[f"{name}_ticks"] = [axis.value(tick) for tick in axis.ticks]
        chart[f"{name}_tick_labels"] = list(axis.names.values())
    return chart


class _Axis:
    """One axis of a plot: how the numbers that matplotlib draws are read."""

    def __init__(self, axis: Any) -> None:
        self.label: str = axis.get_label_text()
        self.ticks = [float(tick) for tick in axis.get_ticklocs()]
        self.names = dict(zip(self.ticks, [each.get_text() for each in axis.get_ticklabels()]))  # noqa: B905 - see below
        converter = getattr(axis, "get_converter", lambda: getattr(axis, "converter", None))()
        kind = f"{type(converter).__module__}.{type(converter).__name__}"
        self.scale: str = axis.get_scale()
        if "category" in kind:
            self.scale = "categorical"
        elif "Date" in kind:
            self.scale = "datetime"

    def value(self, number: Any) -> float | str:
        """Return a number of this axis as the plot's author wrote it: a time in ISO format, a category by its name."""
        if self.scale == "datetime":
            from matplotlib.dates import num2date

            return str(num2date(number).isoformat())
        if self.scale == "categorical":
            return self.names.get(float(number), "") or float(number)
        return float(number)

    def name(self, number: float) -> str:
        """Return how the tick at this number is called, or the number."""
        return self.names.get(number, "") or f"{number:g}"


def _elements(axes: Any, across: _Axis, up: _Axis) -> tuple[str, list[dict[str, Any]]]:
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.patches import Wedge

    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    if wedges:
        return "pie", [
            {"label": each.get_label(), "angle": round(float(each.theta2 - each.theta1), 3), "radius": float(each.r)}
            for each in wedges
        ]
    groups = [group for group in axes.containers if isinstance(group, BarContainer)]
    if groups:
        return "bar", [bar for group in groups for bar in _bars(group, across, up)]
    dots = [each for each in axes.collections if isinstance(each, PathCollection)]
    if dots:
        return "scatter", [_series(str(each.get_label()), each.get_offsets(), across, up) for each in dots]
    lines = axes.get_lines()
    boxes = _box_plots(lines, across, up)
    if boxes:
        return "box_and_whisker", boxes
    if lines:
        return "line", [_series(str(line.get_label()), line.get_xydata(), across, up) for line in lines]
    return "unknown", []


def _series(label: str, rows: Any, across: _Axis, up: _Axis) -> dict[str, Any]:
    points = [[across.value(x), up.value(y)] for x, y in rows[:MAX_POINTS]]
    return {"label": _given(label), "points": points}


def _given(label: str) -> str:
    """Return a label, or "" for one that matplotlib has made up."""
    return "" if label.startswith("_") else label


def _bars(group: Any, across: _Axis, up: _Axis) -> list[dict[str, Any]]:
    lying = getattr(group, "orientation", None) == "horizontal"
    label = _given(str(group.get_label()))
    bars = []
    for bar in group[:MAX_POINTS]:
        if lying:
            name, value = up.name(bar.get_y() + bar.get_height() / 2), bar.get_width()
        else:
            name, value = across.name(bar.get_x() + bar.get_width() / 2), bar.get_height()
        bars.append({"label": name, "group": label, "value": float(value)})
    return bars


def _box_plots(lines: Any, across: _Axis, up: _Axis) -> list[dict[str, Any]]:
    """Return the boxes of a box plot: each is drawn as two whiskers, two caps, a median, and its outliers."""
    data = [line.get_xydata().tolist() for line in lines[: 8 * MAX_POINTS]]
    for along, axis in ((1, across), (0, up)):
        found = []
        for number in range(len(data) - 4):
            parts = data[number : number + 5]
            if any(len(part) != 2 for part in parts):
                continue
            low, high, low_cap, high_cap, median = parts
            at = low[0][1 - along]
            ends = (low[1][along], high[1][along])
            upright = all(point[1 - along] == at for point in (*low, *high))
            capped = all(point[along] == end for cap, end in zip((low_cap, high_cap), ends) for point in cap)  # noqa: B905 - older interpreters do not know `strict`
            if not upright or not capped or median[0][along] != median[1][along]:
                continue
            outliers = data[number + 5] if number + 5 < len(data) else []
            apart = [point[along] for point in outliers if point[1 - along] == at]
            found.append(
                {
                    "label": axis.name(at), "min": ends[0], "first_quartile": low[0][along],
                    "median": median[0][along], "third_quartile": high[0][along], "max": ends[1],
                    "outliers": apart if len(apart) == len(outliers) else [],
                }
            )  # fmt: skip
        if found:
            return found
    return []
