"""Leases, as functions on a record: who may hold it, until when, and what a takeover changes."""

from hutch.errors import BoxBusy
from hutch.keeper.access.callers import who
from hutch.keeper.boxes.records import BoxRecord
from hutch.model.boxes import RENEWED_AFTER, Lease
from hutch.policy import rights
from hutch.policy.rights import Action

LEASE_SECONDS = 600.0
OF_A_PROCESS = "@"
"""How the name of a session begins that ends with its process: nobody can come back under that name."""


def acquired(record: BoxRecord, session: str, now: float, seconds: float = LEASE_SECONDS) -> dict[str, object]:
    """The fields that give `session` the box. BoxBusy while another session's lease is live (P6)."""
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
        return {"lease": renewed(lease, now, seconds)}
    left = record.left_lease
    if lease is None and left is not None and holds(left, session) and left.live(now):
        return {"lease": renewed(left, now, seconds), "left_lease": None}  # other handles of the session go on, too
    return {"lease": granted(session, now, seconds, key=who().key), "left_lease": None, "epoch": record.epoch + 1}


def holds(lease: Lease, session: str) -> bool:
    """Whether the lease is this session's. A session is only a name, which every key of the owner can send: a caller
    who may not take boxes over does not pass for the session under which another key has the box."""
    if lease.holder != session:
        return False
    return Action.TAKEOVER in rights.current().actions or lease.key in ("", who().key)


def taken_over(record: BoxRecord, session: str, now: float, seconds: float = LEASE_SECONDS) -> dict[str, object]:
    """The fields that give `session` the box whoever holds it; old handles are of an older epoch from now on."""
    return {"lease": granted(session, now, seconds, key=who().key), "left_lease": None, "epoch": record.epoch + 1}


def granted(session: str, now: float, seconds: float = LEASE_SECONDS, key: str = "") -> Lease:
    expires_at = now + seconds if seconds else 0.0
    return Lease(holder=session, acquired_at=now, expires_at=expires_at, seconds=seconds, key=key)


def renewed(lease: Lease, now: float, seconds: float = LEASE_SECONDS) -> Lease:
    """Never shorter than before."""
    if lease.expires_at == 0:
        return lease
    return lease.but(expires_at=max(lease.expires_at, now + seconds), seconds=seconds)


def worth_writing(lease: Lease, now: float, seconds: float = LEASE_SECONDS) -> bool:
    """Whether the store is to see a renewal: only one that gives noticeably more time."""
    return lease.expires_at != 0 and now + seconds - lease.expires_at > RENEWED_AFTER * seconds


def regained(record: BoxRecord, session: str, acquired_at: float, now: float) -> Lease | None:
    """The lease of `session` that ended with the keeper's process, which it may go on with; None if it has none."""
    left = record.left_lease
    if record.lease is not None or left is None or left.acquired_at != acquired_at:
        return None
    if not holds(left, session) or not left.live(now):
        return None
    return left


def surviving(lease: Lease | None, asking: str = "") -> Lease | None:
    """What is left of a lease when the keeper's process is gone.

    A session of that process alone ends with it, unless another process asks in its name: processes that share a
    state directory join the session that holds a conversation's box.
    """
    if lease is not None and lease.holder.startswith(OF_A_PROCESS) and lease.holder != asking:
        return None
    return lease
