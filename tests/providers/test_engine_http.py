"""The small HTTP client: every form of answer an engine gives, and every way in which it can break off."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hutch.errors import ConfigError, EngineError, Unavailable
from hutch.providers.docker.engine import endpoint
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.endpoint import Endpoint, parse
from hutch.providers.docker.engine.hijack import hijack
from hutch.providers.docker.engine.http import EngineHttp, EngineRefused
from hutch.providers.guest_client.link import Link


@asynccontextmanager
async def answering(directory: Path, answer: bytes, hold: bool = False) -> AsyncIterator[EngineHttp]:
    """An engine that says these bytes to every caller, and then hangs up, or waits."""
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        asked.set()
        if hold:
            await reader.read()
        writer.close()

    path = directory / "e.sock"
    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield EngineHttp(Endpoint(path=str(path)))


def plain(status: str, body: bytes, *headers: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers))
    return head.encode() + b"\r\n" + body


CHUNKED = b'5\r\n{"a":\r\n4;x=y\r\n 17}\r\n0\r\n\r\n'


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (plain("200 OK", b'{"a": 17}', "Content-Length: 9"), {"a": 17}),
        (plain("200 OK", CHUNKED, "Transfer-Encoding: chunked"), {"a": 17}),
        (plain("200 OK", b'{"a": 17}'), {"a": 17}),
        (plain("204 No Content", b""), None),
        (plain("100 Continue", b"") + plain("200 OK", b'{"a": 17}', "Content-Length: 9"), {"a": 17}),
        (plain("200 OK", b"OK", "Content-Length: 2"), None),
    ],
)
async def test_forms_of_an_answer(tmp_path: Path, answer: bytes, wanted: object) -> None:
    async with answering(tmp_path, answer) as http:
        assert await http.call("GET", "/x", query={"filters": {"label": ["a=b"]}, "all": True}) == wanted


async def test_a_refusal_keeps_the_engines_words(tmp_path: Path) -> None:
    body = json.dumps({"message": "no such container: x"}).encode()
    async with answering(tmp_path, plain("404 Not Found", body, f"Content-Length: {len(body)}")) as http:
        for ask in (http.call("GET", "/x"), http.raw("GET", "/x"), _all_lines(http)):
            with pytest.raises(EngineRefused, match="no such container: x") as caught:
                await ask
            assert caught.value.status == 404


async def _all_lines(http: EngineHttp) -> list[object]:
    return [line async for line in http.lines("POST", "/x")]


async def test_lines_come_one_by_one(tmp_path: Path) -> None:
    answer = plain("200 OK", b'11\r\n{"a": 1}\n{"a": 2}\r\n1\r\n\n\r\n0\r\n\r\n', "Transfer-Encoding: chunked")
    async with answering(tmp_path, answer) as http:
        assert await _all_lines(http) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        plain("200 OK", b"half", "Content-Length: 9"),
        plain("200 OK", b"ff\r\nhalf", "Transfer-Encoding: chunked"),
        plain("200 OK", b"zz\r\n", "Transfer-Encoding: chunked"),
        plain("200 OK", b"-1\r\nhello\r\n", "Transfer-Encoding: chunked"),
        plain("200 OK", b"1\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        plain("200 OK", b"hello", "Content-Length: -1"),
        plain("200 OK", b"hello", "Content-Length: " + "9" * 5000),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    ],
)
async def test_an_engine_that_breaks_off_cannot_be_reached(tmp_path: Path, answer: bytes) -> None:
    """Unavailable, which a keeper takes for "cannot say": never for "gone"."""
    async with answering(tmp_path, answer) as http:
        with pytest.raises(Unavailable):
            await http.call("GET", "/x")


async def test_a_silent_engine_is_given_up(tmp_path: Path) -> None:
    async with answering(tmp_path, b"", hold=True) as http:
        with pytest.raises(Unavailable, match="did not answer GET /x within"):
            await http.call("GET", "/x", timeout=0.05)


async def test_an_engine_that_is_too_old_says_so(tmp_path: Path) -> None:
    body = json.dumps({"ApiVersion": "1.24"}).encode()
    async with answering(tmp_path, plain("200 OK", body, f"Content-Length: {len(body)}")) as http:
        with pytest.raises(Unavailable, match=r"1\.24") as caught:
            await Engine(http.endpoint).meet()
        assert not caught.value.retryable


def framed(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


async def test_a_hijacked_stream_feeds_a_link_in_whatever_pieces_it_comes(tmp_path: Path) -> None:
    """Headers and frames may be cut anywhere; what the program says on stderr is kept apart."""
    from hutch.guest.protocol import HELLO, frame

    greeting = frame(HELLO, 0, b'{"version": 1, "box_id": "b"}')
    stream = framed(1, greeting[:5]) + framed(2, b"a warning") + framed(1, greeting[5:])
    answer = plain("101 UPGRADED", stream, "Connection: Upgrade", "Upgrade: tcp")
    async with answering(tmp_path, answer, hold=True) as http:
        hijacked = await hijack(http, "x")
        link = Link()
        hijacked.become(link)
        await link.wait_for_hello(5.0)
        assert link.hello["box_id"] == "b" and b"a warning" in hijacked.stderr
        link.close()
    async with answering(tmp_path, plain("409 Conflict", b'{"message": "is paused"}')) as http:
        with pytest.raises(EngineRefused, match="is paused"):
            await hijack(http, "x")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("unix:///run/d.sock", Endpoint(path="/run/d.sock")),
        ("/run/d.sock", Endpoint(path="/run/d.sock")),
        ("tcp://host:2375", Endpoint(host="host", port=2375)),
        ("tcp://[::1]:2375/", Endpoint(host="::1", port=2375)),
    ],
)
def test_addresses(text: str, wanted: Endpoint) -> None:
    assert parse(text) == wanted


@pytest.mark.parametrize("text", ["", "ssh://me@host", "tcp://host", "unix://relative", "npipe:////./pipe/docker"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)


def _write_context(home: Path) -> None:
    from hashlib import sha256

    meta = home / ".docker/contexts/meta" / sha256(b"far").hexdigest()
    meta.mkdir(parents=True)
    (home / ".docker/config.json").write_text('{"currentContext": "far"}')
    (meta / "meta.json").write_text('{"Endpoints": {"docker": {"Host": "tcp://far:1"}}}')


@pytest.mark.parametrize(
    ("environment", "prepare", "wanted"),
    [
        ({"DOCKER_HOST": "tcp://a:1"}, None, Endpoint(host="a", port=1)),
        ({}, _write_context, Endpoint(host="far", port=1)),
        (
            {"DOCKER_HOST": "tcp://a:1", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/c"},
            None,
            Endpoint(host="a", port=1, certificates="/c"),
        ),
    ],
)
def test_an_engine_is_found_as_its_own_command_finds_it(
    tmp_path: Path, environment: dict[str, str], prepare: Callable[[Path], None] | None, wanted: Endpoint
) -> None:
    if prepare is not None:
        prepare(tmp_path)
    assert endpoint.docker({"HOME": str(tmp_path), **environment}) == wanted


async def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    """A program at the socket cannot fill the keeper's memory with one line (lesson 46)."""
    body = b'{"a":"' + b"x" * (9 << 20)
    answer = plain("200 OK", body, f"Content-Length: {len(body) + 100}")
    async with answering(tmp_path, answer, hold=True) as http:
        with pytest.raises(EngineError, match="a line of over"):
            async for _ in http.lines("POST", "/images/create"):
                pass
