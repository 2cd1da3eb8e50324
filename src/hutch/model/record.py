"""The base of every record: frozen, keyword-only, strict about unknown fields, JSON both ways."""

from typing import Any, Self

import msgspec

from hutch.errors import Invalid


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """`to_json` and `from_json` round-trip; a wrong field is an Invalid error that names it."""

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Invalid(f"not a valid {cls.__name__}: {error}") from error

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        try:
            return msgspec.convert(plain, type=cls)
        except msgspec.ValidationError as error:
            raise Invalid(f"not a valid {cls.__name__}: {error}") from error

    def but(self, **changes: Any) -> Self:
        """A copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)
