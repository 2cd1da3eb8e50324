"""A box with the program of `app.py`, its preview, and a visitor who speaks to it through the server's own port."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.server.serving import TIMEOUT_SECONDS, Answer, Client, until

APP = (Path(__file__).parent / "app.py").read_bytes()
PORT = 8000


@dataclass(frozen=True)
class Preview:
    """One preview as its owner got it."""

    client: Client
    path: str
    """The path of its box in the API."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return urlsplit(self.facts["url"]).netloc

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    @property
    def token(self) -> str:
        text: str = self.facts["token"]
        return text

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.host.rpartition(":")[2])

    def open(self, method: str, target: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """Send a request with exactly these headers beside Host; close the answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_SECONDS)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, body, {"Host": self.host, **given})
        return connection.getresponse()

    def visit(self, method: str, target: str, body: Any = None, **headers: str) -> Answer:
        """Visit with the token in its header, unless another is given."""
        given = {"Hutch_Preview": self.token, **headers}
        with self.open(method, target, body, **{k: v for k, v in given.items() if v}) as response:
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def echo(self, target: str = "/echo", method: str = "GET", body: Any = None, **headers: str) -> dict[str, Any]:
        """What the program in the box saw."""
        answer = self.visit(method, target, body, **headers)
        assert answer.status == 200, answer
        seen: dict[str, Any] = json.loads(answer.body)
        seen["headers"] = {name.lower(): value for name, value in seen["headers"]}
        return seen


@contextmanager
def previewed(client: Client, port: int = PORT, *, start: bool = True, **spec: Any) -> Iterator[Preview]:
    """A box whose program listens, and a preview of it."""
    with client.box(**spec) as path:
        if start:
            start_app(client, path, port)
        yield Preview(client, path, client.good("POST", f"{path}/ports/{port}/url", {}))


def start_app(client: Client, path: str, port: int = PORT) -> str:
    """Start the program, wait until it listens, and return its job."""
    client.good("PUT", f"{path}/files/content?path=app.py", APP)
    job: str = client.good("POST", f"{path}/jobs", {"command": ["python3", "app.py", str(port)]})["id"]
    until(lambda: port in [each["port"] for each in client.good("GET", f"{path}/ports")["ports"]])
    return job
