"""The keeper's side of a native box's layers: it asks a spawner for each operation and reads the answer."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hutch.errors import BoxBroken, Conflict, EngineError, NotFound, Unsupported
from hutch.guest.protocol import decode
from hutch.linux.identity import inner_id
from hutch.model.layers import Change, Way
from hutch.providers.layers import Frozen, Layers
from hutch.providers.native import cleanup
from hutch.providers.native.layers import trees
from hutch.providers.native.layers.view import foreign
from hutch.providers.native.rootfs.root import upper_directory
from hutch.providers.native.spawn import wire

if TYPE_CHECKING:
    from hutch.providers.base import Instance
    from hutch.providers.native.instance import NativeInstance

Ask = Callable[[wire.Message, list[int]], Awaitable[wire.Message]]
_TIMEOUT = 600.0
"""Seconds for one operation; a box of many gigabytes may have to be copied."""
_MAX_ANSWER = 64 << 20
_KILL_ROUNDS = 3


class SharedLayers(NamedTuple):
    """The layers with which a fork begins."""

    state: list[str]
    trees: list[int]
    """The mounts that hold them, which the owner closes."""


class NativeLayers(Layers):
    """Layers of one native box. A state is the list of its layers, topmost first, joined by colons."""

    def __init__(self, box: "NativeInstance", ask: Ask) -> None:
        self._box = box
        self._ask = ask
        self._sharing = asyncio.Lock()
        """Held while mounts are shared: that changes a limit of the box's namespace for a moment."""
        self._shared: wire.Message | None = None
        """Shared mounts that came with a state which is about to be forked."""

    async def freeze(
        self, keep: tuple[str, ...], *, kill: bool = False, to_fork: bool = False, squash: bool = False
    ) -> Frozen:  # fmt: skip
        if kill:
            await self._end_processes()
        async with self._sharing if to_fork else contextlib.nullcontext():
            answer = await self._request("checkpoint", keep=keep, share=to_fork, squash=squash)
        if "busy" not in answer:
            if to_fork:
                self._shared = answer
            return Frozen(state=_state(answer["state"]), way=Way.SWITCH)
        return await self._copy(answer, keep)

    async def _copy(self, busy: wire.Message, keep: tuple[str, ...]) -> Frozen:
        """Freeze the whole box and copy its topmost layer. A frozen guest opens nothing, so its namespaces are here."""
        namespaces: list[int] = busy.get("fds", [])
        try:
            await self._box.pause()
            try:
                answer = await self._request("copy", namespaces, keep=keep, namespaces=len(namespaces))
            finally:
                await asyncio.shield(self._box.resume())
        finally:
            close(namespaces)
        return Frozen(state=_state(answer["state"]), way=Way.COPY)

    async def go_back(self, state: str, keep: tuple[str, ...], *, kill: bool = False) -> None:
        if kill:
            await self._end_processes()
        self._check_idle(await self._request("rollback", state=layers_of(state), keep=keep))

    async def compare(self, start: str, end: str, *, text: bool) -> tuple[tuple[Change, ...], bool]:
        found = await self._long_answer("compare", start=layers_of(start), end=layers_of(end), text=text)
        return tuple(Change.from_plain(each) for each in found["changes"]), bool(found["truncated"])

    async def sizes(self, states: Sequence[str]) -> tuple[int, ...]:
        seen: set[str] = set()
        layers: list[list[str]] = []
        for state in states:
            layers.append([each for each in layers_of(state) if each not in seen] if state else [""])
            seen.update(layers[-1])
        return tuple((await self._long_answer("sizes", layers=layers))["sizes"])

    async def merge(
        self, fork: "Instance", start: str, fork_start: str, fork_end: str, keep: tuple[str, ...]
    ) -> tuple[str, ...]:
        theirs = cast("NativeInstance", fork).layers
        assert isinstance(theirs, NativeLayers)
        store = str(fork.record.data.get("store") or "")
        # As root, a persistent box sees its store through ids of its own, which cannot be mapped once more.
        from_host = bool(store) and not self._box.record.data.get("namespaces")
        count, mounts = (0, []) if from_host else await theirs.share()
        try:
            found = await self._long_answer(
                "merge", mounts[:count], trees=count, stores=[store] if from_host else [], state=layers_of(start),
                fork=layers_of(fork_end), fork_base=layers_of(fork_start), keep=keep,
            )  # fmt: skip
        finally:
            close(mounts)
        if conflicts := found["conflicts"]:
            raise Conflict(
                f"{len(conflicts)} paths were changed in both boxes, beginning with {conflicts[0]}",
                op="merge", details={"conflicts": conflicts},
                remedy="change them in one of the boxes so that both agree, then merge again; nothing was merged",
            )  # fmt: skip
        return tuple(found["merged"])

    async def write_layer(self, state: str, path: str) -> None:
        count, mounts = await self.share()
        try:
            await asyncio.to_thread(_write_layer, mounts[-count:], layers_of(state), path)
        except OSError as error:
            raise EngineError(f"the files of the box cannot be read: {error}", op="image.from_box") from error
        finally:
            close(mounts)

    async def drop(self, keep: tuple[str, ...]) -> None:
        await self._request("prune", keep=keep)

    # --- forks ------------------------------------------------------------------------------------------------

    async def share(self) -> tuple[int, list[int]]:
        """Copies of the mounts that hold this box's layers: how many, and all descriptors, some of them twice."""
        answer, self._shared = self._shared, None
        if answer is None:
            async with self._sharing:
                answer = await self._request("share")
        return int(answer["sources"]), answer.get("fds", [])

    def forget_shared(self) -> None:
        """Close shared mounts that no fork has asked for."""
        answer, self._shared = self._shared, None
        if answer is not None:
            close(answer.get("fds", []))

    # --- requests ---------------------------------------------------------------------------------------------

    async def _end_processes(self) -> None:
        for _ in range(_KILL_ROUNDS):  # a process that was just starting may have been missed
            await self._box.kill_processes()

    def _check_idle(self, answer: wire.Message) -> None:
        if "busy" not in answer:
            return
        close(answer.get("fds", []))
        working = ", ".join(answer["busy"][:5])
        raise Conflict(
            f"box {self._box.record.box_id} is working: {working}",
            details={"busy": answer["busy"], "count": answer["count"]},
            remedy="wait for its jobs, end them, or pass kill=True",
        )

    async def _long_answer(self, action: str, fds: Sequence[int] = (), **values: Any) -> dict[str, Any]:
        memory = os.memfd_create("hutch-layers", os.MFD_CLOEXEC)
        try:
            self._check_idle(await self._request(action, [*fds, memory], memory=1, **values))
            if os.fstat(memory).st_size > _MAX_ANSWER:
                raise EngineError("the answer is too long", op=action, remedy="compare states that are closer")
            found: dict[str, Any] = decode(wire.read_memfd(os.dup(memory)))
            return found
        finally:
            os.close(memory)

    async def _request(self, action: str, fds: list[int] | None = None, **values: Any) -> wire.Message:
        self.forget_shared()
        facts = self._box.record.data
        if "namespaces" not in facts:
            raise Unsupported(
                f"box {self._box.record.box_id} was started by an earlier release, whose guest knows no layers",
                op=action, remedy="stop it and use it again if it is persistent, or make a new box",
            )  # fmt: skip
        if "keep" in values:  # what counts is which layers there are, which many states have in common
            values["keep"] = [":".join(dict.fromkeys(layer for state in values["keep"] for layer in layers_of(state)))]
        message = {name: facts[name] for name in ("pid", "start", "boot", "directory", "namespaces")}
        async with asyncio.timeout(_TIMEOUT):
            answer = await self._ask({**message, "action": action, "values": values}, fds or [])
        if "ready" in answer or "busy" in answer:
            return answer
        raise self._failure(action, answer)

    def _failure(self, action: str, answer: wire.Message) -> EngineError | NotFound | BoxBroken:
        step, error, number = answer.get("step", ""), answer.get("error", ""), answer.get("errno", "")
        box = self._box.record.box_id
        details = {"step": step, "errno": number}
        if number == "ESRCH":
            return BoxBroken(f"box {box} no longer runs", op=action, details=details)
        if number == "ESTALE":
            return NotFound(f"box {box} has no such state of its files any more", op=action, details=details)
        remedy = _REMEDIES.get(number, "the box is as it was; run `hutch doctor`")
        return EngineError(f"{action} of box {box} failed: {step}: {error}", op=action, details=details, remedy=remedy)


