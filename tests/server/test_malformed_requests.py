"""Nonsense from a caller who has a key: every route answers with a typed error, never with a defect of ours."""

import json
import random
import socket
from typing import Any
from urllib.parse import quote

from hutch.model.record import Record
from hutch.server.routes import ROUTES, Route
from tests.server.serving import Client, Server

STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 2**63, 2**70, "", "\0", "\ud800", "a" * 5000, "../../../etc/passwd", "/proc/self/mem",
    "%00", "'; --", [], {}, [None], [[]], {"a": 1}, ["\0"], ["a", 1], "ü" * 300, "-1", "nan", "1e999",
)  # fmt: skip
BODIES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    b'{"a":',
    b"{}" * 10,
    b"[" * 100_000,
    b'{"command": "\\ud800"}',
)

BODIED = ("POST", "PUT", "PATCH")
"""The methods whose requests have a body; the others are the same whatever it would be."""

USUAL: dict[str, Any] = {
    "command": "true", "pattern": "f", "path": "f", "source": "f", "target": "g", "old": "a", "new": "b",
    "rows": 1, "cols": 1,
}  # fmt: skip
"""Without these a body is refused before anything else is checked."""


def test_nonsense_is_refused_by_name(server: Server, client: Client) -> None:
    """No 5xx, and every error in its one shape."""
    chance = random.Random(4)
    with client.box(disk_mb=16) as box:
        job = client.good("POST", f"{box}/jobs", {"command": "echo some output"})["id"]
        client.good("POST", f"{box}/jobs/{job}/wait", {})
        for route in ROUTES:
            if route.path.endswith(("/watch", "/live", "/shutdown")):  # They have no end, or end the server.
                continue
            used = "a" * 20 if route.op == "DELETE /v1/boxes/{box}" else box.rpartition("/")[2]
            for body in BODIES if route.method in BODIED else BODIES[:1]:
                path = _path(route, chance, used, job, strange=0)
                _check(client, route, path, body)
            for _ in range(25):
                path = _path(route, chance, used, job, strange=0.3)
                _check(client, route, path, _body(route, chance))
        assert client.good("POST", f"{box}/exec", {"command": "echo well"})["stdout"] == "well\n"
    log = server.log.read_text()
    assert "defect" not in log, log[log.index("defect") :][:2000]


def _check(client: Client, route: Route, path: str, body: bytes) -> None:
    answer = client.call(route.method, path, body if route.method in BODIED else None)
    assert answer.status < 500, (route.op, path, body[:200], answer)
    if answer.status >= 400 and answer.status != 416:
        assert answer.json()["code"], (route.op, answer)
    elif route.op == "POST /v1/boxes":
        client.good("DELETE", answer.headers["location"])


def test_what_is_not_http_is_dropped(server: Server) -> None:
    """Raw bytes, endless headers, a body that never comes: the server lives on."""
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00" * 10,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/boxes HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /v1/boxes HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"b" * 200_000 + b"\r\n\r\n",
        b"POST /v1/boxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/boxes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ):
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(server.run / "server.sock"))
        raw.sendall(sent)
        raw.close()
    assert server.unix().call("GET", "/healthz").status == 200
    assert "defect" not in server.log.read_text()


def _path(route: Route, chance: random.Random, box: str, job: str, strange: float) -> str:
    values = {"box": box, "job": job, "key": "k", "volume": "v", "skill": "s", "group": "g", "operation": "o",
              "question": "q", "image": "i", "mcp_server": "m", "checkpoint": "c", "kernel": "k", "port": "8000",
              "preview": "p"}  # fmt: skip
    if chance.random() < strange / 3:
        name = chance.choice(list(values))
        values[name] = quote(str(chance.choice(STRANGE)).encode("utf-8", "replace"), safe="") or "x"
    path = route.path.format(**values)
    fields = getattr(route.query, "__struct_fields__", ())
    words = ["path=f"] if "path" in fields else []
    if chance.random() < strange:
        name = chance.choice(fields or ("nothing",))
        words = [word for word in words if name != "path"]
        words.append(f"{name}={quote(str(chance.choice(STRANGE)).encode('utf-8', 'replace'))}")
    return path + ("?" + "&".join(words) if words else "")


def _body(route: Route, chance: random.Random) -> bytes:
    fields = route.body.__struct_fields__ if isinstance(route.body, type) and issubclass(route.body, Record) else ()
    names = fields or ("image", "memory_mb", "env", "mounts", "labels", "network", "workspace", "ports", "name")
    chosen: dict[str, Any] = {}
    for name in names:
        if name in USUAL and chance.random() < 0.7:
            chosen[name] = USUAL[name]
        elif name in USUAL or chance.random() < 0.5:
            chosen[name] = chance.choice(STRANGE)
    return json.dumps(chosen).encode()
