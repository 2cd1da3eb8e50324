"""Requests with odd framing reach the box as one request or none, and what it answers as one answer or an error."""

import base64
import json
import socket
from collections.abc import Iterator

import pytest

from tests.server.previews.preview_box import Preview, previewed
from tests.server.serving import TIMEOUT_SECONDS, Server

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n"
ODD_REQUESTS: dict[str, bytes] = {
    "length and chunks": b"{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"{post}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two equal lengths": b"{post}Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "two lengths": b"{post}Content-Length: 0\r\nContent-Length: 40\r\n\r\n",
    "a list of lengths": b"{post}Content-Length: 0, 40\r\n\r\n",
    "a negative length": b"{post}Content-Length: -1\r\n\r\n",
    "a signed length": b"{post}Content-Length: +5\r\n\r\n",
    "a hexadecimal length": b"{post}Content-Length: 0x10\r\n\r\n",
    "an empty length": b"{post}Content-Length: \r\n\r\n",
    "a huge length": b"{post}Content-Length: 99999999999999999999999\r\n\r\n",
    "a space before the colon": b"{post}Content-Length : 40\r\n\r\n",
    "a tab before the colon": b"{post}Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "a vertical tab in the coding": b"{post}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "xchunked": b"{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"{post}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked, identity": b"{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two codings": b"{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "gzip, chunked": b"{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "capital CHUNKED": b"{post}Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n",
    "a quoted coding": b'{post}Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "a folded coding": b"{post}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"{post}X-Odd: a\r\n Content-Length: 40\r\n\r\n",
    "bare line feeds": b"POST /odd HTTP/1.1\n{common}Content-Length: 0\n\n",
    "a bare carriage return": b"{post}X-Odd: a\rContent-Length: 40\r\n\r\n",
    "a NUL in a value": b"{post}X-Odd: a\x00b\r\n\r\n",
    "a NUL in a name": b"{post}X-O\x00dd: a\r\n\r\n",
    "a header without colon": b"{post}Content-Length 40\r\n\r\n",
    "an empty name": b"{post}: 40\r\n\r\n",
    "a chunk extension": b"{post}Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n",
    "a chunk extension with a line feed": (b"{post}Transfer-Encoding: chunked\r\n\r\n1;\nxx\r\nx\r\n0\r\n\r\n"),
    "a chunk longer than said": b"{post}Transfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n0\r\n\r\n",
    "a chunk of odd size": b"{post}Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n",
    "a chunk of huge size": b"{post}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff1\r\nx\r\n",
    "a trailer": b"{post}Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 40\r\n\r\n",
    "a body for GET": b"GET /odd HTTP/1.1\r\n{common}Content-Length: 4\r\n\r\nbody",
    "an absolute target": b"GET http://other.example/odd HTTP/1.1\r\n{common}\r\n",
    "a target with a space": b"GET /odd /smuggled HTTP/1.1\r\n{common}\r\n",
    "a target with a line break": b"GET /odd\r\nX: y HTTP/1.1\r\n{common}\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\n{common}\r\n",
    "CONNECT": b"CONNECT /odd HTTP/1.1\r\n{common}\r\n",
    "TRACE": b"TRACE /odd HTTP/1.1\r\n{common}\r\n",
    "an unknown method": b"SMUGGLE /odd HTTP/1.1\r\n{common}\r\n",
    "HTTP/0.9": b"GET /odd\r\n",
    "HTTP/1.0 with chunks": b"POST /odd HTTP/1.0\r\n{common}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an upgrade to h2c": b"GET /odd HTTP/1.1\r\n{common}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    "two hosts": b"GET /odd HTTP/1.1\r\n{common}Host: other.example\r\n\r\n",
    "headers named by Connection": b"GET /odd HTTP/1.1\r\n{common}Connection: close, X-Odd, Host\r\nX-Odd: 1\r\n\r\n",
    "Expect": b"{post}Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
}


@pytest.fixture(scope="module")
def preview(server: Server) -> Iterator[Preview]:
    with previewed(server.tcp(server.key("user", "framing"))) as made:
        yield made


@pytest.mark.parametrize("name", ODD_REQUESTS)
def test_an_odd_request_is_one_request_or_none(preview: Preview, name: str) -> None:
    """What one end took for a body the other never takes for a request (lesson 32)."""
    preview.visit("GET", "/seen")
    host = preview.host.encode()
    common = b"Host: %b\r\nHutch-Preview: %b\r\n" % (host, preview.token.encode())
    odd = ODD_REQUESTS[name].replace(b"{post}", b"POST /odd HTTP/1.1\r\n{common}")
    sent = odd.replace(b"{common}", common) + SMUGGLED.replace(b"{host}", host)
    with socket.create_connection(preview.address, TIMEOUT_SECONDS) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    seen = json.loads(preview.visit("GET", "/seen").body)
    assert len(seen) <= 1, (seen, answer)
    assert all(target.partition("?")[0] in ("/odd", "/") for _, target in seen), (seen, answer)
    assert b"hello from the box" not in answer or answer.count(b"hello from the box") == 1
    assert preview.visit("GET", "/").status == 200


ODD_ANSWERS: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", 502),
    "nothing but a line": (b"\r\n\r\n", 502),
    "length and chunks": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx", 502),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 502),
    "a negative length": (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 502),
    "another coding": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 502),
    "bare line feeds": (b"HTTP/1.1 200 OK\nX: y\n\nbody", 502),
    "a folded header": (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", 502),
    "a NUL": (b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n", 502),
    "a status that does not exist": (b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n", 502),
    "an upgrade that nobody asked for": (b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx", 502),
    "endless interim answers": (b"HTTP/1.1 103 Early\r\n\r\n" * 100, 502),
    "interim answers": (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
    "a second answer": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\nsmuggled", 200),
    "an answer until the end": (b"HTTP/1.0 200 OK\r\n\r\nok", 200),
}


@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_an_odd_answer_is_one_answer_or_an_error(preview: Preview, name: str) -> None:
    raw, status = ODD_ANSWERS[name]
    answer = preview.visit("GET", f"/raw?answer={base64.urlsafe_b64encode(raw).decode()}")
    assert answer.status == status, answer
    assert answer.body == b"ok" if status == 200 else answer.headers["hutch-error"] in ("not_proxied", "port_closed")
