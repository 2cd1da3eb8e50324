"""Requests to registries: what is secret goes to the host it is for, and to no other."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hutch.images.connection import Rules, request

Seen = list[tuple[str, str | None, bytes]]


@contextmanager
def server(seen: Seen, onwards: str = "") -> Iterator[str]:
    """Notes what it is sent, and sends whoever asks onwards."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.command, self.headers.get("Authorization"), body))
            self.send_response(307 if onwards else 200)
            if onwards:
                self.send_header("Location", onwards)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}/"
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def test_a_redirect_to_another_host_carries_neither_password_nor_token() -> None:
    first: Seen = []
    second: Seen = []
    with server(second) as other, server(first, other) as realm:
        answer = request(
            realm, Rules(False, 10.0, local=True), {"Authorization": "Basic x"}, method="POST", body=b"refresh_token=y"
        )
        answer.close()
    assert first == [("POST", "Basic x", b"refresh_token=y")]
    assert second == [("GET", None, b"")]
