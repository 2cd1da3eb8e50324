"""A token server for a registry with Bearer tokens: it signs what the registry checks with a certificate."""

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

ISSUER, SERVICE = "tests", "registry-of-tests"


class Tokens:
    """Issues tokens to clients that know the password, and records the requests."""

    def __init__(self, home: Path, user: str, password: str) -> None:
        self._key, self.certificate = home / "token.key", home / "token.crt"
        self._basic = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.asked: list[str] = []
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests",
             "-keyout", str(self._key), "-out", str(self.certificate)],
            check=True, capture_output=True,
        )  # fmt: skip

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if authorization != self._basic:
            return 401, b"{}"
        scope = parse_qs(urlsplit(path).query)["scope"][0]
        kind, name, actions = scope.split(":")
        access = [{"type": kind, "name": name, "actions": actions.split(",")}]
        return 200, json.dumps({"token": self._signed(access), "expires_in": 300}).encode()

    def _signed(self, access: list[dict[str, object]]) -> str:
        body = "".join(line for line in self.certificate.read_text().splitlines() if "-----" not in line)
        now = int(time.time())
        claims = {
            "iss": ISSUER, "aud": SERVICE, "sub": "", "iat": now, "nbf": now - 60, "exp": now + 300, "jti": "1",
            "access": access,
        }  # fmt: skip
        parts = [{"typ": "JWT", "alg": "RS256", "x5c": [body]}, claims]
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        signing = ["openssl", "dgst", "-sha256", "-sign", str(self._key)]
        return (
            f"{text}.{_encoded(subprocess.run(signing, input=text.encode(), check=True, capture_output=True).stdout)}"
        )


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@contextmanager
def tokens(home: Path, user: str, password: str) -> Iterator[tuple[Tokens, str]]:
    """Yield the server and its address."""
    home.mkdir(parents=True, exist_ok=True)
    giving = Tokens(home, user, password)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, data = giving.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield giving, f"http://127.0.0.1:{server.server_address[1]}/token"
        finally:
            server.shutdown()
            thread.join()
