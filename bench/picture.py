"""The result as one SVG: horizontal bars on a logarithmic scale, readable on light and dark pages alike."""

from math import ceil, floor, log10
from typing import Any
from xml.sax.saxutils import escape

from bench.report import quantity

WIDTH = 760
LEFT, RIGHT = 118, 92
BAR, GAP, GROUP = 20, 6, 40
TOP, BOTTOM = 58, 36
SHOWN = {
    "create": "A new box, to the end of its first command",
    "exec": "One more command in it",
    "cold": "From the shell: run true",
}
LABELS = {"runsc": "gVisor", "docker": "Docker", "podman": "Podman"}

STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f; }
    .title { font-size: 16px; font-weight: 600; }
    .group { font-weight: 600; }
    .quiet { fill: #6e7781; font-size: 11px; }
    .line { stroke: #d0d7de; stroke-width: 1; }
    .peer { fill: #afb8c1; }
    .ours { fill: #e8590c; }
    .us { font-weight: 700; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .quiet { fill: #8d96a0; }
      .line { stroke: #3d444d; }
      .peer { fill: #57606a; }
      .ours { fill: #ff8b3d; }
    }"""


def picture(result: dict[str, Any]) -> str:
    """Bars for the numbers in milliseconds that every engine has."""
    groups = [(SHOWN[each["name"]], _bars(each)) for each in result["numbers"] if each["name"] in SHOWN]
    values = [value for _, bars in groups for _, value in bars]
    scale = _Scale(values)
    parts: list[str] = []
    y = TOP
    for title, bars in groups:
        parts.append(f'<text class="group" x="16" y="{y + 18}">{escape(title)}</text>')
        y += GROUP - 12
        for name, value in bars:
            parts.append(_bar(name, value, y, scale))
            y += BAR + GAP
        y += 12
    height = y + BOTTOM
    summary = "; ".join(
        f"{title}: " + ", ".join(f"{name} {quantity(value, 'ms')}" for name, value in bars) for title, bars in groups
    )
    machine = result["machine"]
    where = f"{machine['cores']} cores, Linux {machine['kernel']}"
    foot = f"p50 of one run, {where}, network off. Shorter is faster; from line to line it is ten times as long."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"  <title>Milliseconds, logarithmic scale</title>\n  <desc>{escape(summary)}</desc>\n"
        f"  <style>{STYLE}\n  </style>\n"
        f'  <text class="title" x="16" y="28">Milliseconds (logarithmic scale)</text>\n'
        f"  {scale.lines(TOP - 6, y)}\n  " + "\n  ".join(parts) + "\n"
        f'  <text class="quiet" x="16" y="{height - 10}">{escape(foot)}</text>\n</svg>\n'
    )


class _Scale:
    """From milliseconds to pixels, whole powers of ten at both ends."""

    def __init__(self, values: list[float]) -> None:
        self.low = floor(log10(min(values)))
        self.high = max(ceil(log10(max(values))), self.low + 1)

    def x(self, value: float) -> float:
        share = (log10(value) - self.low) / (self.high - self.low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def lines(self, top: int, bottom: int) -> str:
        drawn = []
        for power in range(self.low, self.high + 1):
            x = self.x(10.0**power)
            drawn.append(f'<line class="line" x1="{x}" y1="{top}" x2="{x}" y2="{bottom}"/>')
            drawn.append(f'<text class="quiet" text-anchor="middle" x="{x}" y="{top - 6}">{10.0**power:g} ms</text>')
        return "\n  ".join(drawn)


def _bars(number: dict[str, Any]) -> list[tuple[str, float]]:
    """Ours first, then the peers from fast to slow."""
    peers = [(_label(name), each["p50"]) for name, each in number["peers"].items()]
    return [("Hutch", number["p50"]), *sorted(peers, key=lambda pair: pair[1])]


def _label(name: str) -> str:
    engine = name.removesuffix(" run")
    return LABELS.get(engine, engine)


def _bar(name: str, value: float, y: int, scale: _Scale) -> str:
    kind, emphasis = ("ours", "us") if name == "Hutch" else ("peer", "")
    end = scale.x(value)
    length = max(end - LEFT, 2)
    middle = y + BAR - 6
    return (
        f'<text class="{emphasis}" text-anchor="end" x="{LEFT - 8}" y="{middle}">{escape(name)}</text>'
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="3"/>'
        f'<text class="{emphasis}" x="{end + 6:.1f}" y="{middle}">{quantity(value, "ms")}</text>'
    )
