"""File names from outside made safe: one plain name that every system can hold, and that leads nowhere."""

import posixpath
import re
import unicodedata

MAX_BYTES = 150
"""Of a name in UTF-8: file systems take 255, and whoever receives the file may add to it."""

_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f]')
"""What Windows refuses in a name, and control characters, which can move a terminal's cursor."""


def safe_name(name: str, *, instead: str = "file") -> str:
    """Never empty, no directory, no control character, no name that Windows keeps for devices, not hidden, not long."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    text = unicodedata.normalize("NFC", last.encode("utf-8", "replace").decode())
    # Format characters turn the direction of writing: `exe.gpj` can look like `jpg.exe`.
    text = "".join(each for each in text if unicodedata.category(each) not in ("Cf", "Cs", "Co", "Cn"))
    text = " ".join(text.split())
    text = _FORBIDDEN.sub("_", text).strip(" .")
    if not text or not text.strip("_"):
        text = instead
    if _RESERVED.fullmatch(text):
        text = f"_{text}"
    return _shortened(text)


def _shortened(text: str) -> str:
    if len(text.encode()) <= MAX_BYTES:
        return text
    stem, ending = posixpath.splitext(text)
    if len(ending.encode()) > 20:
        stem, ending = text, ""
    room = MAX_BYTES - len(ending.encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip(" .") + ending


def distinct(name: str, taken: set[str]) -> str:
    """`a.txt`, `a (2).txt`, …; names that differ only in case are one on some systems."""
    stem, ending = posixpath.splitext(name)
    number, candidate = 1, name
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{stem} ({number}){ending}"
    taken.add(candidate.casefold())
    return candidate
