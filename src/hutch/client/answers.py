"""Answers of a server that may be of a newer release: what it adds is left out, a state or cause that this release does
not know is `unknown`, and what cannot be understood at all is an error that says what to do."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from hutch.errors import HutchError
from hutch.model.compatibility import of_a_newer_release, of_a_newer_release_plain

T = TypeVar("T")


def answered(data: bytes | str, kind: type[T], op: str = "") -> T:
    """What the server said, as `kind`."""
    return _understood(lambda: of_a_newer_release(data, kind), op)


def answered_plain(plain: object, kind: type[T], op: str = "") -> T:
    """The same for what is decoded already."""
    return _understood(lambda: of_a_newer_release_plain(plain, kind), op)


def _understood(read: Callable[[], T], op: str) -> T:
    try:
        return read()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HutchError(
            f"the server's answer is not understood: {error}", op=op,
            remedy="use the server's version of Hutch here too: `hutch status` tells it",
        ) from error  # fmt: skip
