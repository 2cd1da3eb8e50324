"""Who calls: API keys in the form that E2B's SDKs accept, the token of each sandbox, and signed URLs of files.

An E2B key is a Hutch key in another spelling (`e2b_` and the hexadecimal form of its text), because some releases of
the SDK accept nothing else. A sandbox's tokens are derived from the state directory's key, so they need no place in the
store and survive a restart.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Iterable

from hutch.errors import Unauthenticated
from hutch.keeper.store.state_key import StateKey

PREFIX = "e2b_"
MAX_COMPARED = 5_000
"""Tokens with which one signature is compared. That takes about 12 ms, which anybody without a key can ask for."""
_PURPOSE = "tokens of E2B sandboxes"


def to_e2b_key(text: str) -> str:
    """Return the spelling of a Hutch key that every release of the SDK accepts."""
    return PREFIX + text.encode().hex()


def to_hutch_key(text: str) -> str:
    """Return the Hutch key of either spelling; anything else opens nothing."""
    if not text.startswith(PREFIX):
        return text
    try:
        return bytes.fromhex(text.removeprefix(PREFIX)).decode("ascii")
    except ValueError:
        return ""


class Tokens:
    """The access tokens of sandboxes: `KEY.MAC`, where KEY is the id of the Hutch key that asked for it.

    Each key gets its own token of a sandbox. Whoever uses the token acts within the rights of that key, and no longer
    than the key lives.
    """

    def __init__(self, state_key: StateKey) -> None:
        self._state_key = state_key
        self._secret = b""

    def of(self, sandbox: str, key_id: str) -> str:
        """Return the token with which `key_id` uses a sandbox."""
        # The file is read or created at the first sandbox: most servers never have one.
        self._secret = self._secret or self._state_key.derived(_PURPOSE)
        mac = hmac.new(self._secret, f"{sandbox}\0{key_id}".encode(), hashlib.sha256).hexdigest()
        return f"{key_id}.{mac}"

    def key_of(self, sandbox: str, token: str) -> str:
        """Return the id of the key to which this token was given."""
        key_id = token.partition(".")[0]
        if not hmac.compare_digest(self.of(sandbox, key_id).encode(), token.encode("utf-8", "replace")):
            raise Unauthenticated("the access token is not for this", remedy="connect again")
        return key_id


class SignedRequest:
    """A request for a file that carries a signature instead of a token."""

    def __init__(self, path: str, user: str, signature: str, expiration: str, *, writes: bool) -> None:
        if not signature:
            raise Unauthenticated("missing signature query parameter")
        self._signature = signature
        self._signed = f"{path}:{'write' if writes else 'read'}:{user}:"
        self._expiration = expiration

    def signer(self, tokens: Tokens, candidates: Iterable[tuple[str, str]]) -> tuple[str, str]:
        """Return the sandbox and the id of the key whose token signed this, of the pairs that may have.

        Raises:
            Unauthenticated: None of them did, or none of the first `MAX_COMPARED`.
        """
        for number, (sandbox, key_id) in enumerate(candidates):
            if number == MAX_COMPARED:
                raise Unauthenticated(
                    "invalid signature, or one of too many sandboxes", remedy="name the sandbox by E2b-Sandbox-Id"
                )
            if self._is_signed_by(tokens.of(sandbox, key_id)):
                return sandbox, key_id
        raise Unauthenticated("invalid signature")

    def _is_signed_by(self, token: str) -> bool:
        text = self._signed + token + (f":{self._expiration}" if self._expiration else "")
        digest = base64.b64encode(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()).rstrip(b"=")
        return hmac.compare_digest(b"v1_" + digest, self._signature.encode("utf-8", "replace"))

    def check_expiration(self) -> None:
        """Raise Unauthenticated with the words that the SDKs' tests know."""
        if not self._expiration:
            return
        if not (self._expiration.isascii() and self._expiration.isdigit() and len(self._expiration) < 20):
            raise Unauthenticated("invalid signature")
        if int(self._expiration) < time.time():
            raise Unauthenticated("signature is already expired")
