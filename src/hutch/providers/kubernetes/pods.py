"""The Pods of this keeper's boxes, followed by one watch, and what their states mean for a box."""

import asyncio
import contextlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from hutch.errors import EngineError, HutchError, NotFound, QuotaExceeded, Refused, Unavailable
from hutch.logs import log
from hutch.providers.guest_bundle.listener import NO_KEEPER
from hutch.providers.kubernetes.cluster import Cluster
from hutch.providers.kubernetes.manifests import KEEPER, Manifest

_PULL_FAILURES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_PARTS = ("box", "relay")
"""The containers that a box needs."""
_CREATE_FAILURES = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_REOPEN_SECONDS = (0.1, 5.0)
"""The first and the longest pause before a watch that did not last is opened again."""
_LASTING_SECONDS = 30.0
_LOOK_SECONDS = 5.0
"""Seconds between two looks at a Pod that starts, besides what the watch shows."""
_TEXT_LETTERS = 1000


class Phase(StrEnum):
    """What a Pod means for its box."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"


def phase(pod: Manifest) -> Phase:
    """Return the phase of a box's Pod. It ends with the box's own container, and with the relay, the only way to it."""
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return Phase.GONE
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return Phase.ENDED
    states = _states(status)
    if any("terminated" in states.get(name, {}) for name in _PARTS):
        return Phase.ENDED
    return Phase.RUNNING if all("running" in states.get(name, {}) for name in _PARTS) else Phase.STARTING


def reason_of_end(pod: Manifest) -> str:
    """Return why a box ended: out of memory, evicted, its node lost, or its container's exit code."""
    status = pod.get("status") or {}
    if status.get("reason"):
        return printable(f"{status['reason']}: {status.get('message', '')}".strip(": "))
    states = _states(status)
    for name in _PARTS:
        if ended := states.get(name, {}).get("terminated"):
            whose = "" if name == "box" else f"its {name}: "
            return printable(f"{whose}{ended.get('reason', 'ended')} (exit code {ended.get('exitCode')})")
    return "its Pod is gone"


