"""Edits by exact match: bytes in, bytes out, once or not at all (lesson 19)."""

import hashlib

from hutch.conformance.claims import raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import FileChanged, FileMissing, Invalid, NoMatch


@check("edits")
async def check_once(bench: Workbench) -> None:
    """A text that is there once is replaced, and nothing else in the file; the answer says what the file is now."""
    async with bench.plain_box() as box:
        await box.files.write("code.py", "def old():\n\treturn 1\n")
        edited = await box.files.edit("code.py", "old", "new_name")
        wanted = b"def new_name():\n\treturn 1\n"
        same(await box.files.read("code.py"), wanted, "content")
        same((edited.replaced, edited.size), (1, len(wanted)), "replaced and size")
        same(edited.digest, await box.files.digest("code.py"), "digest")


@check("edits")
async def check_bytes(bench: Workbench) -> None:
    """Bytes that are no UTF-8, carriage returns and a missing last newline survive an edit beside them."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"\xff\xfe\r\nname = 1\r\n\x00end")
        await box.files.edit("file", "name = 1", "name = 2")
        same(await box.files.read("file"), b"\xff\xfe\r\nname = 2\r\n\x00end", "content")
        await box.files.edit("file", b"\xff\xfe", b"\x80")
        same(await box.files.read("file"), b"\x80\r\nname = 2\r\n\x00end", "content after an edit of such bytes")


@check("edits")
async def check_no_match(bench: Workbench) -> None:
    """A text that is not there, even by one space, is NoMatch, and the file stays."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"a  b\n")
        with raises(NoMatch, what="editing a text that is not there") as caught:
            await box.files.edit("file", "a b", "c")
        same(caught.error.details.get("count"), 0, "count in the error's details")
        same(await box.files.read("file"), b"a  b\n", "content")


@check("edits")
async def check_several_matches(bench: Workbench) -> None:
    """A text that is there several times is NoMatch with the count, unless `replace_all` is given."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"x x x")
        with raises(NoMatch, what="editing a text that is there three times") as caught:
            await box.files.edit("file", "x", "y")
        same(caught.error.details.get("count"), 3, "count in the error's details")
        same(await box.files.read("file"), b"x x x", "content")
        edited = await box.files.edit("file", "x", "y", replace_all=True)
        same((edited.replaced, await box.files.read("file")), (3, b"y y y"), "all replaced")


@check("edits")
async def check_literal(bench: Workbench) -> None:
    """Nothing in an edit is a pattern: dots, stars, backslashes and `&` mean themselves, on both sides."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"abc a.c .* \\1\n")
        await box.files.edit("file", "a.c ", "\\1 & $0 ")
        same(await box.files.read("file"), b"abc \\1 & $0 .* \\1\n", "content")
        with raises(Invalid, what="editing an empty text"):
            await box.files.edit("file", "", "x")


@check("edits")
async def check_expect(bench: Workbench) -> None:
    """`expect` guards an edit: FileChanged if somebody else changed the file since, and the file stays."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"one two")
        digest = await box.files.digest("file")
        edited = await box.files.edit("file", "one", "1", expect=digest)
        with raises(FileChanged, what="editing with the digest of the file as it was before"):
            await box.files.edit("file", "two", "2", expect=digest)
        same(await box.files.read("file"), b"1 two", "content")
        await box.files.edit("file", "two", "2", expect=edited.digest)
        same(await box.files.read("file"), b"1 2", "content after the edit with the right digest")


@check("edits")
async def check_digest(bench: Workbench) -> None:
    """The digest is SHA-256 of the content."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"content")
        same(await box.files.digest("file"), hashlib.sha256(b"content").hexdigest(), "digest")


@check("edits")
async def check_keeps_mode(bench: Workbench) -> None:
    """An edited script is still executable; editing a missing file is FileMissing and makes none."""
    async with bench.plain_box() as box:
        await box.files.write("run", b"#!/bin/sh\necho one\n", mode=0o755)
        await box.files.edit("run", "one", "two")
        same(await bench.output(box, ("./run",)), b"two\n", "output of the edited script")
        with raises(FileMissing, what="editing a missing file"):
            await box.files.edit("missing", "a", "b")
        same(await box.files.exists("missing"), False, "whether the missing file was made")
