"""The HTTP/1.1 parser alone: results do not depend on how the network cuts an answer, and its work is linear."""

import pytest

from hutch import http1

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: v\r\n\r\nnext"
SIZED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 9\r\n\r\nhellonext"


class Pieces:
    """A source that gives an answer in pieces of one size, and counts the bytes that are put back."""

    def __init__(self, data: bytes, size: int) -> None:
        self.pieces = [data[start : start + size] for start in range(0, len(data), size)]
        self.put_back = 0

    async def receive(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def unread(self, data: bytes) -> None:
        self.put_back += len(data)
        if data:
            self.pieces.insert(0, data)


@pytest.mark.parametrize("data", [CHUNKED, SIZED])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_cuts_make_no_difference(data: bytes, size: int) -> None:
    """What follows the answer stays in the source for the next reader."""
    source = Pieces(data, size)
    head = await http1.read_head(source)
    body = b"".join([piece async for piece in http1.read_body(source, head)])
    assert (head.status, body, b"".join(source.pieces)) == (200, b"hello", b"next")


async def test_many_small_chunks_are_not_copied_again_and_again() -> None:
    """A hostile peer cannot buy quadratic work with chunks of one byte."""
    source = Pieces(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n", 1 << 20
    )
    head = await http1.read_head(source)
    assert sum([len(piece) async for piece in http1.read_body(source, head)]) == 50_000
    assert source.put_back < 1 << 20
