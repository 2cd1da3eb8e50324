"""Leases as pure functions: who may hold a box, and until when."""

import pytest

from hutch.errors import BoxBusy
from hutch.keeper.access import leases
from tests.keeper.sample_records import record


def test_a_free_box_is_acquired_with_a_new_epoch() -> None:
    box = record()
    fields = leases.fields_to_acquire(box, "s1", 100.0)
    assert fields["epoch"] == box.epoch + 1
    assert fields["lease"] == leases.new_lease("s1", 100.0)


def test_a_held_box_is_busy_and_says_until_when() -> None:
    """Busy is an answer, not a crash (P6, P7)."""
    box = record().but(lease=leases.new_lease("somebody-else", 100.0))
    with pytest.raises(BoxBusy) as caught:
        leases.fields_to_acquire(box, "s2", 200.0)
    assert caught.value.retry_after == pytest.approx(500.0)
    assert "somebody-else" not in str(caught.value), "another session's name is not the caller's business"


def test_the_holder_renews_without_a_new_epoch_and_never_shortens() -> None:
    """Renewal never shortens (P6)."""
    box = record().but(lease=leases.new_lease("s1", 100.0, 6000.0))
    fields = leases.fields_to_acquire(box, "s1", 200.0)
    assert "epoch" not in fields
    assert box.lease is not None
    assert fields["lease"] == box.lease.but(seconds=leases.LEASE_SECONDS), "the next one is of the usual length"


def test_an_expired_lease_is_over_for_good() -> None:
    """An expired lease cannot be renewed, even by its holder: it is a new one, of a new epoch (P6)."""
    box = record().but(lease=leases.new_lease("s1", 100.0))
    fields = leases.fields_to_acquire(box, "s1", 800.0)
    assert fields["epoch"] == box.epoch + 1


def test_a_lease_without_end_holds_until_released() -> None:
    """0 disables expiry (P6)."""
    box = record().but(lease=leases.new_lease("s1", 100.0, 0.0))
    with pytest.raises(BoxBusy) as caught:
        leases.fields_to_acquire(box, "s2", 1e12)
    assert caught.value.retry_after is None
    assert not leases.renewal_is_due(leases.new_lease("s1", 100.0, 0.0), 1e12)


def test_a_takeover_always_bumps_the_epoch() -> None:
    box = record().but(lease=leases.new_lease("s1", 100.0))
    assert leases.fields_to_take_over(box, "s2", 200.0)["epoch"] == box.epoch + 1


def test_only_a_real_move_is_worth_a_write() -> None:
    lease = leases.new_lease("s1", 100.0)
    assert not leases.renewal_is_due(lease, 120.0)
    assert leases.renewal_is_due(lease, 140.0)
