"""Files in and out with a message: safe names, bounds, collected once, symlinks not followed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.errors import Invalid
from hutch.tools.attachments import MAX_NAME_BYTES, Attachments, Bounds, safe_name, unique_name
from tests.tools.real_tools import content, done, open_tools, refused

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\windows\\system.ini", "system.ini"),
        ("/abs/olute.txt", "olute.txt"),
        ("", "file"),
        ("..", "file"),
        ("a/..", "file"),
        (".bashrc", "bashrc"),
        ("con", "_con"),
        ("NUL.txt", "_NUL.txt"),
        ("com1.tar.gz", "_com1.tar.gz"),
        ("a\x00b\x1b[2Jc.txt", "a_b_[2Jc.txt"),
        ("invoice\u202egpj.exe", "invoicegpj.exe"),
        ("trailing. . ", "trailing"),
        ('q?u*e|s<t>i:o"n', "q_u_e_s_t_i_o_n"),
        ("Ünïcode ÄÖ.txt", "Ünïcode ÄÖ.txt"),
    ],
)
def test_names_are_made_safe(given: str, safe: str) -> None:
    assert safe_name(given) == safe


@given(st.text(max_size=400))
def test_every_name_becomes_one_plain_name(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert "/" not in safe
    assert "\\" not in safe
    assert safe not in (".", "..")
    assert not safe.startswith(".")
    assert safe.isprintable()
    assert len(safe.encode()) <= MAX_NAME_BYTES
    assert safe_name(safe) == safe


def test_equal_names_are_made_distinct() -> None:
    taken: set[str] = set()
    assert [unique_name(name, taken) for name in ("a.txt", "A.txt", "a.txt")] == ["a.txt", "A (2).txt", "a (3).txt"]


async def test_files_go_in_and_come_out_once(tmp_path: Path) -> None:
    """The application puts files in, the model reads them and sends others, the application takes those, once."""
    (tmp_path / "from-host.bin").write_bytes(b"\0" * 3_000_000)

    async def stream() -> AsyncIterator[bytes]:
        yield b"in "
        yield b"pieces"

    async with open_tools() as tools:
        box, _ = await tools.agent().box()
        paths = await tools.attachments.put(
            box, "msg/../1", {"../a.txt": "text", "b/a.txt": b"bytes", "h": tmp_path / "from-host.bin", "s": stream()}
        )
        assert paths == tuple(f"/workspace/inbox/1/{name}" for name in ("a.txt", "a (2).txt", "h", "s"))
        assert (await done(tools, "read", path=paths[0])).structured["text"] == "text"
        assert await content(tools, paths[1]) == b"bytes"
        assert len(await content(tools, paths[2])) == 3_000_000
        assert await content(tools, paths[3]) == b"in pieces"
        await done(tools, "exec", command="echo result > out.txt")
        for name in (None, "con.txt"):
            sent = await tools.call("send_file", {"path": "out.txt", "name": name}, message="m1")
            assert not sent.is_error, sent.text
        again = await tools.call("send_file", {"path": "out.txt"}, message="m1")
        assert again.structured["name"] == "out (2).txt"
        other = await tools.call("send_file", {"path": "out.txt"}, message="m2")
        assert not other.is_error
        both = await asyncio.gather(*(tools.attachments.collect(box, "m1") for _ in range(2)))
        assert sorted(len(each.files) for each in both) == [0, 3]  # of two who collect, one gets all
        files = next(each.files for each in both if each.files)
        assert {file.name for file in files} == {"out.txt", "_con.txt", "out (2).txt"}
        assert {(file.data, file.mime) for file in files} == {(b"result\n", "text/plain")}
        assert (await tools.attachments.collect(box, "m1")).files == ()
        assert len((await tools.attachments.collect(box, "m2")).files) == 1
        assert (await done(tools, "exec", command="ls -A outbox")).structured["stdout"] == ""


async def test_what_is_too_much_is_left_out_and_named() -> None:
    attachments = Attachments(Bounds(files=3, file_bytes=1000, total_bytes=1500))
    async with open_tools() as tools:
        box, _ = await tools.agent().box()
        await box.exec(
            "mkdir -p outbox/m/dir; cd outbox/m; echo /etc/passwd > a; ln -s /etc/passwd link; ln -s a inner;"
            "head -c 1001 /dev/zero > b0; head -c 900 /dev/zero > b1; head -c 900 /dev/zero > b2; mkfifo pipe;"
            "touch t1 t2 $'bad\\xffname'; touch a0; chmod 0 a0"
        )
        collected = await attachments.collect(box, "m")
        assert [file.name for file in collected.files] == ["a", "b1", "bad_name"]
        assert "denied" in collected.skipped["a0"].lower()
        assert "symlink" in collected.skipped["link"]
        assert "symlink" in collected.skipped["inner"]
        assert "directory" in collected.skipped["dir"]
        assert "special" in collected.skipped["pipe"]
        assert "1000" in collected.skipped["b0"]
        assert "1500" in collected.skipped["b2"]
        assert "at most 3" in collected.skipped["t2"]
        assert all(b"root:" not in file.data for file in collected.files)


async def test_too_much_does_not_go_in_and_leaves_nothing() -> None:
    attachments = Attachments(Bounds(files=2, file_bytes=10, total_bytes=15))
    async with open_tools() as tools:
        box, _ = await tools.agent().box()
        for files in ({"a": b"x" * 11}, {"a": b"x" * 10, "b": b"y" * 10}, {"a": b"", "b": b"", "c": b""}):
            with pytest.raises(Invalid):
                await attachments.put(box, "m", files)
            assert (await box.exec("find inbox -type f 2>/dev/null")).stdout == ""


async def test_a_collection_that_breaks_off_can_be_repeated() -> None:
    class Stops(Attachments):
        async def _read(self, box: object, directory: str) -> object:  # type: ignore[override]
            raise TimeoutError

    async with open_tools() as tools:
        box, _ = await tools.agent().box()
        await box.files.write("outbox/m/a", b"x")
        with pytest.raises(TimeoutError):
            await Stops().collect(box, "m")
        assert [file.name for file in (await tools.attachments.collect(box, "m")).files] == ["a"]


async def test_send_file_refuses_what_cannot_be_sent() -> None:
    async with open_tools() as tools:
        await done(tools, "exec", command="mkdir d; truncate -s 40M big")
        await refused(tools, "send_file", "is_directory", path="d")
        await refused(tools, "send_file", "too_large", path="big")
        await refused(tools, "send_file", "file_not_found", path="none")
