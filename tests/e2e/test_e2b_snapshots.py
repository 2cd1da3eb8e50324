"""Snapshots and forks of sandboxes through the newest E2B SDK, on the layers of boxes (S13)."""

import os

import e2b
import pytest

from tests.e2e.e2b_sdk import E2B

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers of a box over the machine's own files need root")


def test_a_snapshot_outlives_its_sandbox_and_makes_others(hutch_e2b: E2B) -> None:
    """(S13) Sandboxes from one snapshot begin alike and change apart; the snapshot stays until it is deleted.

    What they cannot have otherwise than the snapshot is refused.
    """
    with hutch_e2b.sandbox(metadata={"who": "first"}) as sandbox:
        sandbox.files.write("state", "kept")
        snapshot = sandbox.create_snapshot(name="kept-state")
        assert snapshot.names == ["kept-state"]
        source = sandbox.sandbox_id
    try:
        listed = e2b.Sandbox.list_snapshots(sandbox_id=source, **hutch_e2b.options).next_items()
        assert [each.snapshot_id for each in listed] == [snapshot.snapshot_id]
        with hutch_e2b.sandbox(snapshot.snapshot_id, metadata={"who": "second"}, timeout=120) as one:
            with hutch_e2b.sandbox("kept-state") as other:
                one.files.write("state", "changed")
                assert (one.files.read("state"), other.files.read("state")) == ("changed", "kept")
                assert one.get_info().metadata == {"who": "second"}
                assert other.get_info().metadata == {}
        for options in ({"network": {"deny_out": ["0.0.0.0/0"]}}, {"idempotency_key": "once"}, {"envs": {"A": "b"}}):
            with pytest.raises(e2b.SandboxException, match="501"):
                e2b.Sandbox.create(snapshot.snapshot_id, **{**hutch_e2b.options, **options})
    finally:
        assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id, **hutch_e2b.options)
    assert not e2b.Sandbox.delete_snapshot(snapshot.snapshot_id, **hutch_e2b.options)
    with pytest.raises(e2b.SandboxException, match="not found"):
        e2b.Sandbox.create(snapshot.snapshot_id, **hutch_e2b.options)


def test_forks_share_the_past_and_not_the_future(hutch_e2b: E2B) -> None:
    """(S13) Forks begin with the files of their sandbox, which keeps running."""
    with hutch_e2b.sandbox() as sandbox:
        sandbox.files.write("state", "before")
        forks = sandbox.fork(count=2)
        try:
            for fork in forks:
                assert isinstance(fork, e2b.Sandbox)
                assert fork.files.read("state") == "before"
                fork.files.write("state", "after")
            assert sandbox.files.read("state") == "before"
        finally:
            for fork in forks:
                if isinstance(fork, e2b.Sandbox):
                    fork.kill()
