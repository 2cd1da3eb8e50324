"""The watch of a keeper's Pods continues whatever it shows, and what it shows is bounded before people read it."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import EngineError
from hutch.providers.guest_bundle.listener import NO_KEEPER
from hutch.providers.kubernetes import pods as pod_states
from hutch.providers.kubernetes.cluster import Cluster
from hutch.providers.kubernetes.pods import Phase, Pods
from hutch.providers.kubernetes.settings import Settings
from tests.kubernetes.api_server import Script, failure, scripted
from tests.kubernetes.test_faults import RECORDED

RUNNING: dict[str, Any] = {"type": "ADDED", "object": {"apiVersion": "v1", "kind": "Pod", **RECORDED["running"]}}


@pytest.fixture(autouse=True)
def only_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found out by asking for one Pod, however slow this machine is."""
    monkeypatch.setattr(pod_states, "_LOOK_SECONDS", 300.0)


@asynccontextmanager
async def watching(directory: Path, *answers: Any) -> AsyncIterator[tuple[Script, Pods]]:
    """Follow the Pods of a script whose watches show these answers, one after the other."""
    async with scripted(directory) as (script, path):
        script.on("WATCH", "/pods", *answers)
        cluster = Cluster(Settings(kubeconfig=str(path)))
        pods = Pods(cluster, "keeper-1")
        try:
            yield script, pods
        finally:
            await pods.close()
            await cluster.close()


@pytest.mark.parametrize(
    "event",
    [
        {"type": "ERROR", "object": failure(410, "too old resource version", reason="Expired")},
        {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "5"}}},
        {"type": "ADDED"},
        ["no event"],
    ],
    ids=["expired", "bookmark", "empty", "nonsense"],
)
async def test_no_event_ends_the_watching(tmp_path: Path, event: Any) -> None:
    """An event that is an error, or that nobody understands, is followed by the next watch (lesson 12)."""
    async with watching(tmp_path, [event, RUNNING], [RUNNING, "silence"]) as (_, pods):
        ended = asyncio.Event()
        pods.on_end("rec-running", ended.set)
        assert pod_states.phase(await pods.wait_for_running("rec-running", 60)) is Phase.RUNNING


async def test_a_text_in_a_pod_cannot_break_the_watch(tmp_path: Path) -> None:
    """A container may leave any last message. One that holds what Unicode calls an end of line is one event still."""
    first = copy.deepcopy(RUNNING)
    first["object"]["metadata"]["annotations"] = {"said": "one\x85two\u2028three\x1c"}
    async with watching(tmp_path, [first, "silence"]) as (script, pods):
        assert await pods.wait_for_running("rec-running", 60)
        assert len(script.asked) == 1, "the first watch has shown it"


async def test_a_watch_that_ends_at_once_is_not_asked_for_without_pause(tmp_path: Path) -> None:
    """A server that ends each watch at once is asked ever less often, and not in a loop."""
    async with watching(tmp_path, []) as (script, _):
        begun = time.monotonic()
        await asyncio.sleep(2)
        assert len(script.asked) <= 6 + time.monotonic() - begun  # without pauses, hundreds


async def test_a_box_ends_with_its_relay(tmp_path: Path) -> None:
    """The relay is the only way to a box: when it is gone the box has ended, and the reason names it."""
    pod = copy.deepcopy(RUNNING)
    pod["type"] = "MODIFIED"
    (relay,) = [each for each in pod["object"]["status"]["containerStatuses"] if each["name"] == "relay"]
    relay["state"] = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    assert pod_states.phase(pod["object"]) is Phase.ENDED
    assert pod_states.reason_of_end(pod["object"]) == "its relay: OOMKilled (exit code 137)"
    async with watching(tmp_path, [RUNNING, pod, "silence"]) as (_, pods):
        ended = asyncio.Event()
        pods.on_end("rec-running", ended.set)
        async with asyncio.timeout(30):
            await ended.wait()


async def test_what_a_container_says_is_bounded(tmp_path: Path) -> None:
    """The last message of a container that an enemy wrote neither fills an error nor moves a terminal's cursor."""
    pod = copy.deepcopy(RUNNING)
    (box,) = [each for each in pod["object"]["status"]["containerStatuses"] if each["name"] == "box"]
    box["state"] = {"terminated": {"exitCode": 1, "message": "\x1b[2J\x85" + "x" * 100_000}}
    async with watching(tmp_path, [pod, "silence"]) as (script, pods):
        script.on("GET", "/log", {"said": "\x1b[1m" + "y" * 100_000})
        with pytest.raises(EngineError, match="container box ended with 1") as caught:
            await pods.wait_for_running("rec-running", 60)
        assert caught.value.message.isprintable() and len(caught.value.message) < 2_000
        assert any(path.endswith("/log") for _, path in script.asked)


@pytest.mark.parametrize(("code", "retryable"), [(1, False), (NO_KEEPER, True)])
async def test_a_guest_to_which_its_keeper_was_late_is_made_again(tmp_path: Path, code: int, retryable: bool) -> None:
    """A box that ended because a busy keeper did not come in time is an error that says to try again."""
    pod = copy.deepcopy(RUNNING)
    (box,) = [each for each in pod["object"]["status"]["containerStatuses"] if each["name"] == "box"]
    box["state"] = {"terminated": {"exitCode": code, "reason": "Error"}}
    async with watching(tmp_path, [pod, "silence"]) as (script, pods):
        script.on("GET", "/log", {"said": "no keeper came"})
        with pytest.raises(EngineError, match="no keeper came") as caught:
            await pods.wait_for_running("rec-running", 60)
        assert caught.value.retryable is retryable
