"""A real `hutch serve` in a process of its own, and a client that speaks plain HTTP to it."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.conftest import remove

T = TypeVar("T")

TIMEOUT_SECONDS = 60.0
GRACE = "60"
"""Seconds after which boxes of a killed server end by themselves."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A caller: the address of the server, and the headers of every request."""

    def __init__(self, address: str | tuple[str, int], **headers: str) -> None:
        self.address = address
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def saying(self, **headers: str) -> "Client":
        return Client(self.address, **{**self.headers, **headers})

    def connect(self) -> http.client.HTTPConnection:
        if isinstance(self.address, str):
            connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_SECONDS)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(TIMEOUT_SECONDS)
            connection.sock.connect(self.address)
            return connection
        return http.client.HTTPConnection(*self.address, timeout=TIMEOUT_SECONDS)

    def open(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """For answers that are read piece by piece; close the connection."""
        connection = self.connect()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request(method, path, data, {**self.headers, **given})
        return connection, connection.getresponse()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection, response = self.open(method, path, body, **headers)
        try:
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def good(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The JSON of an answer that must be good; None if it is empty."""
        answer = self.call(method, path, body, **headers)
        assert 200 <= answer.status < 300, (method, path, answer.status, answer.body)
        return answer.json() if answer.body else None

    @contextmanager
    def box(self, **spec: Any) -> Iterator[str]:
        """The path of a new box."""
        path = "/v1/boxes/" + self.good("POST", "/v1/boxes", spec)["id"]
        try:
            yield path
        finally:
            self.call("DELETE", f"{path}?force=true")


class Server:
    """One state directory, and the servers that were started on it one after the other."""

    program: tuple[str, ...] = ("-m", "hutch.cli.main")

    def __init__(self, **settings: str) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
        self.top.chmod(0o755)
        self.state, self.run = self.top / "s", self.top / "r"
        self.log = self.top / "log"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, patience: float = TIMEOUT_SECONDS, **settings: str) -> None:
        self._settings |= settings
        environ = {**os.environ, "HUTCH_STATE_DIR": str(self.state), "HUTCH_RUN_DIR": str(self.run)}
        environ |= {"HUTCH_ORPHAN_GRACE_SEC": GRACE, **self._settings}
        command = [sys.executable, *self.program, "serve", "--verbose", "--port", "0", *options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        process = self._process

        def announced() -> bool:
            assert process.poll() is None, self.log.read_text()
            return (self.state / "server.json").exists()

        until(announced, patience)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def announcement(self) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads((self.state / "server.json").read_text())
        return reply

    def wait(self) -> int:
        """Wait for a server that was asked to end; return its exit code."""
        assert self._process is not None
        return self._process.wait(TIMEOUT_SECONDS)

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(TIMEOUT_SECONDS)

    def unix(self, **headers: str) -> Client:
        return Client(str(self.run / "server.sock"), **headers)

    def tcp(self, key: str = "", **headers: str) -> Client:
        host, _, port = self.announcement["url"].removeprefix("http://").partition(":")
        given = {"authorization": f"Bearer {key}"} if key else {}
        return Client((host, int(port)), **given, **headers)

    def key(self, role: str, owner: str) -> str:
        text: str = self.unix().good("POST", "/v1/keys", {"role": role, "owner": owner})["text"]
        return text

    def close(self) -> None:
        """End the boxes, then the server, then its directories."""
        if self._process is not None and self._process.poll() is None:
            admin = self.unix(hutch_admin="yes")
            for box in admin.good("GET", "/v1/boxes")["boxes"]:
                admin.call("DELETE", f"/v1/boxes/{box['id']}?force=true")
            self.end()
        if self.top.exists():
            remove(self.top)
            shutil.rmtree(self.top, ignore_errors=True)


@contextmanager
def serving(*options: str, **settings: str) -> Iterator[Server]:
    server = Server(**settings)
    try:
        server.start(*options)
        yield server
    finally:
        server.close()


def certificate(directory: Path) -> tuple[Path, Path]:
    """The files of a self-signed certificate for 127.0.0.1 and of its key."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"openssl cannot make a certificate: {made.stderr!r}")
    return cert, key


def until(found: Callable[[], T], patience: float = TIMEOUT_SECONDS) -> T:
    """Poll until the answer is true, and return it."""
    end = time.monotonic() + patience
    while not (answer := found()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return answer
