"""Files of a box: read, written, listed, moved and removed inside, with the rights of the box's user (lesson 18)."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress

from hutch.conformance.claims import holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import FileMissing, FileTooLarge, HutchError, Invalid
from hutch.model.files import FileKind

EVERY_BYTE = bytes(range(256))
ODD_NAMES = (
    "with space", "new\nline", "-dash", "quo'te\"s", "back\\slash", "$HOME", "*", "žluťoučký 🐎", " ", "#", "tab\t",
    os.fsdecode(b"not-utf8-\xff\xfe"), "n" * 255, "..hidden", "~",
)  # fmt: skip


@check("files")
async def check_round_trip(bench: Workbench) -> None:
    """What is written is read back byte for byte, by us and by a command; text is UTF-8."""
    async with bench.plain_box() as box:
        for name, data in (("bytes", EVERY_BYTE * 100), ("empty", b""), ("crlf", b"a\r\nb\n")):
            written = await box.files.write(name, data)
            same((written.size, written.kind), (len(data), FileKind.FILE), f"what write says of {name}")
            same(await box.files.read(name), data, f"content of {name}")
            same(await bench.output(box, ("cat", name)), data, f"content of {name} as a command sees it")
        await box.files.write("text", "ž 🐎\n")
        same(await box.files.read("text"), "ž 🐎\n".encode(), "text as bytes")
        same(await box.files.read_text("text"), "ž 🐎\n", "text")
        same(await box.files.read_text("bytes"), (EVERY_BYTE * 100).decode("utf-8", "replace"), "text that is none")


@check("files")
async def check_ranges(bench: Workbench) -> None:
    """A read takes any range; what lies past the end is simply not there."""
    async with bench.plain_box() as box:
        await box.files.write("digits", b"0123456789")
        for offset, limit, wanted in ((0, 3, b"012"), (4, 3, b"456"), (8, 100, b"89"), (10, 5, b""), (99, 1, b"")):
            same(await box.files.read("digits", offset=offset, limit=limit), wanted, f"{limit} bytes from {offset}")
        same(await box.files.read("digits", offset=7), b"789", "from an offset to the end")
        same(await box.files.read("digits", limit=0), b"", "no bytes at all")


@check("files")
async def check_lines(bench: Workbench) -> None:
    """Lines are counted from 1, and the answer says whether it reached the end of the file."""
    async with bench.plain_box() as box:
        await box.files.write("lines", b"one\ntwo\nthree\nlast without newline")
        lines, ended = await box.files.read_lines("lines", start=2, count=2)
        same(([line.rstrip("\n") for line in lines], ended), (["two", "three"], False), "two lines from the second on")
        lines, ended = await box.files.read_lines("lines", start=4)
        same(([line.rstrip("\n") for line in lines], ended), (["last without newline"], True), "the last line")


@check("files")
async def check_pieces(bench: Workbench) -> None:
    """Content of any size is read and written in pieces, with nothing lost between them."""

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(60):
            yield bytes([number]) * 100_000

    async with bench.plain_box() as box:
        await box.files.write("large", pieces())
        got = [piece async for piece in box.files.open("large")]
        same(b"".join(got), b"".join([bytes([number]) * 100_000 for number in range(60)]), "six megabytes in pieces")
        part = [piece async for piece in box.files.open("large", offset=99_999, limit=2)]
        same(b"".join(part), b"\x00\x01", "a range in pieces")


@check("files")
async def check_too_large(bench: Workbench) -> None:
    """A file over 64 MB is not read whole by accident: FileTooLarge, while a range of it is fine."""
    async with bench.plain_box() as box:
        await bench.output(box, ("truncate", "-s", "70000000", "sparse"))
        with raises(FileTooLarge, what="reading 70 MB without a limit"):
            await box.files.read("sparse")
        same(await box.files.read("sparse", offset=69_999_999, limit=10), b"\0", "the last byte")


@check("files")
async def check_append(bench: Workbench) -> None:
    """Appending adds to the end, and makes a file that is not there."""
    async with bench.plain_box() as box:
        await box.files.write("log", b"one\n", append=True)
        await box.files.write("log", b"two\n", append=True)
        same(await box.files.read("log"), b"one\ntwo\n", "content")


@check("files")
async def check_replace(bench: Workbench) -> None:
    """A write replaces all of the old content, also when the new one is shorter."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"a long first content")
        await box.files.write("file", b"short")
        same(await box.files.read("file"), b"short", "content")


