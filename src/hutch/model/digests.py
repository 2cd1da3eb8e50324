"""SHA-256 of little: what names files, keys and records. Large files are `hashlib`'s."""

from typing import Any

# As the standard library's `random` does it: `hashlib` loads OpenSSL, which takes longer than the making of a box, and
# for a few bytes the interpreter's own code is no slower. The digests are the same.
sha256: Any
try:
    from _sha2 import sha256  # type: ignore[import-not-found, no-redef]  # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found, no-redef]
    except ImportError:
        from hashlib import sha256


def digest(*parts: bytes) -> str:
    """Of the parts one after the other, in hexadecimal."""
    sha = sha256()
    for part in parts:
        sha.update(part)
    hexadecimal: str = sha.hexdigest()
    return hexadecimal
