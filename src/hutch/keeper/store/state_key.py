"""The state directory's key: one random secret in a file of its own, from which a key for each purpose is derived.

It has two purposes: keyed digests in receipts, which prove the text of a command without showing it, and sealed
environments in records (`keeper.store.seal`). It protects a copy of a database, in a backup or a report; who can read
the whole state directory can read the key too.
"""

import os
import secrets
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from hutch.errors import HutchError, Unavailable

FILE = "state.key"
_BYTES = 32


class StateKey:
    """A key that is read or created when it is first needed."""

    def __init__(self, path: Path | None = None) -> None:
        """Without a path the key belongs to this process and ends with it."""
        self._path = path

    @cached_property
    def _secret(self) -> bytes:
        return secrets.token_bytes(_BYTES) if self._path is None else _read_or_create(self._path)

    @cached_property
    def id(self) -> str:
        """A name of the key that reveals nothing about it."""
        return self.derived("id").hex()[:16]

    def derived(self, purpose: str) -> bytes:
        """Derive 32 bytes for one purpose; no other purpose's key can be computed from them."""
        return blake2b(purpose.encode(), key=self._secret, digest_size=_BYTES).digest()

    @cached_property
    def _digest_key(self) -> bytes:
        return self.derived("digests in receipts")

    def digest(self, name: str, text: str) -> str:
        """Return the keyed digest of a detail's whole text, after the name of the key: `ID:DIGEST`."""
        data = f"{name}\0{text}".encode("utf-8", "surrogatepass")
        return f"{self.id}:{blake2b(data, key=self._digest_key, digest_size=_BYTES).hexdigest()}"


def _read_or_create(path: Path) -> bytes:
    try:
        with suppress(FileNotFoundError):
            return _read(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_BYTES).hex().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())  # nothing sealed with it may survive a crash that it does not
            with suppress(FileExistsError):  # another process was faster, and its key counts
                os.link(draft, path)
        finally:
            draft.unlink()
        return _read(path)
    except HutchError:
        raise
    except OSError as error:
        raise Unavailable(
            f"the key {path} cannot be read or made: {error.strerror}", retryable=False,
            remedy="make the state directory this user's own, or put its key back from the backup",
        ) from error  # fmt: skip


def _read(path: Path) -> bytes:
    try:
        found = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        found = b""
    if len(found) != _BYTES:
        raise Unavailable(
            f"{path} is no key of a state directory: it has to hold {2 * _BYTES} hexadecimal digits", retryable=False,
            remedy="put it back from the backup; without it, sealed values of persistent boxes are lost",
        )  # fmt: skip
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return found
