"""Whether an uplink stands: only the kernel's clear word says that it does not."""

import os
import resource

from hutch.providers.native.network import uplink_name

TAG = f"t{os.getpid():x}"


def test_a_name_is_there_while_somebody_holds_it() -> None:
    assert not uplink_name.stands(TAG)
    held = uplink_name.hold(TAG)
    assert held is not None
    with held:
        assert uplink_name.stands(TAG)
        assert uplink_name.hold(TAG) is None
    assert not uplink_name.stands(TAG)


def test_a_name_that_cannot_be_checked_counts_as_held() -> None:
    """A keeper that is out of descriptors for a moment must not take its boxes for lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        assert uplink_name.stands(TAG)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
