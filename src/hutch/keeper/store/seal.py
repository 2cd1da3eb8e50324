"""Sealed environments: encrypted in records, so that a copy of the database does not reveal them.

A record keeps its box's environment, which is needed to start the box again, and people put into `env` what belongs
into `secrets`. Sealed, it cannot be read from a backup of the database or from a page that somebody sends in a report.

The form is `1.` and the base64 of a tag and the encrypted text. It needs only the standard library and no random
number: the tag is a keyed BLAKE2b of the box's id and the text; the text is XORed with SHAKE256 of another key and the
tag; opening it computes the tag again (a synthetic nonce, as in RFC 5297). So the same environment of the same box has
the same form, which a store can compare, and a changed or exchanged one does not open.
"""

import base64
import binascii
import hashlib
import hmac
from functools import cached_property

import msgspec

from hutch.errors import Invalid
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.store.state_key import StateKey
from hutch.logs import log
from hutch.model.record import decode_json, encode_json

_VERSION = "1."
_TAG = 32
_reported: set[str] = set()
"""Boxes whose environment could not be opened and which were logged already: records are read often."""


class Seal:
    """Seals and opens environments with the keys of one state directory."""

    def __init__(self, key: StateKey) -> None:
        self._key = key

    @cached_property
    def _for_tags(self) -> bytes:
        return self._key.derived("tags of sealed values")

    @cached_property
    def _for_texts(self) -> bytes:
        return self._key.derived("texts of sealed values")

    def seal(self, box_id: str, env: dict[str, str]) -> str:
        """Encrypt the environment of a box for its record."""
        text = encode_json(env)
        tag = self._tag(box_id, text)
        return _VERSION + base64.b64encode(tag + self._crypted(tag, text)).decode()

    def open(self, box_id: str, sealed: str) -> dict[str, str]:
        """Decrypt an environment.

        Raises:
            Invalid: it was sealed with another key or for another box, or was changed.
        """
        try:
            if not sealed.startswith(_VERSION):
                raise ValueError("it has an unknown form")
            data = base64.b64decode(sealed.removeprefix(_VERSION), validate=True)
            tag, text = data[:_TAG], self._crypted(data[:_TAG], data[_TAG:])
            if not hmac.compare_digest(tag, self._tag(box_id, text)):
                raise ValueError("it was sealed with another key, or changed")
            return decode_json(text, dict[str, str])
        except (ValueError, binascii.Error, msgspec.DecodeError) as error:
            raise Invalid(f"the environment of box {box_id} cannot be opened: {error}") from error

    def _tag(self, box_id: str, text: bytes) -> bytes:
        return hashlib.blake2b(box_id.encode() + b"\0" + text, key=self._for_tags, digest_size=_TAG).digest()

    def _crypted(self, tag: bytes, text: bytes) -> bytes:
        """Encrypt or decrypt: XOR with the same stream does both."""
        stream = hashlib.shake_256(self._for_texts + tag).digest(len(text))
        return (int.from_bytes(text) ^ int.from_bytes(stream)).to_bytes(len(text))


def to_store(record: BoxRecord, seal: Seal | None) -> bytes:
    """Encode the record as a store holds it, its environment sealed."""
    if seal is None or not record.spec.env:
        return record.to_json()
    sealed = seal.seal(record.id, record.spec.env)
    return record.but(spec=record.spec.but(env={}), sealed_env=sealed).to_json()


def from_store(body: bytes, seal: Seal | None) -> BoxRecord:
    """Decode a stored record and open its environment.

    An environment that cannot be opened stays sealed: the box can be seen and destroyed, and is not started without it
    (`Keeper.restore`).
    """
    record = BoxRecord.from_json(body)
    if not record.sealed_env:
        return record
    try:
        if seal is None:
            raise Invalid(f"the environment of box {record.id} is sealed, and this keeper has no key")
        env = seal.open(record.id, record.sealed_env)
    except Invalid as error:
        if record.id not in _reported:
            _reported.add(record.id)
            log("store").error("environment not opened", box=record.id, error=error, remedy="put the state's key back")
        return record
    return record.but(spec=record.spec.but(env=env), sealed_env="")
