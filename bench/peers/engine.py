"""A container engine behind Docker's HTTP API on a Unix socket. Docker, Podman and gVisor are measured through it.

No client library and no command line: one kept connection, one request after the other, as a fast client would.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.peers.errors import PeerFailed
from bench.peers.rootfs import NAME, tarball

IDLE = ["sleep", "infinity"]
TIMEOUT_SECONDS = 120.0


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("engine", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Engine:
    """Containers of one engine and runtime, with the limits that Hutch's default profile has, and no network."""

    def __init__(self, name: str, path: Path, host_config: dict[str, Any]) -> None:
        self.name = name
        self.path = path
        self._host_config = {
            "NetworkMode": "none",
            "Memory": 512 << 20,
            "NanoCpus": 10**9,
            "PidsLimit": 128,
            **host_config,
        }
        self._kept = threading.local()

    def first_command(self) -> tuple[str, float]:
        """A new container and the seconds until its first command had ended: create, start, exec."""
        start = time.perf_counter()
        container = self.create()
        self.exec(container, ["true"])
        return container, time.perf_counter() - start

    def create(self, image: str = NAME) -> str:
        body = {"Image": image, "Cmd": IDLE, "HostConfig": self._host_config}
        container: str = self.call("POST", "/containers/create", body)["Id"]
        self.call("POST", f"/containers/{container}/start")
        return container

    def exec(self, container: str, argv: Sequence[str], take: Callable[[bytes], object] = len) -> None:
        """Create the exec, read its output to the end, ask for its exit code."""
        asked = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(argv)}
        number = self.call("POST", f"/containers/{container}/exec", asked)["Id"]
        # The engine answers with a raw stream that ends with the connection, so it gets one of its own.
        connection = Connection(self.path)
        try:
            response = self._ask(connection, "POST", f"/exec/{number}/start", {"Detach": False, "Tty": False})
            while piece := response.read1(1 << 20):
                take(piece)
        finally:
            connection.close()
        code = self.call("GET", f"/exec/{number}/json")["ExitCode"]
        if code != 0:
            raise PeerFailed(f"{self.name}: {argv[0]} ended with {code}")

    def hash_output(self, container: str, argv: Sequence[str]) -> float:
        """Seconds to run a command and to read and hash all that it wrote."""
        start = time.perf_counter()
        self.exec(container, argv, sha256().update)
        return time.perf_counter() - start

    def remove(self, container: str) -> None:
        self.call("DELETE", f"/containers/{container}?force=true&v=true")

    def remove_all(self) -> None:
        for container in self.call("GET", "/containers/json?all=true"):
            self.remove(container["Id"])

    def load_image(self) -> None:
        connection = Connection(self.path)
        try:
            with tarball().open("rb") as image:
                kind = {"Content-Type": "application/x-tar"}
                connection.request("POST", f"/images/create?fromSrc=-&repo={NAME}&tag=latest", image, kind)
                answer = connection.getresponse()
                text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 300 or '"error"' in text:
            raise PeerFailed(f"{self.name} did not take the image: {text[-300:]}")

    def version(self) -> str:
        return str(self.call("GET", "/version")["Version"])

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One request over this thread's kept connection."""
        connection = getattr(self._kept, "connection", None)
        if connection is None:
            connection = self._kept.connection = Connection(self.path)
        text = self._ask(connection, method, path, body).read()
        return json.loads(text) if text else None

    def _ask(self, connection: Connection, method: str, path: str, body: object) -> http.client.HTTPResponse:
        sent = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise PeerFailed(f"{self.name}: {method} {path}: {error}") from error
        if response.status >= 300:
            reason = response.read().decode(errors="replace").strip()[:300]
            raise PeerFailed(f"{self.name}: {method} {path}: {response.status} {reason}")
        return response
