"""The guest protocol: frames, their kinds and their JSON. It is the only file that both ends share.

Each box has one Unix stream socket. A frame is `payload length (4) | kind (1) | channel (4) | payload`, little endian.
The host opens a channel by sending REQUEST with a number that is not in use; the guest ends it with exactly one REPLY
or ERROR. Control payloads are JSON, the rest raw bytes.

    host → guest                                   guest → host
    REQUEST  {"op": ..., ...}     opens            HELLO   on channel 0, first frame of a connection
    DATA     stdin or file content                 OUT/ERR a job's output
    END      no more DATA                          DATA    file content
    CREDIT   4 bytes: may send so much more        EVENT   JSON, something happened on this channel
    CANCEL   the caller gave up                    REPLY   JSON, done           closes the channel
                                                   ERROR   JSON, code + message closes the channel

Back-pressure: OUT, ERR, DATA and EVENT from the guest are sent only while their channel has credit; a channel starts
with `WINDOW` bytes of it, and a frame costs its payload and `FRAME_COST`. DATA from the host is bounded the same way by
its payload alone (the guest sends CREDIT). Neither end buffers more.

The host does not trust the guest once user code has run: lengths, kinds, channels and JSON are checked, and a violation
ends the connection, never the keeper.
"""

import struct
from collections.abc import Callable
from json import JSONDecoder, JSONEncoder, encoder
from typing import Any

VERSION = 1
SPEAKS = (1,)
"""Versions that a keeper of this release can talk to: its own and the previous one."""

HEADER = struct.Struct("<IBI")
HEADER_SIZE = HEADER.size
CREDIT_SIZE = struct.Struct("<I")

MAX_PAYLOAD = 1 << 20
"""Largest raw payload of one frame."""
MAX_CONTROL = 16 << 20
"""Largest JSON payload. A command line of 10 MB must fit, because the kernel's E2BIG should refuse it."""
WINDOW = 4 << 20
"""Bytes that may be in flight on a channel before the reader grants more."""
FRAME_COST = 64
"""Cost of a frame from the guest beyond its payload, so that credit also bounds a flood of tiny frames."""

REQUEST = 1
DATA = 2
END = 3
CREDIT = 4
CANCEL = 5

HELLO = 16
REPLY = 17
ERROR = 18
EVENT = 19
OUT = 20
ERR = 21

TO_GUEST = frozenset({REQUEST, DATA, END, CREDIT, CANCEL})
TO_HOST = frozenset({HELLO, REPLY, ERROR, EVENT, OUT, ERR, DATA, END, CREDIT})
RAW = frozenset({DATA, OUT, ERR})


class ProtocolError(Exception):
    """The other end sent something that no correct peer sends."""


def frame(kind: int, channel: int, payload: bytes | memoryview = b"") -> bytes:
    return HEADER.pack(len(payload), kind, channel) + payload


def check_header(length: int, kind: int, accepted: frozenset[int]) -> None:
    """Reject a frame before any of its payload is read."""
    if kind not in accepted:
        raise ProtocolError(f"unexpected frame kind {kind}")
    if length > (MAX_PAYLOAD if kind in RAW else MAX_CONTROL):
        raise ProtocolError(f"frame of {length} bytes is over the limit")


_scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder().scan_once  # type: ignore[attr-defined]


def decode(payload: bytes) -> Any:
    """Parse one JSON value. Raises ValueError if it is none.

    `json.loads` and `json.dumps` lead through a dozen Python functions. A guest shares its memory page by page with
    every other box until it writes to a page, and those functions write to 50 more pages than this does: 0.2 MB of
    every box.
    """
    text = payload.decode().strip()
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def _refuse(value: object) -> None:
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _encoder() -> Callable[[Any], str]:
    """Prepare once what `JSONEncoder.encode` prepares for each value; it is the fallback without the C encoder."""
    whole = JSONEncoder(separators=(",", ":"), check_circular=False).encode
    try:
        pieces = encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, _refuse, encoder.encode_basestring_ascii, None, ":", ",", False, False, True
        )
        if "".join(pieces({"a": [1.5, None]}, 0)) != whole({"a": [1.5, None]}):
            return whole
    except (AttributeError, TypeError):  # the C encoder is not part of the documented interface
        return whole
    join = "".join
    return lambda value: join(pieces(value, 0))


_encode = _encoder()


def encode(fields: Any) -> bytes:
    return _encode(fields).encode()
