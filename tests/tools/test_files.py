"""read, write, edit, glob and grep: in the box, byte for byte, in pages, and with a guard on what has changed."""

import base64
import zlib

import pytest

from hutch.tools import Tools
from tests.tools.real_tools import content, done, open_tools, put, refused

pytestmark = pytest.mark.slow


async def test_files_and_commands_live_in_one_place() -> None:
    """The same paths, the same owner, the same symlinks for tools and commands (lesson 18)."""
    async with open_tools() as tools:
        await done(tools, "write", path="made/by/tool.txt", content="by tool\n")
        answer = await done(tools, "exec", command="cat made/by/tool.txt; stat -c %U made/by/tool.txt; whoami")
        text, owner, me = answer.structured["stdout"].split("\n")[:3]
        assert text == "by tool"
        assert owner == me
        await done(tools, "exec", command="echo by command > c.txt; ln -s /workspace/c.txt link; ln -s c.txt rel")
        assert (await done(tools, "read", path="link")).structured["text"] == "by command\n"
        assert (await done(tools, "read", path="/workspace/rel")).structured["text"] == "by command\n"
        await done(tools, "edit", path="link", old="command", new="tool")
        assert (await done(tools, "exec", command="cat c.txt; test -L link")).structured["stdout"] == "by tool\n"
        host = await refused(tools, "read", "file_not_found", path=__file__)
        assert "test_files" not in host.structured["error"]["hint"]


@pytest.mark.parametrize(
    ("name", "before", "old", "new", "after"),
    [
        ("crlf", b"one\r\ntwo\r\nthree\r\n", "two\nthree", "zwei\ndrei", b"one\r\nzwei\r\ndrei\r\n"),
        ("crlf, new lines", b"one\r\ntwo\r\n", "two", "two\nand a half", b"one\r\ntwo\r\nand a half\r\n"),
        ("latin-1", "caf\xe9 = 1\nna\xefve = 2\n".encode("latin-1"), "café = 1", "café = 3",
         "caf\xe9 = 3\nna\xefve = 2\n".encode("latin-1")),
        ("latin-1 and crlf", "gr\xfc\xdfe\r\nende\r\n".encode("latin-1"), "grüße\nende", "größe\nende",
         "gr\xf6\xdfe\r\nende\r\n".encode("latin-1")),
        ("broken utf-8", "schön ".encode() + b"\xff\xfe\n" + b"x = 1\n", "x = 1", "x = 2",
         "schön ".encode() + b"\xff\xfe\n" + b"x = 2\n"),
        ("utf-8 mark", b"\xef\xbb\xbfa = 1\r\n", "a = 1", "a = 2", b"\xef\xbb\xbfa = 2\r\n"),
        ("utf-16", "\ufeffa = 1\r\nb = ä\r\n".encode("utf-16-le"), "a = 1\nb", "a = 2\nb",
         "\ufeffa = 2\r\nb = ä\r\n".encode("utf-16-le")),
        ("mixed, lf part", b"a\nb\nc\r\nd\r\n", "a\nb", "A\nB", b"A\nB\nc\r\nd\r\n"),
        ("mixed, crlf part", b"a\nb\nc\r\nd\r\n", "c\nd", "C\nD", b"a\nb\nC\r\nD\r\n"),
        ("no newline at the end", b"end", "end", "END", b"END"),
        ("control characters", b"a\x1b[0m\x0cb\n", "b", "c", b"a\x1b[0m\x0cc\n"),
    ],
)  # fmt: skip
async def test_edit_changes_nothing_but_what_it_should(
    name: str, before: bytes, old: str, new: str, after: bytes
) -> None:
    """Encoding, line endings and every byte around stay, whatever the model's text looks like (lesson 19)."""
    async with open_tools() as tools:
        await put(tools, "f.txt", before)
        await done(tools, "read", path="f.txt")
        result = await done(tools, "edit", path="f.txt", old=old, new=new)
        assert result.structured["replaced"] == 1
        assert await content(tools, "f.txt") == after


