"""Leases as functions on a record: who may hold it, until when, and what a takeover changes."""

from hutch.errors import BoxBusy
from hutch.keeper.access.callers import current_caller
from hutch.keeper.boxes.records import BoxRecord
from hutch.model.boxes import RENEWED_AFTER, Lease
from hutch.policy import rights
from hutch.policy.rights import Action

LEASE_SECONDS = 600.0
PROCESS_SESSION_PREFIX = "@"
"""The name of a session that ends with its process begins so: nobody can come back under that name."""


def fields_to_acquire(record: BoxRecord, session: str, now: float, seconds: float = LEASE_SECONDS) -> dict[str, object]:
    """Return the record's fields that give the box to `session`.

    Raises:
        BoxBusy: The lease of another session is live.
    """
    lease = record.lease
    if lease is not None and lease.live(now) and not holds(lease, session):
        raise BoxBusy(
            f"box {record.id} is held by another session",
            details={
                "box": record.id,
                "expires_in_seconds": round(lease.expires_at - now, 1) if lease.expires_at else None,
            },
            retry_after=max(0.0, lease.expires_at - now) if lease.expires_at else None,
            remedy="wait until its lease ends, take it over, or create a box of your own",
        )
    if lease is not None and holds(lease, session) and lease.live(now):
        return {"lease": renewed_lease(lease, now, seconds)}
    left = record.left_lease
    if lease is None and left is not None and holds(left, session) and left.live(now):
        # The epoch stays, so that other handles of the session keep working.
        return {"lease": renewed_lease(left, now, seconds), "left_lease": None}
    return fields_to_take_over(record, session, now, seconds)


def fields_to_take_over(
    record: BoxRecord, session: str, now: float, seconds: float = LEASE_SECONDS
) -> dict[str, object]:
    """Return the fields that give `session` the box even if another session holds it. The new epoch makes older handles
    stale."""
    lease = new_lease(session, now, seconds, key=current_caller().key)
    return {"lease": lease, "left_lease": None, "epoch": record.epoch + 1}


def holds(lease: Lease, session: str) -> bool:
    """Whether the lease belongs to this session.

    A session is only a name, which every key of the owner can send. So a caller who may not take boxes over does not
    count as the session that acquired the box with another key.
    """
    if lease.holder != session:
        return False
    return Action.TAKEOVER in rights.current().actions or lease.key in ("", current_caller().key)


def new_lease(session: str, now: float, seconds: float = LEASE_SECONDS, key: str = "") -> Lease:
    expires_at = now + seconds if seconds else 0.0
    return Lease(holder=session, acquired_at=now, expires_at=expires_at, seconds=seconds, key=key)


def renewed_lease(lease: Lease, now: float, seconds: float = LEASE_SECONDS) -> Lease:
    """Extend a lease; it never ends earlier than before."""
    if lease.expires_at == 0:
        return lease
    return lease.but(expires_at=max(lease.expires_at, now + seconds), seconds=seconds)


def renewal_is_due(lease: Lease, now: float, seconds: float = LEASE_SECONDS) -> bool:
    """Whether a renewal would extend the lease by enough to be worth a write to the store."""
    return lease.expires_at != 0 and now + seconds - lease.expires_at > RENEWED_AFTER * seconds


def resumable_lease(record: BoxRecord, session: str, acquired_at: float, now: float) -> Lease | None:
    """Return the lease of `session` that ended with the keeper's process and may be continued, or None."""
    left = record.left_lease
    if record.lease is not None or left is None or left.acquired_at != acquired_at:
        return None
    if not holds(left, session) or not left.live(now):
        return None
    return left


def surviving_lease(lease: Lease | None, asking: str = "") -> Lease | None:
    """Return what is left of a lease when the keeper's process has ended.

    A session of that process alone ends with it, unless another process asks in its name: processes that share a
    state directory join the session that holds a conversation's box.
    """
    if lease is not None and lease.holder.startswith(PROCESS_SESSION_PREFIX) and lease.holder != asking:
        return None
    return lease