@check("files")
async def check_atomic(bench: Workbench) -> None:
    """Whoever has the old file open keeps the whole old content: a write never truncates in place (lesson 21)."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"old content\n")
        job = await bench.start(box, ("sh", "-c", "exec 3<file; echo open; read line; cat <&3"))
        await bench.read_until(job, b"open\n")
        await box.files.write("file", b"new\n")
        await job.write(b"\n")
        same((await bench.ended(job)).stdout_bytes, b"open\nold content\n", "what the open file still holds")
        same(await box.files.read("file"), b"new\n", "the new file")


@check("files")
async def check_half_write(bench: Workbench) -> None:
    """A write that breaks off in the middle leaves the old file as it was, and no other file beside it."""

    async def breaks_off() -> AsyncIterator[bytes]:
        yield b"half of the new con"
        raise Interrupted

    async with bench.plain_box() as box:
        await box.files.mkdir("d")
        await box.files.write("d/file", b"old")
        with suppress(Interrupted, HutchError):
            await box.files.write("d/file", breaks_off())
        same(await box.files.read("d/file"), b"old", "the file after a write that broke off")

        async def clean() -> bool:
            return await bench.output(box, ("ls", "-A", "d")) == b"file\n"

        await bench.until(clean, "the directory without leftovers")


class Interrupted(Exception):
    """The caller's own error in the middle of a write."""


@check("files")
async def check_mode(bench: Workbench) -> None:
    """A new file gets the mode that was asked for; replacing a file keeps the mode it has."""
    async with bench.plain_box() as box:
        await box.files.write("script", b"#!/bin/sh\necho one\n", mode=0o750)
        same((await box.files.stat("script")).mode & 0o7777, 0o750, "mode")
        await box.files.write("script", b"#!/bin/sh\necho two\n")
        same((await box.files.stat("script")).mode & 0o7777, 0o750, "mode after the file was replaced")
        same(await bench.output(box, ("./script",)), b"two\n", "output of the replaced script")


@check("files")
async def check_parents(bench: Workbench) -> None:
    """A write makes the directories above the file, unless that is switched off."""
    async with bench.plain_box() as box:
        await box.files.write("a/b/c/file", b"x")
        same(await box.files.read("a/b/c/file"), b"x", "content")
        with raises(FileMissing, what="writing below a directory that is missing, with parents=False"):
            await box.files.write("no/such/file", b"x", parents=False)


@check("files")
async def check_stat(bench: Workbench) -> None:
    """Kind, size, mode and time are the file's own; a symlink is reported as one, with its target."""
    async with bench.plain_box() as box:
        await bench.output(
            box, "printf 12345 >file; chmod 640 file; touch -d @1000000000 file; mkdir d; ln -s file link"
        )
        info = await box.files.stat("file")
        same((info.kind, info.size, info.mode & 0o7777, info.mtime), (FileKind.FILE, 5, 0o640, 1_000_000_000), "file")
        same((await box.files.stat("d")).kind, FileKind.DIRECTORY, "kind of a directory")
        link = await box.files.stat("link")
        same((link.kind, link.target), (FileKind.SYMLINK, "file"), "symlink")
        owner = await bench.output(box, ("sh", "-c", 'printf "%s %s" "$(id -u)" "$(id -g)"'))
        same(f"{info.uid} {info.gid}".encode(), owner, "owner")
        with raises(FileMissing, what="stat of a missing file"):
            await box.files.stat("missing")


