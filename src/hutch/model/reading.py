"""Reading what another release wrote: fields that this one does not know are left out.

Whoever asks something of us is told of a field we do not know: it is a slip, or he means more than we would do. Answers
and records of the past are different: what a newer release adds there must not keep an older one from the rest.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from hutch.errors import Invalid
from hutch.model.record import decoded

if TYPE_CHECKING:
    from msgspec import inspect

T = TypeVar("T")


def understood(data: bytes | str, kind: type[T]) -> T:
    """What `encoded` wrote, here or elsewhere; raises msgspec's errors."""
    try:
        return decoded(data, kind)
    except msgspec.ValidationError:
        return _without_unknown(decoded(data, cast(type[Any], Any)), kind)


def understood_plain(plain: object, kind: type[T]) -> T:
    """The same for what is decoded already."""
    try:
        return msgspec.convert(plain, type=kind)
    except msgspec.ValidationError:
        return _without_unknown(plain, kind)


def remembered(data: bytes | str, kind: type[T]) -> T:
    """A record of the past, as it was stored; Invalid if it is none."""
    try:
        return understood(data, kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"not a valid {kind.__name__}: {error}") from error


def _without_unknown(plain: object, kind: type[T]) -> T:
    from msgspec import inspect  # rarely needed

    return msgspec.convert(_known(plain, inspect.type_info(kind)), type=kind, str_keys=True)


def _known(value: Any, info: "inspect.Type") -> Any:
    """The value without fields that no record in `info` has. What has the wrong form stays: converting tells of it."""
    kinds: tuple[Any, ...] = getattr(info, "types", (info,))  # of a union
    for each in kinds:
        if isinstance(value, list) and hasattr(each, "item_type"):
            return [_known(item, each.item_type) for item in value]
        if isinstance(value, list) and hasattr(each, "item_types") and len(value) == len(each.item_types):
            return [_known(item, place) for item, place in zip(value, each.item_types, strict=True)]
        if isinstance(value, dict) and hasattr(each, "value_type"):
            return {name: _known(item, each.value_type) for name, item in value.items()}
        if isinstance(value, dict) and hasattr(each, "fields") and _tagged(value, each):
            types = {field.encode_name: field.type for field in each.fields}
            kept = {name: _known(item, types[name]) for name, item in value.items() if name in types}
            return kept if each.tag_field is None else {each.tag_field: each.tag, **kept}
    return value


def _tagged(value: Mapping[str, object], struct: Any) -> bool:
    """Of several records, the one that the value says it is."""
    return struct.tag_field is None or value.get(struct.tag_field) == struct.tag
