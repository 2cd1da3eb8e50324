"""Sealed values: what a record holds for its box alone, unreadable in a copy of the database.

A box's environment is needed to start it again, so its record keeps it; and people put into `env` what belongs into
`secrets`. Sealed, it is neither in a backup of the database nor in a page of it that somebody reports.

The form is `1.` and base64 of a tag and the text, encrypted. It needs no library beyond Python's own, and no random
number: the tag is a keyed BLAKE2b of the box's id and the text; the text is XORed with SHAKE256 of another key and the
tag; whoever opens it computes the tag again (a synthetic nonce, as in RFC 5297). So the same environment of the same
box has the same form, which a store can compare, and a changed or exchanged one does not open.
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
from hutch.model.record import decoded, encoded

_VERSION = "1."
_TAG = 32
_told: set[str] = set()
"""Boxes of which the log has it that they could not be opened: records are read often."""


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

    def close(self, box_id: str, env: dict[str, str]) -> str:
        """The environment of a box as its record may hold it."""
        text = encoded(env)
        tag = self._tag(box_id, text)
        return _VERSION + base64.b64encode(tag + self._crypted(tag, text)).decode()

    def open(self, box_id: str, sealed: str) -> dict[str, str]:
        """Invalid if it was sealed with another key or for another box, or was changed."""
        try:
            if not sealed.startswith(_VERSION):
                raise ValueError("it has an unknown form")
            data = base64.b64decode(sealed.removeprefix(_VERSION), validate=True)
            tag, text = data[:_TAG], self._crypted(data[:_TAG], data[_TAG:])
            if not hmac.compare_digest(tag, self._tag(box_id, text)):
                raise ValueError("it was sealed with another key, or changed")
            return decoded(text, dict[str, str])
        except (ValueError, binascii.Error, msgspec.DecodeError) as error:
            raise Invalid(f"the environment of box {box_id} cannot be opened: {error}") from error

    def _tag(self, box_id: str, text: bytes) -> bytes:
        return hashlib.blake2b(box_id.encode() + b"\0" + text, key=self._for_tags, digest_size=_TAG).digest()

    def _crypted(self, tag: bytes, text: bytes) -> bytes:
        """One and the same for both directions."""
        stream = hashlib.shake_256(self._for_texts + tag).digest(len(text))
        return (int.from_bytes(text) ^ int.from_bytes(stream)).to_bytes(len(text))


def to_store(record: BoxRecord, seal: Seal | None) -> bytes:
    """The record as a store holds it."""
    if seal is None or not record.spec.env:
        return record.to_json()
    sealed = seal.close(record.id, record.spec.env)
    return record.but(spec=record.spec.but(env={}), sealed_env=sealed).to_json()


def from_store(body: bytes, seal: Seal | None) -> BoxRecord:
    """The record as everybody else knows it. An environment that cannot be opened stays sealed in it: the box can be
    seen and destroyed, and is not started without (`Keeper.restore`)."""
    record = BoxRecord.from_json(body)
    if not record.sealed_env:
        return record
    try:
        if seal is None:
            raise Invalid(f"the environment of box {record.id} is sealed, and this keeper has no key")
        env = seal.open(record.id, record.sealed_env)
    except Invalid as error:
        if record.id not in _told:
            _told.add(record.id)
            log("store").error("environment not opened", box=record.id, error=error, remedy="put the state's key back")
        return record
    return record.but(spec=record.spec.but(env=env), sealed_env="")
