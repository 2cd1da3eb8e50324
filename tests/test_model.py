"""Every record of the model goes to JSON and comes back the same; a wrong field is named."""

import importlib
import inspect
import pkgutil
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hutch.model
from hutch.errors import Invalid
from hutch.model.boxes import MOVES, State, may_move
from hutch.model.compatibility import convert_lenient, decode_lenient
from hutch.model.ids import is_box_id, is_name, new_box_id
from hutch.model.record import Record, encode_json
from hutch.model.spec import Adjustment, EffectiveSpec, Mount, Spec
from tests.server.newer_release import grown

MODULES = [importlib.import_module(f"hutch.model.{each.name}") for each in pkgutil.iter_modules(hutch.model.__path__)]
RECORDS = sorted(
    {
        each
        for module in MODULES
        for _, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, Record) and each is not Record
    },
    key=lambda record: record.__name__,
)

SIMPLE: dict[object, st.SearchStrategy[object]] = {
    # NaN is not equal to itself and JSON has no infinity: policy refuses both before anything is stored.
    float: st.floats(allow_nan=False, allow_infinity=False),
    # JSON numbers past 64 bits are no integers of a record.
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    Any: st.none() | st.booleans() | st.lists(st.integers(0, 9), max_size=2),
}


def records(record: type[Record]) -> st.SearchStrategy[Record]:
    """Values for every field, by its type; the fields with a default are sometimes left to it."""
    hints = inspect.get_annotations(record, eval_str=True)
    for base in record.__mro__:
        if base is not Record and issubclass(base, Record):
            hints = inspect.get_annotations(base, eval_str=True) | hints
    return st.builds(record, **{name: by_type(hints[name]) for name in record.__struct_fields__})


def by_type(hint: object) -> st.SearchStrategy[object]:
    hint = getattr(hint, "__supertype__", hint)  # a NewType
    if hint in SIMPLE:
        return SIMPLE[hint]
    arguments: tuple[object, ...] = getattr(hint, "__args__", ())
    if inspect.isclass(hint) and not arguments and issubclass(hint, Record):
        return records(hint)
    origin = getattr(hint, "__origin__", None)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return st.lists(by_type(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(by_type(arguments[0]), by_type(arguments[1]), max_size=3)
    if arguments:
        return st.one_of(*map(by_type, arguments))
    return st.from_type(hint)  # type: ignore[arg-type]


def check_json(record: type[Record], examples: int) -> None:
    """Values of the record come back from JSON the same, also with the fields that a newer release has added."""

    @settings(max_examples=examples)
    @given(records(record))
    def survives(value: Record) -> None:
        assert type(value).from_json(value.to_json()) == value
        assert type(value).from_plain(value.to_plain()) == value
        assert decode_lenient(encode_json(grown(value)), type(value)) == value
        assert convert_lenient(grown(value), type(value)) == value

    survives()


@pytest.mark.slow
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_survives_json(record: type[Record]) -> None:
    """What another release wrote has fields that this one does not know, at any depth: the rest is read."""
    check_json(record, examples=30)


@pytest.mark.proof
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_survives_json_with_many_values(record: type[Record]) -> None:
    check_json(record, examples=1000)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_is_frozen_and_strict(record: type[Record]) -> None:
    assert record.__struct_config__.frozen
    assert record.__struct_config__.forbid_unknown_fields
    with pytest.raises(Invalid, match=r"no_such_field|missing required field"):
        record.from_plain({"no_such_field": 1})


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(Invalid, match=r"limits\.memory_mb"):
        Spec.from_json('{"limits": {"memory_mb": "much"}}')
    with pytest.raises(Invalid, match="memroy_mb"):
        Spec.from_plain({"limits": {"memroy_mb": 1}})
    with pytest.raises(Invalid, match="not a valid Mount"):
        Mount.from_json(b"\xff")


def test_a_copy_with_changes_leaves_the_original() -> None:
    mount = Mount(source="/a", target="/b")
    assert mount.but(target="/c") == Mount(source="/a", target="/c")
    assert mount.target == "/b"


def test_an_adjustment_reads_as_a_sentence() -> None:
    adjustment = Adjustment(field="timeout_sec", asked="600", given="120", reason="maximum of profile default")
    assert str(adjustment) == "timeout_sec 600 → 120: maximum of profile default"


@settings(max_examples=30)
@given(records(EffectiveSpec))
def test_a_spec_as_shown_has_the_names_of_its_secrets_only(spec: Record) -> None:
    """A spec as shown has the names of its secrets only (lesson 37)."""
    assert isinstance(spec, EffectiveSpec)
    shown = spec.shown()
    assert shown.secrets.keys() == spec.secrets.keys()
    assert set(shown.secrets.values()) <= {"***"}
    assert shown.but(secrets=spec.secrets) == spec


def test_box_ids_are_safe_as_host_name_and_path_and_differ() -> None:
    ids = {new_box_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(is_box_id(each) and is_name(each) and each[0] in string.ascii_lowercase for each in ids)


@pytest.mark.parametrize("text", ["", "short", "A" * 20, "a" * 19 + "\n", "a" * 21, "../" + "a" * 17])
def test_other_texts_are_no_box_ids(text: str) -> None:
    assert not is_box_id(text)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "-a", "a\n", "x" * 64, "é"])
def test_other_texts_are_no_names(text: str) -> None:
    assert not is_name(text)


def test_every_state_has_its_moves_and_all_can_end() -> None:
    assert set(MOVES) == set(State)
    for state in State:
        assert not may_move(state, state)
        assert state is State.STOPPING or may_move(state, State.STOPPING), f"{state} cannot be destroyed"