def printable(text: str) -> str:
    """Return what a registry, a node or a container's last message says as bounded text for people."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_TEXT_LETTERS])


def _states(status: Manifest) -> dict[str, Manifest]:
    return {each["name"]: each.get("state") or {} for each in status.get("containerStatuses") or ()}


def trouble(pod: Manifest) -> str:
    """Return why a Pod that runs by its last report may not be reached: its node has stopped reporting. "" if none."""
    conditions = {each.get("type"): each for each in (pod.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    if phase(pod) is not Phase.RUNNING or ready.get("status", "True") == "True":
        return ""
    return f"node {(pod.get('spec') or {}).get('nodeName')} does not answer: {ready.get('reason') or 'Pod not ready'}"


def refusal(pod: Manifest) -> HutchError | None:
    """Return the error of a Pod that cannot start by waiting: an image that cannot be pulled, a wrong configuration."""
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = each.get("state") or {}
        waiting = state.get("waiting") or {}
        why = printable(f"container {each['name']}: {waiting.get('reason')}: {waiting.get('message', '')}".strip(": "))
        if waiting.get("reason") in _PULL_FAILURES:
            return NotFound(
                why, op="create", remedy="check the image's name, `pull` and `pull_secrets` of the provider"
            )
        if waiting.get("reason") in _CREATE_FAILURES:
            return EngineError(why, op="create", remedy="see `kubectl describe pod`")
        ended = state.get("terminated") or {}
        if ended and ended.get("exitCode"):
            said = ended.get("message") or ended.get("reason")
            message = printable(f"container {each['name']} ended with {ended['exitCode']}: {said}")
            # A keeper that was late, because it or the cluster was busy, may try again.
            late = each["name"] == "box" and ended["exitCode"] == NO_KEEPER
            return EngineError(message, op="create", details={"container": each["name"]}, retryable=late)
    return None


class Pods:
    """Follows all Pods of one keeper by one watch, so that no box is asked about again and again."""

    def __init__(self, cluster: Cluster, keeper: str) -> None:
        self._cluster = cluster
        self._keeper = keeper
        self._seen: dict[str, Manifest] = {}
        self._changed = asyncio.Event()
        """Set at the next change, then replaced: each waiter keeps the event it saw before it looked."""
        self._ends: dict[str, Callable[[], None]] = {}
        self._refused: Refused | None = None
        """Why the cluster does not let us watch."""
        self._watching = asyncio.create_task(self._watch(), name="hutch-kubernetes-watch")

    async def wait_for_running(self, name: str, seconds: float, *, made_by_controller: bool = False) -> Manifest:
        """Wait until the box's container runs. A Pod that a controller makes may not be there yet.

        Raises:
            NotFound, EngineError: The Pod cannot start, or was deleted.
            Refused: The cluster does not let us watch Pods.
            QuotaExceeded: No node has room for it; the error says what the scheduler says.
            Unavailable: It has not started in time, for a reason that may pass.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    changed = self._changed
                    if (pod := self._seen.get(name)) is not None:
                        found = phase(pod)
                        if found is Phase.RUNNING:
                            return pod
                        if (error := refusal(pod)) is not None:
                            raise await self._with_last_words(error, name)
                        if found is not Phase.STARTING:
                            raise EngineError(f"Pod {name} ended: {reason_of_end(pod)}", op="create")
                    if self._refused is not None:
                        raise self._refused
                    await self._wait_for_change(changed, name, may_be_missing=made_by_controller and pod is None)
        except TimeoutError:
            raise await self._late(name, seconds) from None

    def on_end(self, name: str, call: Callable[[], None]) -> None:
        """Call once when the Pod's box has ended or the Pod is gone."""
        self._ends[name] = call
        if (pod := self._seen.get(name)) is not None:
            self._tell_end(name, pod)

    def forget(self, name: str) -> None:
        self._ends.pop(name, None)

    async def close(self) -> None:
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching

    async def _wait_for_change(self, changed: asyncio.Event, name: str, *, may_be_missing: bool) -> None:
        """Wait for the next change. A watch that has fallen silent shows none, so the Pod is asked for now and then."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await changed.wait()
        except TimeoutError:
            try:
                self._note("MODIFIED", name, await self._cluster.get("Pod", name))
            except NotFound as error:
                if not may_be_missing:
                    raise EngineError(f"Pod {name} was deleted while it started", op="create") from error
            except Unavailable as error:
                log("kubernetes").info("no answer about a Pod that starts", pod=name, error=error.message)

    async def _with_last_words(self, error: HutchError, name: str) -> HutchError:
        container = error.details.get("container")
        words = printable(await self._cluster.log(name, container)) if isinstance(container, str) else ""
        if not words:
            return error
        return EngineError(
            f"{error.message}: {words}", op=error.op, details=error.details, retryable=error.retryable
        )  # fmt: skip

    async def _late(self, name: str, seconds: float) -> HutchError:
        """Return why a Pod has not started, from its conditions and events."""
        try:
            said = [printable(each) for each in (await self._cluster.events(name))[-3:]]
        except HutchError as error:
            said = [error.message, error.remedy]
        message = f"Pod {name} did not run within {seconds:g} s: {'; '.join(said) or 'the cluster does not say why'}"
        conditions = ((self._seen.get(name) or {}).get("status") or {}).get("conditions") or ()
        if any(each.get("reason") == "Unschedulable" for each in conditions):
            return QuotaExceeded(message, op="create", retryable=True, remedy="add a node, or ask for less")
        return Unavailable(message, op="create", remedy="see `kubectl describe pod`, or raise start_timeout_sec")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        pause = _REOPEN_SECONDS[0]
        while True:
            missing, begun = set(self._seen), loop.time()
            try:
                async for change, pod in self._cluster.watch({KEEPER: self._keeper}):
                    name = pod["metadata"]["name"]
                    missing.discard(name)
                    self._note(change, name, pod)
                    self._refused = None
            except HutchError as error:
                log("kubernetes").info("watch ended", error=error.message)
                self._refused = error if isinstance(error, Refused) else None
                self._wake()
            except Exception as error:  # The task's boundary: whatever one event was, the next ones are wanted.
                log("kubernetes").warning("watch broke", error=repr(error))
            await self._forget_gone(missing)
            if loop.time() - begun > _LASTING_SECONDS:
                pause = _REOPEN_SECONDS[0]
            await asyncio.sleep(pause)
            pause = min(pause * 2, _REOPEN_SECONDS[1])

    async def _forget_gone(self, missing: set[str]) -> None:
        """Ask about Pods that the last watch did not show: they may have gone while no watch was open."""
        for name in missing:
            try:
                await self._cluster.get("Pod", name)
            except NotFound:
                self._note("DELETED", name, self._seen.get(name, {}))
            except HutchError:
                return  # the next watch will tell

    def _note(self, change: str, name: str, pod: dict[str, Any]) -> None:
        if change == "DELETED":
            self._seen.pop(name, None)
            pod = {"metadata": {"name": name, "deletionTimestamp": "now"}}
        else:
            self._seen[name] = pod
        self._tell_end(name, pod)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _tell_end(self, name: str, pod: Manifest) -> None:
        if phase(pod) in (Phase.ENDED, Phase.GONE) and (call := self._ends.pop(name, None)) is not None:
            call()
