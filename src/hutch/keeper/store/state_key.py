"""The state directory's key: one random secret in a file of its own, from which every purpose has a key derived.

Two purposes: keyed digests in receipts, by which the text of a command can be proven without being told, and sealed
values in records (`keeper.seal`). It keeps a copy of a database, in a backup or a report, from telling them; whoever
can read the whole state directory reads the key too.
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
    """A key that is read, or made, when it is first needed."""

    def __init__(self, path: Path | None = None) -> None:
        """Without a path it is this process's own, and gone with it."""
        self._path = path

    @cached_property
    def _secret(self) -> bytes:
        return secrets.token_bytes(_BYTES) if self._path is None else _read_or_make(self._path)

    @cached_property
    def id(self) -> str:
        """Names the key without telling anything of it."""
        return self.derived("id").hex()[:16]

    def derived(self, purpose: str) -> bytes:
        """32 bytes for one purpose, from which no other purpose's can be found."""
        return blake2b(purpose.encode(), key=self._secret, digest_size=_BYTES).digest()

    @cached_property
    def _of_texts(self) -> bytes:
        return self.derived("digests in receipts")

    def digest(self, name: str, text: str) -> str:
        """The keyed digest of a detail's whole text, with the name of the key: `ID:DIGEST`."""
        data = f"{name}\0{text}".encode("utf-8", "surrogatepass")
        return f"{self.id}:{blake2b(data, key=self._of_texts, digest_size=_BYTES).hexdigest()}"


def _read_or_make(path: Path) -> bytes:
    try:
        with suppress(FileNotFoundError):
            return _read(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_BYTES).hex().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())  # what is sealed with it must not outlive it
            with suppress(FileExistsError):  # another process was faster: its key is the one
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
