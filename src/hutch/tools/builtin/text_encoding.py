"""Bytes as text and back, byte for byte: a file's own encoding and line endings are found out and kept (lesson 19)."""

import codecs
from typing import NamedTuple

from hutch.errors import Invalid, NoMatch

SAMPLE = 1 << 16
LF, CRLF = "\n", "\r\n"

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with theirs
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE = ("utf-16", "utf-32")
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "unicode-escape", "undefined"})
"""Text encodings to Python; but no file is written in them, and some refuse to replace what they cannot read."""
_CONTROL = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\b\x1b")


class Kind(NamedTuple):
    """How a file's bytes are text."""

    encoding: str
    mark: bytes = b""
    newline: str = LF
    mixed: bool = False
    """It has both kinds of line endings."""

    @property
    def notice(self) -> str:
        """What a reader should know; empty for plain UTF-8."""
        told = []
        if self.encoding != "utf-8":
            told.append(f"encoding {self.encoding}")
        if self.mark and self.encoding == "utf-8":
            told.append("UTF-8 with byte order mark")
        if self.mixed:
            told.append("mixed line endings (LF and CRLF)")
        elif self.newline == CRLF:
            told.append("line endings CRLF")
        return ", ".join(told)


def codec(name: str) -> str:
    """The name of a text encoding, checked."""
    try:
        found = codecs.lookup(name)
        if not found._is_text_encoding or found.name in _NO_CHARSETS:
            raise LookupError
        bytes(range(256)).decode(found.name, "replace")
    except (LookupError, ValueError, UnicodeError):
        raise Invalid(
            f"there is no text encoding {name[:40]!r}",
            remedy="for example utf-8, latin-1, cp1252, utf-16-le, shift_jis",
        ) from None
    return {"iso8859-1": "latin-1"}.get(found.name, found.name)


def kind_of(content: bytes, declared: str | None = None) -> Kind | None:
    """None: the content is not text. UTF-8 if it is that, else Latin-1, in which every byte is one character."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            if declared is None or encoding.startswith(declared):  # utf-16 is what its mark says it is
                return _with_newlines(content, encoding, mark)
            break
    if declared is not None:
        return _with_newlines(content, codec(declared))
    sample = content[:SAMPLE]
    if b"\0" in sample:
        return None
    if sample and len(sample) - len(sample.translate(None, _CONTROL)) > len(sample) // 10:
        return None
    return _with_newlines(content, "utf-8" if is_utf8(content) else "latin-1")


def is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_newlines(content: bytes, encoding: str, mark: bytes = b"") -> Kind:
    feed, pair = (text.encode(encoding).removeprefix(_mark_of(encoding)) for text in (LF, CRLF))
    pairs = content.count(pair)
    alone = content.count(feed) - pairs
    return Kind(encoding, mark, CRLF if pairs > max(alone, 0) else LF, pairs > 0 and alone > 0)


def _mark_of(encoding: str) -> bytes:
    """`utf-16` and `utf-8-sig` put a mark before everything they write."""
    return "".encode(encoding)


def decoded(content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding, "replace")
    except UnicodeError as error:
        raise Invalid(f"this cannot be read as {encoding}: {error}", remedy="leave encoding out") from error


def encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise Invalid(
            f"the file is {encoding} and cannot hold {text[error.start : error.end][:8]!r}",
            remedy="use characters it has, or rewrite the whole file with write and encoding='utf-8'",
            details={"encoding": encoding},
        ) from None


def with_newlines(text: str, newline: str) -> str:
    """Every line ending as `newline`."""
    plain = text.replace(CRLF, LF)
    return plain.replace(LF, CRLF) if newline == CRLF else plain


class Plan(NamedTuple):
    """An edit as bytes: `old` is replaced by `new`, in so many `places`."""

    old: bytes
    new: bytes
    places: int
    kind: Kind


def plan(path: str, content: bytes, old: str, new: str, *, replace_all: bool, declared: str | None = None) -> Plan:
    """What to replace in `content`, so that a model's text with plain line ends meets the file's own bytes."""
    if not old:
        raise Invalid("the text to replace is empty", remedy="name the text that is there, or use write")
    if old == new:
        raise Invalid("old and new are the same text", remedy="say in `new` what it should become")
    kind = kind_of(content, declared) or Kind("latin-1")
    if kind.encoding.startswith(_WIDE) or declared is not None:
        return _plan_as_text(path, content, old, new, kind, replace_all)
    for encoding in dict.fromkeys((kind.encoding, "utf-8", "latin-1")):
        for spelled, newline in ((old, ""), (with_newlines(old, CRLF), CRLF), (with_newlines(old, LF), LF)):
            try:
                before = spelled.encode(encoding)
            except UnicodeEncodeError:
                continue
            count = content.count(before)
            if count:
                _check_count(path, content, before, count, replace_all)
                style = newline or (kind.newline if LF not in old else LF if CRLF not in old else "")
                after = with_newlines(new, style) if style else new
                return Plan(before, encoded(after, encoding), count, kind._replace(encoding=encoding))
    raise _absent(path, content, old, kind.encoding)


def _plan_as_text(path: str, content: bytes, old: str, new: str, kind: Kind, replace_all: bool) -> Plan:
    """In encodings where a character may begin inside another one's bytes, text is compared, not bytes."""
    body = content.removeprefix(kind.mark)
    try:
        text = body.decode(kind.encoding)
    except UnicodeDecodeError as error:
        raise Invalid(f"{path!r} is not {kind.encoding}: {error.reason} at byte {error.start}") from None
    if text.encode(kind.encoding) != body:
        raise Invalid(f"{path!r} does not survive {kind.encoding} byte for byte", remedy="change it with a command")
    for spelled in dict.fromkeys((old, with_newlines(old, CRLF), with_newlines(old, LF))):
        count = text.count(spelled)
        if count:
            _check_count(path, text.encode(), spelled.encode(), count, replace_all)
            newline = CRLF if CRLF in spelled else LF if LF in spelled else kind.newline
            changed = text.replace(spelled, with_newlines(new, newline))
            return Plan(content, kind.mark + encoded(changed, kind.encoding), count, kind)
    raise _absent(path, text.encode(), old, "utf-8")


def _check_count(path: str, content: bytes, before: bytes, count: int, replace_all: bool) -> None:
    if count == 1 or replace_all:
        return
    lines: list[int] = []
    position = -1
    while len(lines) < 10 and (position := content.find(before, position + 1)) >= 0:
        lines.append(content.count(b"\n", 0, position) + 1)
    raise NoMatch(
        f"the text stands {count} times in {path!r}, first on lines {', '.join(map(str, lines))}",
        op="edit",
        remedy="include more of what is around it, or set replace_all",
        details={"count": count, "lines": lines},
    )


def _absent(path: str, content: bytes, old: str, encoding: str) -> NoMatch:
    """Near misses are nearly always white space; say where, because then the model need not read it all again."""
    text = content.decode(encoding, "replace")
    wanted = [line.strip() for line in old.strip().splitlines() if line.strip()]
    remedy = "read the file and copy the text exactly as it is there"
    for number, line in enumerate(text.splitlines(), 1):
        if wanted and line.strip() == wanted[0]:
            remedy = f"line {number} differs from it only in white space, or in what follows: read it again from there"
            break
    return NoMatch(f"the text does not stand in {path!r}", op="edit", remedy=remedy, details={"count": 0})
