"""Ids: short, random, safe as a host name, a cgroup name and a path."""

import os
import re
from typing import NewType

BoxId = NewType("BoxId", str)
JobId = NewType("JobId", str)

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_TO_LETTERS = (_LETTERS * 10)[:256]
_TO_ANY = ((_LETTERS + b"0123456789") * 8)[:256]
"""Some characters stand for one byte more than others, which costs a fraction of a bit."""
_BOX_ID = re.compile(r"[a-z0-9]{20}")
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")


def new_box_id() -> BoxId:
    """Twenty characters, about 103 bits; the first is a letter, because a host name should not be a number."""
    random = os.urandom(20)
    return BoxId((random[:1].translate(_TO_LETTERS) + random[1:].translate(_TO_ANY)).decode())


def is_box_id(text: str) -> bool:
    return _BOX_ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Names people give: volumes, profiles, boxes."""
    return NAME.fullmatch(text) is not None
