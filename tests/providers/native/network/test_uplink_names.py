"""Whether an uplink is alive: only the kernel's clear word says that it does not."""

import os
import resource

from hutch.providers.native.network import namespaces

TAG = f"t{os.getpid():x}"


def test_a_name_is_there_while_somebody_holds_it() -> None:
    assert not namespaces.uplink_is_alive(TAG)
    held = namespaces.hold_uplink_name(TAG)
    assert held is not None
    with held:
        assert namespaces.uplink_is_alive(TAG)
        assert namespaces.hold_uplink_name(TAG) is None
    assert not namespaces.uplink_is_alive(TAG)


def test_a_name_that_cannot_be_checked_counts_as_held() -> None:
    """A keeper that is out of descriptors for a moment must not take its boxes for lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        assert namespaces.uplink_is_alive(TAG)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
