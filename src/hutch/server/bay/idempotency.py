"""Idempotency keys of the Bay API: the same request under the same key gets the same answer for an hour."""

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass

from hutch.errors import Conflict
from hutch.keeper.locks import KeyedLocks
from hutch.server.request import Call, Reply

KEPT_SECONDS = 3600.0
MAX_KEPT = 4096
_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class Kept:
    fingerprint: str
    reply: Reply
    at: float


class IdempotentReplies:
    """The answers that were given under a key recently."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self._locks = KeyedLocks()
        """A lock for each key, so that a retry waits for the first request instead of doing its work again."""

    async def once(self, call: Call, body: bytes, work: Awaitable[Reply]) -> Reply:
        """Return the answer of `work`, or that of an earlier request with the same key and content."""
        key = call.header("idempotency-key")
        if not key:
            return await work
        try:
            if _KEY.fullmatch(key) is None:
                raise Conflict("Idempotency-Key is 1 to 128 letters, digits, - and _")
            async with self._locks.lock(call.caller.owner, key):
                fingerprint = hashlib.sha256("\0".join((call.op, *call.params.values())).encode() + body).hexdigest()
                kept = self._kept.get((call.caller.owner, key))
                if kept is not None and time.monotonic() - kept.at < KEPT_SECONDS:
                    if kept.fingerprint != fingerprint:
                        raise Conflict("Idempotency-Key was used for another request")
                    return kept.reply
                reply = await work
                self._keep(call.caller.owner, key, Kept(fingerprint, reply, time.monotonic()))
                return reply
        finally:
            close = getattr(work, "close", None)
            if close is not None:
                close()  # Work that was not needed was never awaited.

    def _keep(self, owner: str, key: str, kept: Kept) -> None:
        self._kept[owner, key] = kept
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
