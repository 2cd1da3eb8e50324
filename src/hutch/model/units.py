"""Durations and sizes as people write and read them: "90", "90s", "5m" and "1h30m" are parsed, "1h30m" and "1.5 MB"
written."""

import re

from hutch.errors import Invalid

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"\d+(?:\.\d+)?"
_PARTS = r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?"


def parse_seconds(text: str) -> float:
    """Parse a duration to seconds. Raises Invalid for anything else; nothing is guessed."""
    plain = text.strip()
    if re.fullmatch(_NUMBER, plain):
        return float(plain)
    match = re.fullmatch(_PARTS, plain)
    if match is None or not plain:
        raise Invalid(
            f"{text!r} is not a time", remedy="write seconds (90) or units, largest first: 90s, 5m, 1h30m, 2d"
        )
    return sum(float(part) * size for part, size in zip(match.groups(), _UNITS.values(), strict=True) if part)


def format_seconds(amount: float) -> str:
    """Write seconds in their two largest units; below ten seconds with a tenth."""
    if amount < 0:
        return f"-{format_seconds(-amount)}"
    if amount < 10 and amount != int(amount):
        return f"{amount:.1f}s"
    rest = int(amount)
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, int(size))
        if count or parts:
            parts.append((count, unit))
    return "".join(f"{count}{unit}" for count, unit in parts[:2] if count) or "0s"


def format_bytes(count: float) -> str:
    """Write a number of bytes with a unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
