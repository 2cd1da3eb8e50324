"""Decoding what another release wrote: fields that this release does not know are ignored.

A request with an unknown field is an error: it is a mistake, or asks for more than we would do. Answers and stored
records are different: a field that a newer release added must not keep an older one from reading the rest.

An unknown value of an enum becomes the enum's `UNKNOWN` in an answer, if it has one. In a record it stays an error: a
keeper must not treat as lost what a newer keeper keeps.
"""

from collections.abc import Callable, Mapping
from enum import Enum, EnumMeta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from hutch.errors import Invalid
from hutch.model.record import decode_json

if TYPE_CHECKING:
    from msgspec import inspect

T = TypeVar("T")

OfEnum = Callable[[str, EnumMeta], object]
"""Replaces a text that should be a value of an enum."""


def _as_it_is(value: str, enum: EnumMeta) -> object:
    return value


def decode_lenient(data: bytes | str, kind: type[T], of_enum: OfEnum = _as_it_is) -> T:
    """Decode what `encode_json` wrote in any release; raises msgspec's errors."""
    try:
        return decode_json(data, kind)
    except msgspec.ValidationError:
        return _without_unknown(decode_json(data, cast(type[Any], Any)), kind, of_enum)


def convert_lenient(plain: object, kind: type[T], of_enum: OfEnum = _as_it_is) -> T:
    """Do the same for data that is decoded already."""
    try:
        return msgspec.convert(plain, type=kind)
    except msgspec.ValidationError:
        return _without_unknown(plain, kind, of_enum)


def decode_newer(data: bytes | str, kind: type[T]) -> T:
    """Decode the answer of a server that may know more values than we do; raises msgspec's errors."""
    return decode_lenient(data, kind, _or_unknown)


def convert_newer(plain: object, kind: type[T]) -> T:
    """Do the same for data that is decoded already."""
    return convert_lenient(plain, kind, _or_unknown)


def decode_record(data: bytes | str, kind: type[T]) -> T:
    """Decode a stored record. Raises Invalid."""
    try:
        return decode_lenient(data, kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"not a valid {kind.__name__}: {error}") from error


def _without_unknown(plain: object, kind: type[T], of_enum: OfEnum) -> T:
    from msgspec import inspect  # rarely needed

    return msgspec.convert(_known(plain, inspect.type_info(kind), of_enum), type=kind, str_keys=True)


def _known(value: Any, info: "inspect.Type", of_enum: OfEnum) -> Any:
    """Remove the fields that no record in `info` has. A value of a wrong type stays, and fails to convert."""
    kinds: tuple[Any, ...] = getattr(info, "types", (info,))  # the members of a union
    for each in kinds:
        if isinstance(value, str) and isinstance(enum := getattr(each, "cls", None), EnumMeta):
            return of_enum(value, enum)
        if isinstance(value, list) and hasattr(each, "item_type"):
            return [_known(item, each.item_type, of_enum) for item in value]
        if isinstance(value, list) and hasattr(each, "item_types") and len(value) == len(each.item_types):
            return [_known(item, place, of_enum) for item, place in zip(value, each.item_types, strict=True)]
        if isinstance(value, dict) and hasattr(each, "value_type"):
            return {name: _known(item, each.value_type, of_enum) for name, item in value.items()}
        if isinstance(value, dict) and hasattr(each, "fields") and _tagged(value, each):
            types = {field.encode_name: field.type for field in each.fields}
            kept = {name: _known(item, types[name], of_enum) for name, item in value.items() if name in types}
            return kept if each.tag_field is None else {each.tag_field: each.tag, **kept}
    return value


def _tagged(value: Mapping[str, object], struct: Any) -> bool:
    """Return whether the value is tagged as this record."""
    return struct.tag_field is None or value.get(struct.tag_field) == struct.tag


def _or_unknown(value: str, enum: EnumMeta) -> object:
    known = [each.value for each in cast(type[Enum], enum)]
    return value if value in known or "unknown" not in known else "unknown"
