"""Ids: short, random, safe as a host name, a cgroup name and a path."""

import re
import secrets
from typing import NewType

BoxId = NewType("BoxId", str)
JobId = NewType("JobId", str)

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_BOX_ID = re.compile(r"[a-z0-9]{20}")
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")


def new_box_id() -> BoxId:
    """Twenty characters, about 103 bits; the first is a letter, because a host name should not be a number."""
    number = secrets.randbits(128)
    first, number = number % 26, number // 26
    letters = [_ALPHABET[first]]
    for _ in range(19):
        number, digit = divmod(number, 36)
        letters.append(_ALPHABET[digit])
    return BoxId("".join(letters))


def is_box_id(text: str) -> bool:
    return _BOX_ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Names people give: volumes, profiles, boxes."""
    return NAME.fullmatch(text) is not None
