"""Bytes as text and back, and pages of them: pure functions, held to account by random input."""

import asyncio
from collections.abc import AsyncIterator
from encodings.aliases import aliases

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.errors import Invalid, NoMatch
from hutch.tools.builtin import text_encoding
from hutch.tools.builtin.output import clip, whole_characters
from hutch.tools.builtin.paging import by_bytes, by_lines

NASTY = (bytes(range(256)), b"\xff\xfea\0b\0", b"+AAA-", b"", b"\x1b$B\xff", "gr\xfc\xdfe\r\n".encode("latin-1"))


@pytest.mark.parametrize(
    "name", sorted({*aliases.values(), "utf-8", "latin-1", "idna", "punycode", "undefined", "\0", ""})
)
def test_every_encoding_python_knows_reads_and_edits_or_is_refused(name: str) -> None:
    try:
        encoding = text_encoding.checked_codec(name)
    except Invalid:
        return
    for content in NASTY:
        text_encoding.detect_format(content, encoding)
        text_encoding.decode_text(content, encoding)
        try:
            plan = text_encoding.plan_edit("f", content, "a", "ä€", replace_all=True, declared=encoding)
        except (Invalid, NoMatch):
            continue
        assert plan.occurrences == content.decode(encoding).count("a")


@given(st.binary(max_size=200), st.text(min_size=1, max_size=5), st.text(max_size=5))
def test_an_edit_replaces_exactly_what_it_says(content: bytes, old: str, new: str) -> None:
    """Whatever the bytes, what is not replaced is there afterwards (lesson 19)."""
    try:
        plan = text_encoding.plan_edit("f", content, old, new, replace_all=True)
    except (Invalid, NoMatch):
        return
    if plan.old != content:
        assert content.count(plan.old) == plan.occurrences
    after = content.replace(plan.old, plan.new)
    assert len(after) == len(content) + content.count(plan.old) * (len(plan.new) - len(plan.old))


@given(st.lists(st.sampled_from(["a", "ä", "€", "𝕏", "\n", "\r\n", " "]), max_size=80), st.integers(1, 40))
def test_pages_lose_nothing(parts: list[str], size: int) -> None:
    """By lines or by bytes, in pages of any size, the whole comes out again (lesson 17)."""
    content = "".join(parts).encode()

    async def pieces(start: int) -> AsyncIterator[bytes]:
        for position in range(start, len(content), 7):
            yield content[position : position + 7]

    async def read() -> None:
        whole, offset, eof = b"", 0, False
        while not eof:
            page = await by_bytes(pieces(offset), offset, size)
            whole += page.data
            offset, eof = page.next_byte, page.eof
        assert whole == content
        whole, line, eof = b"", 1, False
        while not eof:
            page = await by_lines(pieces(0), line, 3, max_bytes=size)
            assert page.start_byte == len(whole)
            whole += page.data
            while page.next_line is None and not page.eof:  # a line too long for a page continues by bytes
                rest = await by_bytes(pieces(page.next_byte), page.next_byte, size)
                end = rest.data.find(b"\n") + 1
                whole += rest.data[:end] if end else rest.data
                done = rest.eof and not (end and end < len(rest.data))
                position = page.next_byte + (end or len(rest.data))
                page = page._replace(next_byte=position, next_line=whole.count(b"\n") + 1 if end else None, eof=done)
            line, eof = page.next_line or 0, page.eof
        assert whole == content

    asyncio.run(read())


@given(st.text(alphabet="aä€𝕏\n", min_size=1, max_size=300), st.integers(4, 100))
def test_head_and_tail_are_whole_characters_and_add_up(text: str, kept: int) -> None:
    """What is shown and what is said to be missing is everything (B3)."""
    content = text.encode()
    head = kept * 3 // 5
    given = content if len(content) <= kept else content[:head] + content[len(content) - (kept - head) :]
    seen = clip(given, len(content), kept, "j1", "stdout")
    if not seen.omitted:
        assert seen.text == text
        return
    before, _, after = seen.text.partition("[… ")
    first, last = before, after.partition(" …]\n")[2]
    assert text.endswith(last)
    assert text.startswith((first, first.removesuffix("\n")))
    assert "�" not in seen.text


@given(st.binary(max_size=20))
def test_characters_are_not_cut(data: bytes) -> None:
    whole = whole_characters(data)
    assert data.startswith(whole)
    assert len(data) - len(whole) <= 3
