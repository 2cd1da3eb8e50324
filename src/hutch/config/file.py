"""`hutch.toml`: which file is used, who may have written it, and the line of each key."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hutch.config import directories
from hutch.errors import ConfigError
from hutch.logs import log
from hutch.model.record import Record

MOST_BYTES = 4 << 20
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
    """Maps each key, its parts joined by NUL, to its line."""

    def origin(self, *key: str) -> str:
        """Return FILE:LINE of the key, or of the nearest table around it that has a line."""
        for length in range(len(key), 0, -1):
            if line := self.lines.get("\0".join(key[:length])):
                return f"{self.path}:{line}"
        return self.path


class Found(Record, frozen=True, kw_only=True):
    """The file that is used, and the one in the working directory that is not."""

    file: ConfigFile | None = None
    pinned: bool = False
    """Whether it is used because the user accepted the digest of its content."""
    ignored: str = ""


def find(named: str | os.PathLike[str] | None, environ: Mapping[str, str], cwd: Path) -> Found:
    """Find the configuration: the named file, that of HUTCH_CONFIG, an accepted one in the working directory, or the
    first of the user's and the machine's own."""
    chosen = named or environ.get("HUTCH_CONFIG")
    if chosen:
        path = cwd / Path(chosen).expanduser()
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {path}", remedy="check --config and HUTCH_CONFIG")
        return Found(file=parse(path, content_of(path, own=True)))
    ignored = ""
    own = directories.config_files(environ)
    here = cwd / directories.CONFIG_FILE
    if here not in own and here.is_file():
        from hutch.config import trust  # rarely needed: most directories have no configuration

        content = content_of(here, own=False)
        if trust.is_trusted(here, content, environ):
            return Found(file=parse(here, content), pinned=True)
        ignored = str(here)
        _warn(ignored)
    for path in own:
        if path.is_file():
            return Found(file=parse(path, content_of(path, own=True)), ignored=ignored)
    return Found(ignored=ignored)


_warned: set[str] = set()


def _warn(ignored: str) -> None:
    """Warn once in a process, because a command loads its configuration more than once."""
    if ignored not in _warned:
        _warned.add(ignored)
        log("config").warning(
            "a hutch.toml in the working directory is ignored: a box may have written it", file=ignored,
            accept=f"hutch config trust {ignored}",
        )  # fmt: skip


def content_of(path: Path, *, own: bool) -> bytes:
    """Read a file through one descriptor, so that the file that is checked is the one that is read.

    With `own` nobody else may have written it. A file in the working directory is accepted by its digest instead.
    """
    try:
        # O_NONBLOCK: opening a pipe in its place would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if own:
                directories.check_author(path, os.fstat(file.fileno()))
            content = file.read(MOST_BYTES + 1)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path} has more than {MOST_BYTES >> 20} MB")
    return content


def parse(path: Path, content: bytes) -> ConfigFile:
    import tomllib

    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        place = f"{path}:{where[1]}" if where else str(path)
        raise ConfigError(f"{place}: not valid TOML: {error}") from error
    return ConfigFile(path=str(path), plain=plain, lines=lines_of(text))


def lines_of(text: str) -> dict[str, int]:
    """Find the line of each key of a TOML text, which tomllib does not report; an element of `[[array]]` has a number.

    A key inside an inline table or an array has no line of its own here.
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
        # A multi-line string may hold lines that look like keys.
        inside = next((mark for mark in ('"""', "'''") if line.partition("#")[0].count(mark) % 2), "")
    return lines


def _mark(lines: dict[str, int], key: tuple[str, ...], number: int) -> None:
    for length in range(1, len(key) + 1):
        lines.setdefault("\0".join(key[:length]), number)


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(bare or double or single for bare, double, single in re.findall(_PARTS, dotted))
