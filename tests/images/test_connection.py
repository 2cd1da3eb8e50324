"""Requests to registries: a secret goes only to the host it is for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from hutch.errors import HutchError, Refused
from hutch.images.connection import ConnectionRules, is_public, request
from hutch.images.credentials import Credentials
from hutch.images.pull import PullOptions, pull
from hutch.images.settings import ImageSettings, RegistrySettings
from hutch.images.store import Store

Seen = list[tuple[str, str | None, bytes]]


@contextmanager
def server(seen: Seen, onwards: str = "", challenge: str = "") -> Iterator[str]:
    """Records what it receives, and redirects the client or asks it to authenticate."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.command, self.headers.get("Authorization"), body))
            self.send_response(307 if onwards else 401 if challenge else 200)
            if challenge:
                self.send_header("WWW-Authenticate", challenge)
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


def rules(*urls: str) -> ConnectionRules:
    return ConnectionRules(10.0, {urlsplit(url).netloc: RegistrySettings() for url in urls})


def test_a_redirect_to_another_host_carries_neither_password_nor_token() -> None:
    first: Seen = []
    second: Seen = []
    with server(second) as other, server(first, other) as realm:
        answer = request(
            realm, rules(realm, other), {"Authorization": "Basic x"}, method="POST", body=b"refresh_token=y"
        )
        answer.close()
    assert first == [("POST", "Basic x", b"refresh_token=y")]
    assert second == [("GET", None, b"")]


@pytest.mark.parametrize(
    "spelled",
    [
        "http://127.0.0.1:{port}/", "https://127.0.0.1:{port}/", "http://localhost:{port}/", "https://localhost:{port}/",
        "http://[::1]:{port}/", "https://[::ffff:127.0.0.1]:{port}/", "https://[64:ff9b::7f00:1]:{port}/",
        "https://[2002:7f00:1::]:{port}/", "https://2130706433:{port}/", "https://0x7f.1:{port}/", "https://0:{port}/",
        "https://name@127.0.0.1:{port}/", "http://10.0.0.1:{port}/", "https://10.0.0.1:{port}/",
        "https://169.254.169.254/latest/meta-data/", "https://[fe80::1]/", "https://[fd00::1]/", "https://100.64.0.1/",
        "https://224.0.0.1/", "ftp://127.0.0.1:{port}/", "https://127.0.0.1:99999/", "https:///", "https://a..b/",
    ],
)  # fmt: skip
def test_a_registry_cannot_send_us_to_what_only_we_can_reach(spelled: str, store: Store) -> None:
    """A private host is never contacted, neither by a redirect nor by any spelling of its address."""
    reached: Seen = []
    asked: Seen = []
    with server(reached) as inner:
        onwards = spelled.format(port=urlsplit(inner).port)
        with server(asked, onwards) as registry:
            with pytest.raises(Refused):
                pull(store, f"{urlsplit(registry).netloc}/some/image")
    assert len(asked) == 1 and reached == []


def test_a_token_server_is_no_way_around_it(store: Store) -> None:
    reached: Seen = []
    with server(reached) as inner, server([], challenge=f'Bearer realm="{inner}",service="x"') as registry:
        name = f"{urlsplit(registry).netloc}/some/image"
        with pytest.raises(Refused, match="not public") as caught:
            pull(store, name, PullOptions(credentials=Credentials("ann", "a-password-of-ann")))
        assert reached == [] and urlsplit(inner).netloc in caught.value.remedy
        store.settings = ImageSettings(tries=1, registries={urlsplit(inner).netloc: RegistrySettings()})
        with pytest.raises(HutchError, match="did not return a token"):
            pull(store, name)
        assert len(reached) == 1, "with a table of its own it is asked"


@pytest.mark.parametrize(
    ("address", "public"),
    [("8.8.8.8", True), ("2001:4860:4860::8888", True), ("64:ff9b::808:808", True), ("10.1.2.3", False),
     ("127.0.0.1", False), ("0.0.0.0", False), ("169.254.1.1", False), ("::", False), ("::1", False),
     ("::ffff:10.0.0.1", False), ("fe80::1%lo", False), ("ff02::1", False), ("192.168.0.1", False)],
)  # fmt: skip
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public
