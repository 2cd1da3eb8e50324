"""Numbers of bytes in words, as messages and tables show them."""


def format_bytes(count: float) -> str:
    """Write a number of bytes with a unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
