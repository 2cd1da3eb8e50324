"""Reading `hutch.toml`: the first file found, who may have written it, and the line on which each key stands."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hutch.config import directories
from hutch.errors import ConfigError
from hutch.model.record import Record

# Patterns are texts, and `re` compiles them at first use: most processes find no file to read.
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = rf"\s*(\[\[?)\s*({_DOTTED})\s*\]"
_KEY = rf"\s*({_DOTTED})\s*="
_PARTS = r"""([A-Za-z0-9_-]+)|"([^"]*)"|'([^']*)'"""


class ConfigFile(Record, frozen=True, kw_only=True):
    """A file as it was read."""

    path: str
    plain: dict[str, Any]
    lines: dict[str, int]
    """From the key, its parts joined by NUL, to its line."""

    def origin(self, *key: str) -> str:
        """FILE:LINE of the key, or of the nearest thing around it that has a line of its own."""
        for length in range(len(key), 0, -1):
            if line := self.lines.get("\0".join(key[:length])):
                return f"{self.path}:{line}"
        return self.path


def find(named: str | os.PathLike[str] | None, environ: Mapping[str, str], cwd: Path) -> ConfigFile | None:
    """The named file, that of HUTCH_CONFIG, or the first there is; None if there is none."""
    chosen = named or environ.get("HUTCH_CONFIG")
    if chosen:
        path = cwd / Path(chosen).expanduser()
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {path}", remedy="check --config and HUTCH_CONFIG")
        return read(path)
    for path in directories.config_files(environ, cwd):
        if path.is_file():
            _check_author(path)
            return read(path)
    return None


def read(path: Path) -> ConfigFile:
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        place = f"{path}:{where[1]}" if where else str(path)
        raise ConfigError(f"{place}: not valid TOML: {error}") from error
    return ConfigFile(path=str(path), plain=plain, lines=lines_of(text))


def lines_of(text: str) -> dict[str, int]:
    """On which line each key of a TOML text stands; an element of `[[array]]` by its number.

    tomllib does not tell. What stands inside an inline table or an array has no line of its own here.
    """
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table: tuple[str, ...] = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if inside:
            inside = "" if line.count(inside) % 2 else inside
            continue
        if header := re.match(_HEADER, line):
            table = _split(header[2])
            if header[1] == "[[":
                index = counts.get(header[2], 0)
                counts[header[2]] = index + 1
                table = (*table, str(index))
            _mark(lines, table, number)
            continue
        if key := re.match(_KEY, line):
            _mark(lines, (*table, *_split(key[1])), number)
        # A multi-line string may hold anything, also lines that look like keys.
        inside = next((mark for mark in ('"""', "'''") if line.partition("#")[0].count(mark) % 2), "")
    return lines


def _mark(lines: dict[str, int], key: tuple[str, ...], number: int) -> None:
    for length in range(1, len(key) + 1):
        lines.setdefault("\0".join(key[:length]), number)


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(bare or double or single for bare, double, single in re.findall(_PARTS, dotted))


def _check_author(path: Path) -> None:
    """A file that was merely found must not be a stranger's: it could mount this user's files into boxes, and anybody
    may leave a hutch.toml in /tmp. A file that was named by the caller is trusted."""
    if not hasattr(os, "geteuid"):
        return
    found = path.stat()
    if found.st_uid in (0, os.geteuid()) and not found.st_mode & stat.S_IWOTH:
        return
    raise ConfigError(
        f"{path} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}: others may have written it",
        remedy=f"if you trust it, name it: HUTCH_CONFIG={path}",
    )
