"""Control payloads: the short way through the standard library says what the long way says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.guest.payloads import decode, encode

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(_VALUES)
def test_what_is_encoded_is_the_json_of_the_standard_library(value: object) -> None:
    assert json.loads(encode(value)) == value
    assert decode(encode(value)) == value
    assert decode(json.dumps(value).encode()) == value
    assert decode(json.dumps(value, ensure_ascii=False, indent=1).encode()) == value


@pytest.mark.parametrize("nonsense", [b"", b" ", b"{", b"nope", b'{"a":1}{"b":2}', b'{"a":1} x', b"\xff", b'"\n"'])
def test_nonsense_is_a_value_error(nonsense: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(nonsense)


def test_a_nest_too_deep_for_the_interpreter_is_no_crash() -> None:
    with pytest.raises(RecursionError):
        decode(b"[" * 200_000)


def test_what_json_has_no_form_for_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        encode({"a": b"bytes"})
