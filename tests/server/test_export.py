"""Boxes as streams of bytes: exported from one place and imported in another, over HTTP, by the client, without
`await`, and by the command line; what is no exported box, or too large, leaves nothing."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import FileMissing, Refused
from hutch.sync import Hutch as SyncHutch
from tests.keeper.killed_keepers import house
from tests.server.serving import Client, serving, until

SMALL = {"memory_mb": 64, "disk_mb": 32}


async def test_a_box_moves_between_a_process_and_a_server(tmp_path: Path) -> None:
    """Both sides have the same two methods, and each reads the other's file (B21)."""
    with serving() as server, house() as place:
        async with place.opened() as here, Hutch(f"unix:{server.run}/server.sock") as there:
            async with here.box(**SMALL, labels={"a": "b"}) as box:
                await box.files.write("deep/data", b"x" * 300_000)
                out = await box.export(tmp_path / "one.hutch")
            assert "workspace" in out.parts and out.size == (tmp_path / "one.hutch").stat().st_size
            moved = await there.import_box(tmp_path / "one.hutch", name="moved")
            assert await moved.files.read("deep/data") == b"x" * 300_000
            assert (moved.spec.labels, moved.spec.name) == ({"a": "b"}, "moved")
            assert (await moved.exec("echo works")).stdout == "works\n"
            await moved.files.write("more", "2")
            out = await moved.export(tmp_path / "two.hutch")
            assert out.box_id == moved.id and "workspace" in out.parts
            assert (tmp_path / "two.hutch").stat().st_mode & 0o777 == 0o600
            back = await here.import_box(str(tmp_path / "two.hutch"))
            assert await back.files.read_text("more") == "2"
            observed = await there.observe(moved.id)
            with pytest.raises(Refused):
                await observed.export(tmp_path / "three.hutch")
            with pytest.raises(FileMissing):
                await there.import_box(tmp_path / "missing")
            assert sorted(path.name for path in tmp_path.iterdir()) == ["one.hutch", "two.hutch"], "no drafts"
            await back.destroy()
            await moved.destroy()


def test_the_same_without_await(tmp_path: Path) -> None:
    with serving() as server, SyncHutch(f"unix:{server.run}/server.sock") as hutch:
        with hutch.box(**SMALL) as box:
            box.files.write("a", "1")
            box.export(tmp_path / "box.hutch")
        again = hutch.import_box(tmp_path / "box.hutch")
        assert again.files.read_text("a") == "1"
        again.destroy()


def test_plain_http(tmp_path: Path) -> None:
    """A length that was promised, a header that says what is inside, and the body as it came makes a box."""
    with serving() as server:
        client = server.unix()
        with client.box(**SMALL) as path:
            client.good("PUT", f"{path}/files/content?path=a", b"content")
            answer = client.call("GET", f"{path}/export")
        assert answer.status == 200 and int(answer.headers["content-length"]) == len(answer.body)
        assert json.loads(answer.headers["hutch-moved"])["size"] == len(answer.body)
        made = client.call("POST", "/v1/boxes/import?name=again", answer.body)
        assert made.status == 201 and made.headers["location"].endswith(made.json()["box"]["id"])
        assert client.call("GET", f"{made.headers['location']}/files/content?path=a").body == b"content"
        before = _boxes(client)
        for body in (b"", b"no gzip", answer.body[: len(answer.body) // 2]):
            refused = client.call("POST", "/v1/boxes/import", body)
            assert (refused.status, refused.json()["code"]) == (400, "invalid"), refused
        assert _boxes(client) == before
        assert not list((server.state / "spool").iterdir()), "nothing of it stays"


def test_a_stream_that_would_unpack_to_more_than_an_upload_is_refused() -> None:
    """A few kilobytes of zeros must not fill the server's disk."""
    with serving(HUTCH_SERVER_MAX_UPLOAD_MB="1") as server:
        client, packed = server.unix(), io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            entry = tarfile.TarInfo("workspace/zeros")
            entry.size = 8 << 20
            tar.addfile(entry, io.BytesIO(bytes(entry.size)))
        assert len(packed.getvalue()) < 1 << 20
        answer = client.call("POST", "/v1/boxes/import", packed.getvalue())
        assert answer.json()["code"] == "quota", answer
        assert client.call("POST", "/v1/boxes/import", bytes(2 << 20)).status == 413
        assert _boxes(client) == []


def test_a_client_that_disconnects_gets_no_box() -> None:
    """An import that nobody waits for any more is undone, as a creation is: its box would stay until it is idle."""
    with serving() as server:
        client = server.unix()
        with client.box(**SMALL, env={"BASH_ENV": "/workspace/first"}) as path:
            whole = client.call("GET", f"{path}/export").body
        connection = client.connect()
        connection.request("POST", "/v1/boxes/import", _with_first(whole, b"touch /workspace/begun; sleep 1000"))
        box = until(lambda: _boxes(client))[0]
        until(lambda: client.call("GET", f"/v1/boxes/{box}/files/stat?path=begun").status == 200)
        connection.close()
        until(lambda: not _boxes(client))
        until(lambda: not list((server.state / "spool").iterdir()))
        until(lambda: any(line in server.log.read_text() for line in ('"status": 499', "status=499")))


def _with_first(packed: bytes, script: bytes) -> bytes:
    """The same box with one file more in its workspace, which every shell of it runs first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(packed)) as source, tarfile.open(fileobj=out, mode="w:gz") as target:
        for entry in source:
            target.addfile(entry, source.extractfile(entry) if entry.isreg() else None)
        first = tarfile.TarInfo("workspace/first")
        first.size = len(script)
        target.addfile(first, io.BytesIO(script))
    return out.getvalue()


def _boxes(client: Client) -> list[str]:
    return sorted(box["id"] for box in client.good("GET", "/v1/boxes")["boxes"])
