"""Leases, as pure functions on a record: who may hold it, until when, and what a takeover changes."""

from hutch.errors import BoxBusy
from hutch.keeper.records import BoxRecord
from hutch.model.boxes import Lease

LEASE_SECONDS = 600.0
OF_A_PROCESS = "@"
"""How the name of a session begins that ends with its process: nobody can come back under that name."""
RENEWED_AFTER = 0.05
"""The store sees a renewal only when it moves the expiry by this share of the lease."""


def acquired(record: BoxRecord, session: str, now: float, seconds: float = LEASE_SECONDS) -> dict[str, object]:
    """The fields that give `session` the box. BoxBusy while another session's lease is live (P6)."""
    lease = record.lease
    if lease is not None and lease.live(now) and lease.holder != session:
        raise BoxBusy(
            f"box {record.id} is held by another session",
            details={"expires_in_seconds": round(lease.expires_at - now, 1) if lease.expires_at else None},
            retry_after=max(0.0, lease.expires_at - now) if lease.expires_at else None,
            remedy="wait until its lease ends, take it over, or create a box of your own",
        )
    if lease is not None and lease.holder == session and lease.live(now):
        return {"lease": renewed(lease, now, seconds)}
    return {"lease": granted(session, now, seconds), "epoch": record.epoch + 1}


def taken_over(record: BoxRecord, session: str, now: float, seconds: float = LEASE_SECONDS) -> dict[str, object]:
    """The fields that give `session` the box whoever holds it; old handles are of an older epoch from now on."""
    return {"lease": granted(session, now, seconds), "epoch": record.epoch + 1}


def granted(session: str, now: float, seconds: float = LEASE_SECONDS) -> Lease:
    return Lease(holder=session, acquired_at=now, expires_at=now + seconds if seconds else 0.0, seconds=seconds)


def renewed(lease: Lease, now: float, seconds: float = LEASE_SECONDS) -> Lease:
    """Never shorter than before."""
    if lease.expires_at == 0:
        return lease
    return lease.but(expires_at=max(lease.expires_at, now + seconds), seconds=seconds)


def worth_writing(lease: Lease, now: float, seconds: float = LEASE_SECONDS) -> bool:
    return lease.expires_at != 0 and now + seconds - lease.expires_at > renew_interval(seconds)


def renew_interval(seconds: float = LEASE_SECONDS) -> float:
    """How often the lease of a live handle is renewed; 0: it does not expire."""
    return RENEWED_AFTER * seconds


def surviving(lease: Lease | None) -> Lease | None:
    """What is left of a lease when its holder's process is gone: a session of that process alone ends with it."""
    return None if lease is not None and lease.holder.startswith(OF_A_PROCESS) else lease