@check("files")
async def check_exists(bench: Workbench) -> None:
    """`exists` answers for files, directories and what is not there."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"")
        got = [await box.files.exists(path) for path in ("file", ".", "missing", "file/below", "/etc")]
        same(got, [True, True, False, False, True], "exists")


@check("files")
async def check_list(bench: Workbench) -> None:
    """A list has every entry of one directory, hidden ones too, by name and not deeper."""
    async with bench.plain_box() as box:
        await bench.output(box, "mkdir -p d/sub; touch d/b d/.hidden d/sub/deeper; ln -s nowhere d/a")
        entries = await box.files.list("d")
        kinds = [(os.path.basename(entry.path), entry.kind) for entry in entries]
        wanted = [(".hidden", FileKind.FILE), ("a", FileKind.SYMLINK), ("b", FileKind.FILE),
                  ("sub", FileKind.DIRECTORY)]  # fmt: skip
        same(kinds, wanted, "entries")
        same(await box.files.list("d/sub/../sub") != [], True, "a list by a path with ..")
        with raises(FileMissing, what="listing a directory that is missing"):
            await box.files.list("missing")


@check("files")
async def check_mkdir(bench: Workbench) -> None:
    """A directory is made with those above it; one that exists is fine unless `exist_ok` is false."""
    async with bench.plain_box() as box:
        await box.files.mkdir("x/y/z")
        same((await box.files.stat("x/y/z")).kind, FileKind.DIRECTORY, "kind")
        await box.files.mkdir("x/y/z")
        with raises(FileExistsError, what="making a directory again with exist_ok=False"):
            await box.files.mkdir("x/y/z", exist_ok=False)
        with raises(FileNotFoundError, what="making a directory below a missing one with parents=False"):
            await box.files.mkdir("no/such", parents=False)


@check("files")
async def check_move(bench: Workbench) -> None:
    """A move takes files and trees along; what is at the target stays, unless `overwrite` is given."""
    async with bench.plain_box() as box:
        await box.files.write("from/file", b"moved")
        await box.files.move("from", "to")
        same(await box.files.read("to/file"), b"moved", "content after the move")
        same(await box.files.exists("from"), False, "whether the source is still there")
        await box.files.write("other", b"other")
        with raises(FileExistsError, what="moving onto a file"):
            await box.files.move("other", "to/file")
        same(await box.files.read("to/file"), b"moved", "the file that was in the way")
        await box.files.move("other", "to/file", overwrite=True)
        same(await box.files.read("to/file"), b"other", "the overwritten file")
        with raises(FileMissing, what="moving a missing file"):
            await box.files.move("missing", "anywhere")


@check("files")
async def check_remove(bench: Workbench) -> None:
    """A file, a link (never its target) and, with `recursive`, a tree are removed; all else is an error."""
    async with bench.plain_box() as box:
        await bench.output(box, "mkdir -p tree/deep; touch tree/deep/file kept; ln -s kept link")
        await box.files.remove("link")
        same(await box.files.exists("kept"), True, "whether the link's target is still there")
        with raises(HutchError, what="removing a tree without recursive"):
            await box.files.remove("tree")
        same(await box.files.exists("tree/deep/file"), True, "whether the tree is still there")
        await box.files.remove("tree", recursive=True)
        same(await box.files.exists("tree"), False, "whether the tree is still there")
        with raises(FileMissing, what="removing a missing file"):
            await box.files.remove("missing")
        await box.files.remove("missing", missing_ok=True)


@check("files")
async def check_odd_names(bench: Workbench) -> None:
    """Every name the kernel allows works: spaces, newlines, quotes, globs, 255 bytes, no UTF-8 (as surrogates)."""
    async with bench.plain_box() as box:
        for name in ODD_NAMES:
            await box.files.write(f"d/{name}", os.fsencode(name))
            same(await box.files.read(f"d/{name}"), os.fsencode(name), f"content of {name!r}")
        names = {os.path.basename(entry.path) for entry in await box.files.list("d")}
        same(names, set(ODD_NAMES), "names that list gives")
        inside = await bench.output(box, 'cd d; for name in * ..?*; do printf "%s\\0" "$name"; done')
        wanted = {os.fsencode(name) for name in ODD_NAMES}
        same(set(inside.split(b"\0")[:-1]), wanted, "names as a command sees them")
        for name in ODD_NAMES:
            await box.files.remove(f"d/{name}")
        same(await box.files.list("d"), [], "what is left")


@check("files")
async def check_bad_paths(bench: Workbench) -> None:
    """A path with a NUL byte, or an empty one, is an error that names it; nothing is made."""
    async with bench.plain_box() as box:
        for path in ("a\0b", ""):
            with raises(HutchError, what=f"writing to {path!r}"):
                await box.files.write(path, b"x")
        with raises(HutchError, what="a name of 300 bytes"):
            await box.files.write("n" * 300, b"x")
        same(await box.files.list("."), [], "what was made")


@check("files", needs="isolation")
async def check_builtin_errors(bench: Workbench) -> None:
    """File errors are also the builtin ones: missing, a directory, no directory, not permitted."""
    async with bench.plain_box() as box:
        await bench.output(box, "touch file; mkdir d; touch locked; chmod 0 locked")
        with raises(FileNotFoundError, what="reading a missing file"):
            await box.files.read("missing")
        with raises(IsADirectoryError, what="reading a directory"):
            await box.files.read("d")
        with raises(NotADirectoryError, what="reading below a file"):
            await box.files.read("file/below")
        with raises(NotADirectoryError, what="listing a file"):
            await box.files.list("file")
        with raises(PermissionError, what="reading a file of mode 0"):
            await box.files.read("locked")


@check("files", needs="isolation")
async def check_rights(bench: Workbench) -> None:
    """File operations have the rights of the box's user: system files are not written for any caller."""
    async with bench.plain_box() as box:
        for path in ("/etc/passwd", "/usr/new", "/proc/sys/kernel/hostname"):
            with raises(OSError, what=f"writing {path}"):
                await box.files.write(path, b"x")


