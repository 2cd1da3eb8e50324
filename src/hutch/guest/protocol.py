"""The guest protocol: frames, kinds, operations. Both ends read this file and nothing else of each other.

One Unix stream socket for each box. A frame is `payload length (4) | kind (1) | channel (4) | payload`, little endian.
The host opens a channel by sending REQUEST with a number that is not in use; the guest ends it with exactly one REPLY
or ERROR. Control payloads are JSON, the rest raw bytes.

    host → guest                                   guest → host
    REQUEST  {"op": ..., ...}     opens            HELLO   on channel 0, first frame of a connection
    DATA     stdin or file content                 OUT/ERR a job's output
    END      no more DATA                          DATA    file content
    CREDIT   4 bytes: may send so much more        EVENT   JSON, something happened on this channel
    CANCEL   the caller is gone                    REPLY   JSON, done           closes the channel
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
"""Versions a keeper of this release can talk to: its own and the previous one."""

HEADER = struct.Struct("<IBI")
HEADER_SIZE = HEADER.size
CREDIT_SIZE = struct.Struct("<I")

MAX_PAYLOAD = 1 << 20
"""Largest raw payload of one frame."""
MAX_CONTROL = 16 << 20
"""Largest JSON payload: a 10 MB command line must be refused by the kernel's E2BIG, not by us."""
WINDOW = 4 << 20
"""Bytes a channel may have on the way before the reader grants more."""
FRAME_COST = 64
"""What a frame from the guest costs beyond its payload, so that credit also bounds a flood of tiny frames."""

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
    """Refuse a frame before a byte of its payload is read."""
    if kind not in accepted:
        raise ProtocolError(f"unexpected frame kind {kind}")
    if length > (MAX_PAYLOAD if kind in RAW else MAX_CONTROL):
        raise ProtocolError(f"frame of {length} bytes is over the limit")


_scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder().scan_once  # type: ignore[attr-defined]


def decode(payload: bytes) -> Any:
    """ValueError: it is no JSON."""
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
    """What `JSONEncoder.encode` makes anew for each value, made once; the slow way where there is none in C."""
    whole = JSONEncoder(separators=(",", ":"), check_circular=False).encode
    try:
        pieces = encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, _refuse, encoder.encode_basestring_ascii, None, ":", ",", False, False, True
        )
        if "".join(pieces({"a": [1.5, None]}, 0)) != whole({"a": [1.5, None]}):
            return whole
    except (AttributeError, TypeError):  # it is not part of the documented interface
        return whole
    join = "".join
    return lambda value: join(pieces(value, 0))


_encode = _encoder()


def encode(fields: Any) -> bytes:
    return _encode(fields).encode()
