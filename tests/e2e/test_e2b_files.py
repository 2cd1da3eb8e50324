"""The newest E2B SDK reads and writes files of boxes (S13)."""

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import e2b
import pytest
from e2b import FileType

from tests.e2e.e2b_sdk import E2B


def test_files_go_in_and_out(sandbox: e2b.Sandbox) -> None:
    """(S13) Text, bytes and streams; several files in one call; directories above are made."""
    sandbox.files.write("deep/er/text", "grüße")
    assert sandbox.files.read("deep/er/text") == "grüße"
    data = bytes(range(256)) * 5000
    sandbox.files.write("/home/user/data", data)
    assert bytes(sandbox.files.read("data", format="bytes")) == data
    assert b"".join(sandbox.files.read("data", format="stream")) == data
    written = sandbox.files.write_files([{"path": f"many/{n}", "data": f"no {n}"} for n in range(5)])
    assert [each.path for each in written] == [f"/home/user/many/{n}" for n in range(5)]
    assert sandbox.files.read("many/3") == "no 3"
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""


def test_entries(sandbox: e2b.Sandbox) -> None:
    """(S13) Stat, list to a depth, make, move, remove; a link has the type of its target."""
    sandbox.files.write("tree/a/file", "12345")
    sandbox.commands.run("ln -sf a/file tree/link")
    info = sandbox.files.get_info("tree/a/file")
    assert (info.type, info.size, info.owner, info.permissions) == (FileType.FILE, 5, "user", "-rw-r--r--")
    assert sandbox.files.get_info("tree/link").symlink_target == "/home/user/tree/a/file"
    assert [each.path for each in sandbox.files.list("tree", depth=2)] == [
        "/home/user/tree/a", "/home/user/tree/a/file", "/home/user/tree/link"
    ]  # fmt: skip
    assert sandbox.files.make_dir("tree/new/dir")
    assert not sandbox.files.make_dir("tree/new/dir")
    sandbox.files.rename("tree/a/file", "tree/moved/there")
    assert sandbox.files.exists("tree/moved/there")
    assert not sandbox.files.exists("tree/a/file")
    sandbox.files.remove("tree")
    assert not sandbox.files.exists("tree")


def test_what_is_missing_or_wrong(sandbox: e2b.Sandbox) -> None:
    """(S13) The SDK's own classes for missing files, directories and arguments."""
    with pytest.raises(e2b.FileNotFoundException):
        sandbox.files.read("missing")
    with pytest.raises(e2b.FileNotFoundException):
        sandbox.files.list("missing")
    with pytest.raises(e2b.InvalidArgumentException):
        sandbox.files.read("/home")
    with pytest.raises(e2b.InvalidArgumentException):
        sandbox.files.list("/etc/passwd")


def test_signed_urls(hutch_e2b: E2B, sandbox: e2b.Sandbox) -> None:
    """(S13) A signed URL reads or writes one file; a wrong or an old signature reads nothing."""
    sandbox.files.write("shown", "to you")
    with urllib.request.urlopen(sandbox.download_url("shown", use_signature_expiration=60)) as answer:
        assert answer.read() == b"to you"
    for url, message in (
        (sandbox.download_url("shown", use_signature_expiration=-10), b"signature is already expired"),
        (sandbox.download_url("shown").replace("shown", "other"), b"invalid signature"),
        (f"{hutch_e2b.url}/files?path=shown", b"missing signature query parameter"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url)
        assert refused.value.code == 401
        assert message in refused.value.read()


def test_a_part_of_a_file(hutch_e2b: E2B, sandbox: e2b.Sandbox) -> None:
    """(S13) A Range is answered with that part."""
    sandbox.files.write("long", "0123456789")
    request = urllib.request.Request(sandbox.download_url("long"), headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(request) as answer:
        assert (answer.status, answer.read()) == (206, b"234")


def test_root_writes_where_the_user_may_not(hutch_e2b: E2B, sandbox: e2b.Sandbox, rootless: bool) -> None:
    """(S13) Files follow the rights of the user that a call names; E2B's agent reaches the others as root.

    What it makes there becomes the user's. A key that may not act as root gets no further than the user.
    """
    if rootless:
        pytest.skip("a box of an ordinary user has no root")
    sandbox.files.write("/root/secret", "r", user="root")
    assert sandbox.files.get_info("/root/secret", user="root").owner == "root"
    assert sandbox.files.read("/root/secret") == "r"
    sandbox.files.write("/made/by/agent", "text")
    assert sandbox.commands.run("stat -c %U /made /made/by /made/by/agent").stdout.split() == ["user"] * 3
    ordinary = E2B(hutch_e2b.server, role="user")
    with ordinary.sandbox() as plain, pytest.raises(e2b.SandboxException, match="403"):
        plain.files.write("/made/by/agent", "text")


def test_watchers_see_each_change_once(sandbox: e2b.Sandbox) -> None:
    """(S13) A new file is three events, and what was written before the question is in the answer."""
    sandbox.files.make_dir("watched/below")
    watch = sandbox.files.watch_dir("watched", recursive=True, include_entry=True)
    sandbox.files.write("watched/below/new", "content")
    events = watch.get_new_events()
    assert [(event.type.value, event.name) for event in events] == [
        ("create", "below/new"), ("chmod", "below/new"), ("write", "below/new")
    ]  # fmt: skip
    assert events[0].entry is not None
    assert events[0].entry.path == "/home/user/watched/below/new"
    sandbox.files.rename("watched/below/new", "watched/old")
    sandbox.files.remove("watched/old")
    kinds = [(event.type.value, event.name) for event in watch.get_new_events()]
    assert kinds == [("rename", "below/new"), ("create", "old"), ("remove", "old")]
    watch.stop()
    with pytest.raises(e2b.FileNotFoundException):
        sandbox.files.watch_dir("nowhere")


def test_watchers_of_several_sandboxes_begin_at_once(hutch_e2b: E2B) -> None:
    """(S13) Watchers that begin at the same time do not lose each other."""
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        sandboxes = [stack.enter_context(hutch_e2b.sandbox()) for _ in range(4)]
        for _ in range(5):
            for watch in pool.map(lambda each: each.files.watch_dir("/home/user"), sandboxes):
                assert watch.get_new_events() == []
                watch.stop()


def test_metadata_of_files(sandbox: e2b.Sandbox) -> None:
    """(S13) Metadata is kept with the file, follows it, and is replaced as a whole."""
    metadata = {"author": "me", "stage": "one"}
    assert sandbox.files.write("tagged", "x", metadata=metadata).metadata == metadata
    assert sandbox.files.rename("tagged", "renamed").metadata == metadata
    assert sandbox.files.get_info("renamed").metadata == metadata
    sandbox.files.write("renamed", "y")
    assert sandbox.files.get_info("renamed").metadata is None


def test_compressed_transfers(sandbox: e2b.Sandbox) -> None:
    """(S13) Uploads and downloads may be compressed; a body that is no gzip is refused, and nothing is written."""
    sandbox.files.write("packed", "a" * 100_000, gzip=True)
    assert sandbox.files.read("packed", gzip=True) == "a" * 100_000
    request = urllib.request.Request(
        sandbox.upload_url("broken"),
        b"no gzip",
        {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 400
