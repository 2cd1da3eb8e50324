"""Ids, names and digests. Ids are short, random, and safe as a host name, a cgroup name and a path."""

import os
import re
from typing import Any, NewType

# `hashlib` loads OpenSSL, which takes longer than the creation of a box. For a few bytes the interpreter's own code is
# as fast and gives the same digests; the standard library's `random` does it the same way.
sha256: Any
try:
    from _sha2 import sha256  # type: ignore[import-not-found, no-redef]  # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found, no-redef]
    except ImportError:
        from hashlib import sha256

BoxId = NewType("BoxId", str)
JobId = NewType("JobId", str)

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_TO_LETTERS = (_LETTERS * 10)[:256]
_TO_ANY = ((_LETTERS + b"0123456789") * 8)[:256]
"""Some characters stand for one byte value more than others, which costs a fraction of a bit."""
_BOX_ID = re.compile(r"[a-z0-9]{20}")
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")


def new_box_id() -> BoxId:
    """Make an id of twenty characters, about 103 bits. A letter comes first: a host name should not be a number."""
    random = os.urandom(20)
    return BoxId((random[:1].translate(_TO_LETTERS) + random[1:].translate(_TO_ANY)).decode())


def is_box_id(text: str) -> bool:
    return _BOX_ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Return whether people may give this name to a volume, a profile or a box."""
    return NAME.fullmatch(text) is not None


def digest(*parts: bytes) -> str:
    """Return the SHA-256 of the joined parts in hexadecimal. For large files use `hashlib`."""
    sha = sha256()
    for part in parts:
        sha.update(part)
    hexadecimal: str = sha.hexdigest()
    return hexadecimal
