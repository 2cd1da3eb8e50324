"""Control payloads: JSON, by the C parts of the standard library alone.

`json.loads` and `json.dumps` lead through a dozen Python functions. A guest shares its memory with every other box page
by page until it touches a page, and those functions touch 50 more than this does: 0.2 MB of every box.
"""

from collections.abc import Callable
from json import JSONDecoder, JSONEncoder, encoder
from typing import Any

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
