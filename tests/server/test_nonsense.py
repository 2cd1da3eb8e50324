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
    None, True, 0, -1, 1e308, 2**63, 2**70, "", "\0", "\ud800", "a" * 5000, "../../../etc/passwd", "/proc/self/mem", "%00",
    "'; --", [], {}, [None], [[]], {"a": 1}, ["\0"], ["a", 1], "ü" * 300, "-1", "nan", "1e999",
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


def test_nonsense_is_refused_by_name(server: Server, client: Client) -> None:
    """No 5xx, and every error in its one shape."""
    chance = random.Random(4)
    with client.box(disk_mb=16) as box:
        job = client.good("POST", f"{box}/jobs", {"command": "sleep 1000"})["id"]
        for route in ROUTES:
            if route.path in ("/v1/keys", "/v1/volumes", "/v1/session/current") and route.method != "GET":
                tries = 5
            else:
                tries = 25
            for number in range(tries):
                path = _path(route, chance, box.rpartition("/")[2], job)
                body = BODIES[number % len(BODIES)] if number < len(BODIES) else _body(route, chance)
                answer = client.call(route.method, path, body if route.method in ("POST", "PUT") else None)
                assert answer.status < 500, (route.op, path, body[:200], answer)
                if answer.status >= 400 and answer.status != 416:
                    assert answer.json()["code"], (route.op, answer)
                elif route.op == "POST /v1/boxes":
                    client.good("DELETE", answer.headers["location"])
    for key in client.good("GET", "/v1/keys")["keys"]:
        assert key["role"] in ("admin", "user", "observer")
    log = server.log.read_text()
    assert "defect" not in log, log[log.index("defect") :][:2000]


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


def _path(route: Route, chance: random.Random, box: str, job: str) -> str:
    values = {"box": box, "job": job, "key": "k", "volume": "v"}
    if chance.random() < 0.2:
        name = chance.choice(list(values))
        values[name] = quote(str(chance.choice(STRANGE)).encode("utf-8", "replace"), safe="") or "x"
    path = route.path.format(**values)
    fields = getattr(route.query, "__struct_fields__", ())
    chosen = [name for name in fields if name == "path" or chance.random() < 0.4]
    words = [f"{name}={quote(str(chance.choice(STRANGE)).encode('utf-8', 'replace'))}" for name in chosen]
    return path + ("?" + "&".join(words) if words else "")


def _body(route: Route, chance: random.Random) -> bytes:
    fields = route.body.__struct_fields__ if isinstance(route.body, type) and issubclass(route.body, Record) else ()
    names = (
        [*fields]
        if fields
        else ["image", "memory_mb", "env", "mounts", "labels", "network", "workspace", "ports", "name"]
    )
    chosen = {name: chance.choice(STRANGE) for name in names if chance.random() < 0.6}
    return json.dumps(chosen).encode()
