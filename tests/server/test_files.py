"""Files over HTTP: any size up and down, ranges, uploads that break off."""

import hashlib
import json
import os
import socket

from tests.server.serving import Client, until


def test_large_files_go_up_and_down_unchanged(client: Client) -> None:
    with client.box() as box:
        content = os.urandom(1 << 20) * 48
        info = client.good("PUT", f"{box}/files/content?path=deep/big&mode=640", content)
        assert (info["size"], info["mode"] & 0o777) == (len(content), 0o640)
        got = client.call("GET", f"{box}/files/content?path=deep/big")
        assert got.headers["content-length"] == str(len(content))
        assert hashlib.sha256(got.body).digest() == hashlib.sha256(content).digest()
        answer = client.good("POST", f"{box}/exec", {"command": ["sha256sum", "deep/big"]})["stdout"]
        assert answer.split()[0] == hashlib.sha256(content).hexdigest()


def test_ranges(client: Client) -> None:
    """RFC 9110: one part as 206, beyond the end 416, what is not understood is ignored."""
    with client.box() as box:
        path = f"{box}/files/content?path=f"
        client.good("PUT", path, b"0123456789")
        for asked, answer, body in (
            ("bytes=2-4", "bytes 2-4/10", b"234"),
            ("bytes=7-", "bytes 7-9/10", b"789"),
            ("bytes=-3", "bytes 7-9/10", b"789"),
            ("bytes=-99", "bytes 0-9/10", b"0123456789"),
            ("bytes=8-99", "bytes 8-9/10", b"89"),
        ):
            got = client.call("GET", path, range=asked)
            assert (got.status, got.headers["content-range"], got.body) == (206, answer, body), asked
        beyond = client.call("GET", path, range="bytes=10-")
        assert (beyond.status, beyond.headers["content-range"]) == (416, "bytes */10")
        assert client.call("GET", path, range="bytes=-0").status == 416
        for ignored in ("bytes=1-2,4-5", "lines=1-2", "bytes=-"):
            got = client.call("GET", path, range=ignored)
            assert (got.status, got.body) == (200, b"0123456789")
        assert client.call("GET", path, range="bytes=5-2").status == 400


def test_files_without_a_size_are_read_whole(client: Client) -> None:
    """What the kernel makes up while it is read, and what a link points to."""
    with client.box() as box:
        assert b"Uid:" in client.call("GET", f"{box}/files/content?path=/proc/self/status").body
        client.good("PUT", f"{box}/files/content?path=empty", b"")
        assert client.call("GET", f"{box}/files/content?path=empty").body == b""
        client.good("POST", f"{box}/exec", {"command": "echo linked > target; ln -s target link"})
        assert client.call("GET", f"{box}/files/content?path=link").body == b"linked\n"


def test_an_upload_that_breaks_off_changes_nothing(client: Client) -> None:
    """The old content stays, and nothing half written is left beside it (lesson 21)."""
    with client.box() as box:
        path = f"{box}/files/content?path=f"
        client.good("PUT", path, b"old")
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(client.address))
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        raw.sendall(head.encode() + b"new" * 100_000)

        def names() -> list[str]:
            found = client.good("POST", f"{box}/exec", {"command": "ls -A --ignore=.skills"})["stdout"].split()
            assert "f" in found
            return list(found)

        until(lambda: len(names()) > 1)
        raw.close()
        until(lambda: names() == ["f"])
        assert client.call("GET", path).body == b"old"


def test_changes_are_sent_as_they_happen(client: Client) -> None:
    """The first line says that the watch is in place; a client that disconnects ends it."""
    with client.box() as box:
        connection, response = client.open("GET", f"{box}/files/watch?path=.")
        assert json.loads(response.readline()) == {"watching": True}
        client.good("PUT", f"{box}/files/content?path=new/file", b"x")
        found = json.loads(response.readline())
        assert (found["kind"], found["path"].rpartition("/")[2], found["directory"]) == ("created", "new", True)
        connection.close()
        until(lambda: client.call("POST", f"{box}/pause").status == 200)  # nothing works on the box any more
        missing = client.call("GET", f"{box}/files/watch?path=none")
        assert (missing.status, missing.json()["code"]) == (404, "file_not_found")


def test_operations(client: Client) -> None:
    with client.box() as box:
        client.good("PUT", f"{box}/files/content?path=a/b.txt", b"one\ntwo\n")
        client.good("PUT", f"{box}/files/content?path=a/b.txt&append=true", b"three\n")
        assert client.good("GET", f"{box}/files/lines?path=a/b.txt&start=2&count=1") == {"lines": ["two"], "end": False}
        assert client.good("GET", f"{box}/files?path=a")["files"][0]["path"].endswith("b.txt")
        digest = client.good("POST", f"{box}/files/digest", {"path": "a/b.txt"})["digest"]
        edit = {"path": "a/b.txt", "old": "two", "new": "2", "expect": digest}
        assert client.good("POST", f"{box}/files/edit", edit)["replaced"] == 1
        stale = client.call("POST", f"{box}/files/edit", edit)
        assert (stale.status, stale.json()["code"]) == (409, "file_changed")
        missing = client.call("POST", f"{box}/files/edit", {"path": "a/b.txt", "old": "nine", "new": ""})
        assert (missing.status, missing.json()["code"]) == (422, "no_match")
        assert client.good("POST", f"{box}/files/grep", {"pattern": "^thr"})["hits"][0]["line"] == 3
        client.good("POST", f"{box}/files/move", {"source": "a/b.txt", "target": "c"})
        assert client.good("POST", f"{box}/files/glob", {"pattern": "**/*"})["paths"]
        client.good("DELETE", f"{box}/files/content?path=c")
        gone = client.call("DELETE", f"{box}/files/content?path=c")
        assert (gone.status, gone.json()["code"]) == (404, "file_not_found")
        client.good("DELETE", f"{box}/files/content?path=c&missing_ok=true")