_REMEDIES = {
    "ENOSPC": "the box is as it was: remove files or checkpoints, or ask for a larger disk_mb",
    "EDQUOT": "the box is as it was: remove files or checkpoints, or ask for a larger disk_mb",
    "ELOOP": "the box is as it was: in that state a link stands where a directory is mounted now",
    "EAGAIN": "the box is as it was: try again, or end the box of this user that has many descriptors on their way",
    "EOPNOTSUPP": "the box's guest is of an earlier release: stop and restore the box, or make a new one",
}


def _state(layers: list[str]) -> str:
    return ":".join(layers)


def layers_of(state: str) -> list[str]:
    return state.split(":") if state else []


def _write_layer(bases: list[int], state: list[str], path: str) -> None:
    """Merge the layers of a state, and write them as the tar of one layer of an OCI image.

    `bases` are the mounts that hold the layers: the box's own, then those of boxes before it. They are attached
    nowhere, and are walked by their descriptors.
    """
    from hutch.images.layers import diff  # It loads archives, which few callers need.

    def directory(layer: str) -> str:
        source, _, name = foreign(layer, "").partition("/")
        return f"/proc/self/fd/{bases[int(source)]}/{upper_directory(name)}"

    def owner(number: int) -> int:
        """An ordinary user has one id, which is root in the image."""
        return inner_id(number) if os.geteuid() == 0 else 0

    draft = tempfile.mkdtemp(prefix="hutch-layer-")
    try:
        merged = os.path.join(draft, "merged")
        trees.squash([directory(layer) for layer in state], merged)
        with open(path, "xb") as out:
            diff.from_changes(merged, out, owner, with_workspace=True)
    finally:
        cleanup.remove_tree(draft)


def close(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
