"""Converts file content to text and back: encoding and line endings are detected and kept byte for byte."""

import codecs
from typing import NamedTuple

from hutch.errors import Invalid, NoMatch

SAMPLE = 1 << 16
LF, CRLF = "\n", "\r\n"

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # Listed before UTF-16, whose mark is a prefix of this one.
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE = ("utf-16", "utf-32")
_NOT_FILE_ENCODINGS = frozenset(
    {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "unicode-escape", "undefined"}
)
"""Encodings that Python counts as text although no file uses them. Some of them cannot replace invalid input."""
_CONTROL = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\b\x1b")


class TextFormat(NamedTuple):
    """Encoding, byte order mark and line endings of a file."""

    encoding: str
    bom: bytes = b""
    newline: str = LF
    mixed: bool = False
    """The file has both kinds of line endings."""

    @property
    def notice(self) -> str:
        """Note for the reader, empty for plain UTF-8."""
        parts = []
        if self.encoding != "utf-8":
            parts.append(f"encoding {self.encoding}")
        if self.bom and self.encoding == "utf-8":
            parts.append("UTF-8 with byte order mark")
        if self.mixed:
            parts.append("mixed line endings (LF and CRLF)")
        elif self.newline == CRLF:
            parts.append("line endings CRLF")
        return ", ".join(parts)


def checked_codec(name: str) -> str:
    """Return the canonical name of a text encoding, or raise Invalid."""
    try:
        found = codecs.lookup(name)
        if not found._is_text_encoding or found.name in _NOT_FILE_ENCODINGS:
            raise LookupError
        bytes(range(256)).decode(found.name, "replace")
    except (LookupError, ValueError, UnicodeError):
        raise Invalid(
            f"there is no text encoding {name[:40]!r}",
            remedy="for example utf-8, latin-1, cp1252, utf-16-le, shift_jis",
        ) from None
    return {"iso8859-1": "latin-1"}.get(found.name, found.name)


def detect_format(content: bytes, declared: str | None = None) -> TextFormat | None:
    """Detect the format, or return None for binary content. Text that is not UTF-8 counts as Latin-1."""
    for bom, encoding in _BOMS:
        if content.startswith(bom):
            if declared is None or encoding.startswith(declared):  # The byte order mark decides what utf-16 means.
                return _format_of(content, encoding, bom)
            break
    if declared is not None:
        return _format_of(content, checked_codec(declared))
    sample = content[:SAMPLE]
    if b"\0" in sample:
        return None
    if sample and len(sample) - len(sample.translate(None, _CONTROL)) > len(sample) // 10:
        return None
    return _format_of(content, "utf-8" if is_utf8(content) else "latin-1")


def is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _format_of(content: bytes, encoding: str, bom: bytes = b"") -> TextFormat:
    feed, pair = (text.encode(encoding).removeprefix(_bom_of(encoding)) for text in (LF, CRLF))
    pairs = content.count(pair)
    alone = content.count(feed) - pairs
    return TextFormat(encoding, bom, CRLF if pairs > max(alone, 0) else LF, pairs > 0 and alone > 0)


def _bom_of(encoding: str) -> bytes:
    """Return the mark that encodings such as `utf-16` and `utf-8-sig` put before everything they write."""
    return "".encode(encoding)


def decode_text(content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding, "replace")
    except UnicodeError as error:
        raise Invalid(f"this cannot be read as {encoding}: {error}", remedy="leave encoding out") from error


def encode_text(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise Invalid(
            f"the file is {encoding} and cannot hold {text[error.start : error.end][:8]!r}",
            remedy="use characters it has, or rewrite the whole file with write and encoding='utf-8'",
            details={"encoding": encoding},
        ) from None


def with_newlines(text: str, newline: str) -> str:
    """Return the text with every line ending replaced by `newline`."""
    plain = text.replace(CRLF, LF)
    return plain.replace(LF, CRLF) if newline == CRLF else plain


class EditPlan(NamedTuple):
    """An edit as bytes: `occurrences` times `old` is replaced by `new`."""

    old: bytes
    new: bytes
    occurrences: int
    kind: TextFormat


def plan_edit(
    path: str, content: bytes, old: str, new: str, *, replace_all: bool, declared: str | None = None
) -> EditPlan:
    """Plan an edit so that a model's text with plain line endings matches the bytes of the file."""
    if not old:
        raise Invalid("the text to replace is empty", remedy="name the text that is there, or use write")
    if old == new:
        raise Invalid("old and new are the same text", remedy="say in `new` what it should become")
    kind = detect_format(content, declared) or TextFormat("latin-1")
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
                return EditPlan(before, encode_text(after, encoding), count, kind._replace(encoding=encoding))
    raise _no_match_error(path, content, old, kind.encoding)


def _plan_as_text(path: str, content: bytes, old: str, new: str, kind: TextFormat, replace_all: bool) -> EditPlan:
    """Plan an edit on text, for encodings in which a character's bytes may occur inside those of others."""
    body = content.removeprefix(kind.bom)
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
            return EditPlan(content, kind.bom + encode_text(changed, kind.encoding), count, kind)
    raise _no_match_error(path, text.encode(), old, "utf-8")


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


def _no_match_error(path: str, content: bytes, old: str, encoding: str) -> NoMatch:
    """Return the error. Near misses are mostly white space, so it names the line and saves the model a full read."""
    text = content.decode(encoding, "replace")
    wanted = [line.strip() for line in old.strip().splitlines() if line.strip()]
    remedy = "read the file and copy the text exactly as it is there"
    for number, line in enumerate(text.splitlines(), 1):
        if wanted and line.strip() == wanted[0]:
            remedy = f"line {number} differs from it only in white space, or in what follows: read it again from there"
            break
    return NoMatch(f"the text does not stand in {path!r}", op="edit", remedy=remedy, details={"count": 0})