async def test_read_then_write_keeps_encoding_and_line_endings() -> None:
    """A model that writes back what it was shown, with a change, changes only that (lesson 19)."""
    async with open_tools() as tools:
        for before in (
            "eins\r\nzwei äöü\r\n".encode("latin-1"),
            b"\xef\xbb\xbfone\r\ntwo\r\n",
            "\ufeffa\r\nä\r\n".encode("utf-16-le"),
            "plain ünïcode\n".encode(),
        ):
            await put(tools, "f.txt", before)
            text = (await done(tools, "read", path="f.txt")).structured["text"]
            assert "\r" not in text
            await done(tools, "write", path="f.txt", content=text)
            assert await content(tools, "f.txt") == before
            await done(tools, "write", path="f.txt", content=text, encoding="utf-8", newline="lf")
            expected = text.encode()
            assert (await content(tools, "f.txt")).removeprefix(b"\xef\xbb\xbf") == expected


async def test_what_a_file_s_encoding_cannot_hold_is_refused() -> None:
    """Lesson 19."""
    async with open_tools() as tools:
        await put(tools, "f.txt", "caf\xe9\n".encode("latin-1"))
        shown = await done(tools, "read", path="f.txt")
        assert shown.structured["text"] == "café\n"
        assert shown.structured["encoding"] == "latin-1"
        assert "latin-1" in shown.text
        result = await refused(tools, "edit", "invalid", path="f.txt", old="café", new="5 €")
        assert "latin-1" in result.text
        assert "utf-8" in result.structured["error"]["hint"]
        await refused(tools, "write", "invalid", path="f.txt", content="5 €")
        assert await content(tools, "f.txt") == b"caf\xe9\n"
        await refused(tools, "read", "invalid", path="f.txt", encoding="rot13")
        assert (await done(tools, "read", path="f.txt", encoding="cp437")).structured["text"] == "cafΘ\n"


async def test_edit_needs_exactly_one_match_unless_all_are_replaced() -> None:
    """Exact match count, replace_all (lesson 19)."""
    async with open_tools() as tools:
        await done(tools, "write", path="f.py", content="a = 1\nb = 1\n    c = 1\n")
        many = await refused(tools, "edit", "no_match", path="f.py", old="= 1", new="= 2")
        assert many.structured["error"]["details"] == {"count": 3, "lines": [1, 2, 3]}
        none = await refused(tools, "edit", "no_match", path="f.py", old="\tc = 1", new="c = 2")
        assert "line 3" in none.structured["error"]["hint"]  # only the white space differs
        await refused(tools, "edit", "invalid", path="f.py", old="a", new="a")
        await refused(tools, "edit", "invalid", path="f.py", old="", new="a")
        assert await content(tools, "f.py") == b"a = 1\nb = 1\n    c = 1\n"
        every = await done(tools, "edit", path="f.py", old="= 1", new="= 2", replace_all="true")
        assert every.structured["replaced"] == 3
        assert await content(tools, "f.py") == b"a = 2\nb = 2\n    c = 2\n"


async def test_a_file_must_be_read_before_and_be_the_same_still() -> None:
    """The guard is of each agent; its own writes and edits keep it up to date (lesson 19)."""
    async with open_tools() as tools:
        await put(tools, "f.txt", b"one two\n")
        unread = await refused(tools, "edit", "not_read", path="f.txt", old="one", new="1")
        assert 'read(path="f.txt")' in unread.structured["error"]["hint"]
        await done(tools, "read", path="/workspace/f.txt")
        await done(tools, "edit", path="./f.txt", old="one", new="1")
        await done(tools, "edit", path="f.txt", old="two", new="2")
        await done(tools, "exec", command="echo else > f.txt")
        changed = await refused(tools, "edit", "file_changed", path="f.txt", old="else", new="x")
        assert "read it again" in changed.structured["error"]["hint"]
        await refused(tools, "write", "file_changed", path="f.txt", content="mine\n")
        await done(tools, "read", path="f.txt")
        await done(tools, "write", path="f.txt", content="mine\n")
        await done(tools, "edit", path="f.txt", old="mine", new="ours")
        assert await content(tools, "f.txt") == b"ours\n"
        await done(tools, "write", path="f.txt", content="more\n", append=True)
        await done(tools, "edit", path="f.txt", old="more", new="most")
        await done(tools, "exec", command="echo else >> f.txt")
        await done(tools, "write", path="f.txt", content="end\n", append=True)
        await refused(tools, "edit", "file_changed", path="f.txt", old="end", new="END")
        await put(tools, "blind.txt", b"old\n")
        blind = await done(tools, "write", path="blind.txt", content="new\n")
        assert "had not read" in blind.text