@check("files", needs="isolation")
async def check_links_stay_inside(bench: Workbench) -> None:
    """A symlink means what it means inside the box; no path leads to the host's files."""
    marker = bench.scratch / "marker"
    marker.write_text("of the host")
    async with bench.plain_box() as box:
        await bench.output(box, ("ln", "-s", str(marker), "link"))
        for path in ("link", str(marker), f"../../../../../..{marker}", f"/proc/self/root{marker}"):
            with raises(OSError, Invalid, what=f"reading the host's file as {path}"):
                await box.files.read(path)
        with suppress(OSError):
            await box.files.write("link", b"from the box")
        same(marker.read_text(), "of the host", "the host's file")


@check("files")
async def check_endless_files(bench: Workbench) -> None:
    """A pipe or a device never blocks the box: reading one is an error or ends, and the box keeps running."""
    async with bench.plain_box() as box:
        await bench.output(box, ("mkfifo", "pipe"))
        async with bench.within("an answer about a named pipe"):
            with raises(HutchError, what="reading a named pipe"):
                await box.files.read("pipe", limit=10)
        await bench.answers(box)


@check("files")
async def check_concurrent_writes(bench: Workbench) -> None:
    """Ten writers of one file at once leave one whole content, never a mixture."""
    async with bench.plain_box() as box:
        contents = [bytes([65 + number]) * 200_000 for number in range(10)]
        await asyncio.gather(*(box.files.write("file", content) for content in contents))
        holds(await box.files.read("file") in contents, "the file is a mixture of several writes")
        same(len(await box.files.list(".")), 1, "files in the directory")
