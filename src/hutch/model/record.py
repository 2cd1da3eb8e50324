"""The base of every record: frozen, keyword-only, strict about unknown fields, JSON both ways."""

from typing import Any, Self, TypeVar

import msgspec

from hutch.errors import Invalid

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """`to_json` and `from_json` round-trip; a wrong field is an Invalid error that names it."""

    def to_json(self) -> bytes:
        return encode_json(self)

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        try:
            return decode_json(data, cls)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"not a valid {cls.__name__}: {error}") from error

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        try:
            return msgspec.convert(plain, type=cls)
        except msgspec.ValidationError as error:
            remedy = "give the field that is named after `$.` a value of the type that is expected"
            raise Invalid(f"not a valid {cls.__name__}: {error}", remedy=remedy) from error

    def but(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)


def encode_json(value: object) -> bytes:
    """Encode as JSON. A file name need not be UTF-8: its other bytes are lone surrogates in a string, which msgspec
    refuses and the standard library writes as `\\udcXX`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        import json  # rarely needed

        return json.dumps(msgspec.to_builtins(value)).encode()


def decode_json(data: bytes | str, kind: type[T]) -> T:
    """Decode what `encode_json` wrote; raises msgspec's errors."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if not _has_surrogates(data):
            raise
        import json

        try:
            plain = json.loads(data)
            # Accept only surrogates that stand for bytes; no other could be encoded again.
            json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogateescape")
        except (ValueError, RecursionError):
            raise error from None
        return msgspec.convert(plain, type=kind)


def _has_surrogates(data: bytes | str) -> bool:
    return b"\\ud" in (data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data).lower()