async def test_a_write_is_atomic() -> None:
    """A write that fails leaves the file that was there, and nothing beside it (lesson 21)."""
    async with open_tools(spec={"disk_mb": 8}) as tools:
        await done(tools, "write", path="f.txt", content="precious\n")
        full = await tools.call("write", {"path": "f.txt", "content": "x" * (10 << 20)})
        assert full.is_error
        assert full.code == "file_failed"
        assert await content(tools, "f.txt") == b"precious\n"
        assert (await done(tools, "exec", command="ls -A | grep -v '^.skills'")).structured["stdout"] == "f.txt\n"


async def test_binary_files_come_as_base64_and_pictures_as_pictures() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = chunk(b"IHDR", (1).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0]))
    png = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    data = bytes(range(256)) * 300
    async with open_tools() as tools:
        await put(tools, "pixel.png", png)
        shown = await done(tools, "read", path="pixel.png")
        assert [(image.mime, image.data) for image in shown.images] == [("image/png", png)]
        assert "image/png" in shown.text
        await put(tools, "data.bin", data)
        offset, whole, eof = 0, b"", False
        while not eof:
            page = await done(tools, "read", path="data.bin", unit="bytes", offset=offset)
            assert "binary" in page.text
            whole += base64.b64decode(page.structured["base64"])
            offset, eof = page.structured["next_byte"], page.structured["eof"]
        assert whole == data
        await done(tools, "write", path="copy.bin", content_base64=base64.b64encode(data).decode(), executable=True)
        assert await content(tools, "copy.bin") == data
        assert (await done(tools, "exec", command="test -x copy.bin")).structured["exit_code"] == 0
        await refused(tools, "write", "invalid", path="x", content_base64="?")
        await refused(tools, "write", "invalid", path="x", content="a", content_base64="YQ==")
        await refused(tools, "write", "invalid", path="x")


async def test_reading_goes_by_pages_of_lines_with_numbers() -> None:
    async with open_tools() as tools:
        await put(tools, "many.txt", "".join(f"line {n}\n" for n in range(1, 5001)).encode())
        first = await done(tools, "read", path="many.txt", limit="2", numbered="yes")
        assert "     1\tline 1\n     2\tline 2" in first.text
        assert "offset=3" in first.text
        page = await done(tools, "read", path="many.txt", offset=4999)
        assert page.structured["text"] == "line 4999\nline 5000\n"
        assert page.structured["eof"]
        past = await done(tools, "read", path="many.txt", offset=9999)
        assert past.structured["text"] == ""
        default = await done(tools, "read", path="many.txt")
        assert default.structured["next_line"] == 2001
        assert (await done(tools, "read", path="many.txt", unit="bytes", offset=5, limit=3)).structured[
            "text"
        ] == "1\nl"
        await put(tools, "empty", b"")
        assert "empty" in (await done(tools, "read", path="empty")).text


async def test_a_large_file_is_paged_without_being_loaded() -> None:
    """More than is read at once: 12 MB, of which the last line turns out not to be UTF-8."""
    async with open_tools() as tools:
        await put(tools, "large.log", b"".join(b"%09d\n" % n for n in range(1_200_000)) + b"\xe9nd\n")
        page = await done(tools, "read", path="large.log", offset=1_200_000)
        assert page.structured["text"] == "001199999\nénd\n"
        assert page.structured["eof"]
        assert "latin-1" in page.text
        middle = await done(tools, "read", path="large.log", offset=600_001, limit=1)
        assert middle.structured["text"] == "000600000\n"
        await done(tools, "edit", path="large.log", old="000600000", new="here")
        assert (await content(tools, "large.log")).count(b"here\n") == 1


async def test_a_directory_is_listed_and_missing_things_are_named() -> None:
    async with open_tools() as tools:
        await done(tools, "exec", command="mkdir -p d/sub; touch d/file; ln -s file d/link")
        listed = await done(tools, "read", path="d")
        assert listed.text.splitlines()[1:] == ["file", "link@", "sub/"]
        await refused(tools, "read", "file_not_found", path="nowhere")
        await refused(tools, "edit", "file_not_found", path="nowhere", old="a", new="b")
        await refused(tools, "write", "is_directory", path="d", content="x")
        await refused(tools, "read", "not_directory", path="d/file/below")
        await refused(tools, "read", "file_denied", path="/proc/1/mem")
        await refused(tools, "read", "invalid", path="output:x:stdmiddle")
        await refused(tools, "read", "not_found", path="output:none:stdout")


async def test_glob_patterns_match() -> None:
    """`**` finds files at every depth, hidden names only when they are named; a bound is said (lesson 20)."""
    async with open_tools() as tools:
        await done(
            tools, "exec", command="mkdir -p src/a/b/c .git; touch src/x.py src/a/y.py src/a/b/c/z.py .git/h.py t.txt"
        )
        found = await done(tools, "glob", pattern="src/**/*.py")
        assert sorted(found.structured["paths"]) == ["src/a/b/c/z.py", "src/a/y.py", "src/x.py"]
        assert sorted((await done(tools, "glob", pattern="**/*.py")).structured["paths"]) == sorted(
            found.structured["paths"]
        )
        assert (await done(tools, "glob", pattern=".git/*")).structured["paths"] == [".git/h.py"]
        assert (await done(tools, "glob", pattern="*.{txt,md}", path="/workspace")).structured["paths"] != []
        bounded = await done(tools, "glob", pattern="**/*.py", limit=2)
        assert len(bounded.structured["paths"]) == 2
        assert not bounded.structured["complete"]
        assert "not all" in bounded.text
        assert "no file matches" in (await done(tools, "glob", pattern="*.rs")).text


async def test_grep_gives_what_it_has_and_says_if_that_is_not_all() -> None:
    """Partial results are results (lesson 20)."""
    async with open_tools() as tools:
        await done(tools, "exec", command='mkdir d; for i in $(seq 30); do echo "needle $i" > d/$i.txt; done')
        found = await done(tools, "grep", pattern=r"needle \d+$", path="d", glob="**/1*.txt")
        assert len(found.structured["hits"]) == 11
        assert found.structured["complete"]
        assert "d/1.txt:1:needle 1" in found.text
        bounded = await done(tools, "grep", pattern="NEEDLE", ignore_case=True, limit=5)
        assert len(bounded.structured["hits"]) == 5
        assert not bounded.structured["complete"]
        assert "not all" in bounded.text
        await refused(tools, "grep", "invalid", pattern="(")
        await put(tools, "evil.txt", b"a" * 40 + b"!\n" + b"needle 99\n")
        slow = await done(tools, "grep", pattern=r"needle|^(a+)+$", timeout=1)
        assert len(slow.structured["hits"]) >= 1
        assert not slow.structured["complete"]
        assert "not all" in slow.text


async def test_names_that_are_not_utf_8_are_shown_escaped() -> None:
    async with open_tools() as tools:
        await done(tools, "exec", command="mkdir o; touch $'o/caf\\xe9.txt'")
        for call in (("glob", {"pattern": "o/*"}), ("read", {"path": "o"})):
            result = await tools.call(*call)
            assert not result.is_error
            assert "caf\\xe9.txt" in result.text
            result.text.encode()


async def _fuzzy(tools: Tools) -> None:
    """What models get wrong and mean all the same."""
    await done(tools, "write", file_path="f.txt", text="hello\n")
    assert (await done(tools, "read", **{"file-path": "f.txt", "limit": "10", "offset": None})).structured["eof"]
    await done(tools, "edit", path="f.txt", old_string="hello", new_string="bye", replace_all="false")
    assert await content(tools, "f.txt") == b"bye\n"
    await done(tools, "write", path="n.txt", content=42)
    assert await content(tools, "n.txt") == b"42"


async def test_arguments_may_be_sloppy_where_only_one_thing_can_be_meant() -> None:
    async with open_tools() as tools:
        await _fuzzy(tools)
