"""A short-lived fork of the spawner that works on the layers of one box, from the base of its mount namespace.

It asks the box's guests to stand still, enters, does one operation and reports. It goes on by itself if its spawner or
its keeper dies meanwhile, and everything before the moment of the switch leaves the box as it was. Standard library
only.
"""

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

from hutch.guest.protocol import REQUEST, encode, frame
from hutch.linux import kernel, processes
from hutch.providers.native.layers import changes, merge, trees
from hutch.providers.native.layers.adoption import attach, map_ids, unmapped
from hutch.providers.native.layers.guests import Answer, connect
from hutch.providers.native.layers.view import State, View, read_file, umount, write_file
from hutch.providers.native.rootfs.root import upper_directory as upper
from hutch.providers.native.spawn import wire
from hutch.providers.native.spawn.prefault import PageRanges

_SQUASH_FROM = 48
"""A box with this many layers gets a new lowest one, made of all but the topmost `_SQUASH_KEEPS`. Looking up a name
that does not exist costs about a microsecond for each layer."""
_SQUASH_KEEPS = 8
_LAST = "last"
"""The file with the highest number that a layer of this box has had."""


class LayerRequest(NamedTuple):
    """What to do, to which box."""

    process: processes.Identity
    directory: str
    has_id_ranges: bool
    namespaces: tuple[str, ...]
    """The names of the box's user and mount namespaces at its creation ("user:[4026532180]"), to know them again."""
    action: str
    values: dict[str, Any]
    fds: list[int]
    """Descriptors of the request: namespaces of a frozen box, mounts of other boxes, memory for a long answer."""


class Busy(Exception):
    """Something works in the box, so that its files cannot be switched now."""


class LayerEntry:
    """Runs in the fork."""

    def __init__(self, request: LayerRequest, sock: socket.socket, pages: PageRanges) -> None:
        self._request = request
        self._sock = sock
        self._pages = pages
        self._guests: list[socket.socket] = []
        self._awaits = False
        """Whether PID 1 has not answered yet."""
        self._busy: list[str] = []
        self._busy_count = 0
        self._namespaces: list[int] = []
        self._sent: list[int] = []
        self._unmapped: list[int] = []
        self._opened: list[int] = []
        self._proc_self = -1
        self._parts: set[int] = set()
        self._unused: list[str] = []
        self._unused_works: list[str] = []
        self.step = "find the box"

    def run(self) -> NoReturn:
        """Do it, report, and end; never returns."""
        try:
            action, quiet = _ACTIONS[self._request.action]
            if self._request.values.get("text"):
                import difflib  # noqa: F401 no module can be loaded from inside the box
            self._proc_self = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            # Who has entered a box is not dumpable, and may not open them any more.
            names = () if self._pages.known else ("maps", "pagemap")
            memory = [os.open(f"/proc/self/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
            self._ask(stand_still=quiet)
            self.step = "enter the namespaces"
            self._enter()
            self.step = "read the mounts"
            os.chdir("/")
            # The process before this one may still be unmounting the view that it has replaced.
            lock = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._check_unmapped()
            view = View(self._proc_self)
            self.step = self._request.action
            answer = action(self, view)
            with suppress(BrokenPipeError, ConnectionResetError):  # the keeper has died, and the box is switched
                wire.send(self._sock, {"ready": True, **answer}, self._sent)
        except Busy as busy:
            wire.send(self._sock, {"busy": list(busy.args[0]), "count": busy.args[1]}, self._namespaces)
        except BaseException as error:
            with suppress(OSError):
                wire.send(self._sock, wire.error_message(self.step, error))
            os._exit(1)
        for guest in self._guests:
            guest.close()  # the box goes on
        self._sock.close()
        with suppress(BaseException):
            view.release()
            os.close(lock)
            self._remove_unused()
            if memory:
                self._pages.note(*memory)
        os._exit(0)

    # --- entering ---------------------------------------------------------------------------------------------

    def _ask(self, *, stand_still: bool) -> None:
        """Ask every guest to stand still, PID 1 last, which also says what else runs in the box.

        Root needs no guest to enter the box, so PID 1 answers while this process enters. Without root the way into the
        box is a part of the answer.
        """
        is_frozen = bool(self._given("namespaces"))  # then nobody would answer
        if is_frozen or not (stand_still or not self._request.has_id_ranges):
            return
        names = sorted(name for name in os.listdir(self._request.directory) if name.startswith("deputy"))
        pids: list[int] = []
        for name in (*names, "guest"):
            self.step = f"ask the box's {name}"
            try:
                sock = connect(self._request.directory, name)
            except ConnectionRefusedError:
                if name == "guest":
                    raise
                continue  # a root guest that has ended
            self._guests.append(sock)
            fields = {"op": "hold", "guests": pids, "wait": stand_still}
            if name == "guest" and not self._request.has_id_ranges:
                fields["namespaces"] = True
            sock.sendall(frame(REQUEST, 1, encode(fields)))
            if name != "guest":
                pids.append(self._hear(sock))
        if self._request.has_id_ranges:
            self._awaits = True
        else:
            self._hear(self._guests[-1])

    def await_stillness(self) -> None:
        """Wait until the last guest stands still, which it was asked for before.

        Raises:
            Busy: Something works in the box.
        """
        if self._awaits:
            self._awaits = False
            self._hear(self._guests[-1])
        if self._busy_count:
            raise Busy(self._busy[:20], self._busy_count)

    def _hear(self, guest: socket.socket) -> int:
        """Read a guest's answer and return its pid."""
        pid: int = Answer(guest).fields["pid"]  # the guest's HELLO comes first
        answer = Answer(guest)
        if "code" in answer.fields:
            unknown = answer.fields["code"] == "unsupported"
            raise OSError(errno.EOPNOTSUPP if unknown else errno.EAGAIN, str(answer.fields.get("message")), "guest")
        self._busy += [str(each)[:100] for each in answer.fields["busy"]]
        self._busy_count += int(answer.fields["count"])
        self._namespaces = answer.descriptors
        return pid

    def _enter(self) -> None:
        request = self._request
        if request.has_id_ranges:
            pidfd = request.process.open()
            if pidfd is None:
                raise ProcessLookupError(errno.ESRCH, "the box no longer runs")
            self._map_ids()
            kernel.setns(pidfd, kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
            os.close(pidfd)
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            return
        found = self._given("namespaces") or self._namespaces
        # Threat: a guest that was taken over sends other namespaces than its own.
        for fd, known in zip(found, request.namespaces, strict=True):
            if os.readlink(f"/proc/self/fd/{fd}") != known:
                raise PermissionError(errno.EPERM, "the guest showed another namespace than its own")
        for fd, kind in zip(found, (kernel.CLONE_NEWUSER, kernel.CLONE_NEWNS), strict=True):
            kernel.setns(fd, kind)

    def _map_ids(self) -> None:
        """Have the files of other boxes seem this box's own. Only root on the host may, before it enters."""
        stores = self.values("stores")
        if not self._given("trees") and not stores:
            return
        self._opened = [kernel.open_tree(kernel.AT_FDCWD, store, kernel.OPEN_TREE_CLONE) for store in stores]
        self._unmapped = map_ids(self.trees(), self._request.process.pid)

    def _check_unmapped(self) -> None:
        """Refuse a mount whose ids could not be mapped, unless it is this box's own, which has the right ids."""
        own = os.stat(".").st_dev
        if any(os.fstat(tree).st_dev != own for tree in self._unmapped):
            raise unmapped()

    def trees(self) -> list[int]:
        """The mounts that hold another box's layers: from that box itself, or its store, which only root opens."""
        return [*self._given("trees"), *self._opened]

    def _given(self, name: str) -> list[int]:
        """The descriptors of the request that are `namespaces`, `trees` (mounts of another box) or `memory`, in this
        order."""
        at = 0
        for each in ("namespaces", "trees", "memory"):
            count = int(self._request.values.get(each, 0))
            if each == name:
                return self._request.fds[at : at + count]
            at += count
        return []

    # --- the operations ---------------------------------------------------------------------------------------

    def values(self, name: str) -> list[str]:
        return [str(each) for each in self._request.values.get(name, ())]

    def _next_layer(self) -> str:
        """A number that no layer of this box has had: an earlier process may still be removing the last ones."""
        names = [name.removesuffix(".stack") for name in os.listdir(".")]
        taken = [int(name) for name in names if name.isdecimal()]
        with suppress(FileNotFoundError):
            taken.append(int(read_file(_LAST)))
        layer = str(max(taken) + 1)
        write_file(_LAST, layer.encode())
        return layer

    def _switch(self, view: View, below: State, fill: Callable[[], None] | None = None) -> str:
        """Put a new empty layer over these, have `fill` write into it, and show it to the box.

        The view is prepared while the guest finds out what works in the box, unless that could change its mount points.
        """
        if not view.merged.read_only:
            self.await_stillness()
        layer = self._next_layer()
        try:
            view.prepare(layer, below)
            self.await_stillness()
            if fill is not None:
                fill()
            view.commit(layer)
        except BaseException:
            view.abandon(layer)
            self._remove_layer(layer, set(view.parts))
            raise
        return layer

    def checkpoint(self, view: View) -> dict[str, Any]:
        """Freeze the present layer, and go on in a new one. If nothing was changed in it, it stays."""
        shared = self.share(view) if self._request.values.get("share") else {}
        squash = bool(self._request.values.get("squash"))
        if not squash and self._is_unchanged(view):
            self._keep(view, view.state)
            return {"state": view.state[1:], "layer": view.layer, **shared}
        below = self._squashed(view, view.state, whole=squash)
        layer = self._switch(view, below)
        self._keep(view, [layer, *below])
        return {"state": below, "layer": layer, "squashed": below != view.state, **shared}

    def _is_unchanged(self, view: View) -> bool:
        """Whether the box has written nothing into its present layer, and there are others."""

        def is_empty() -> bool:
            return not any(os.listdir(upper(view.layer, part)) for part in (0, *view.parts))

        if len(view.state) == 1 or not is_empty():
            return False
        self.await_stillness()
        return is_empty()

    def copy(self, view: View) -> dict[str, Any]:
        """Copy the present layer of a box that is frozen as a whole."""
        layer, below = self._next_layer(), view.state[1:]
        write_file(f"{layer}.stack", encode(below))
        try:
            for part in (0, *view.parts):
                trees.copy_layer(upper(view.layer, part), upper(layer, part))
        except BaseException:
            self._remove_layer(layer, set(view.parts))
            raise
        self._keep(view, view.state, [layer, *below])
        return {"state": [layer, *below]}

    def rollback(self, view: View) -> dict[str, Any]:
        """Show the box an earlier state, with a new layer over it."""
        below = self.values("state")
        self._check(view, below)
        layer = self._switch(view, below)
        self._keep(view, [layer, *below])
        return {"layer": layer}

    def compare(self, view: View) -> dict[str, Any]:
        start, end = self.values("start") or view.state, self.values("end") or view.state
        self._check(view, start)
        self._check(view, end)
        found = changes.compare(view, start, end, with_text=bool(self._request.values.get("text")))
        return self._long_answer(found)

    def sizes(self, view: View) -> dict[str, Any]:
        """Answer how many bytes each list of layers takes beside the lists before it. A file may be in several."""
        seen: set[tuple[int, int]] = set()
        found = []
        for layers in self._request.values["layers"]:
            named = view.state if layers == [""] else [str(each) for each in layers]
            self._check(view, named)
            found.append(sum(trees.size(upper(each, part), seen) for each in named for part in (0, *view.parts)))
        return self._long_answer({"sizes": found})

    def _long_answer(self, found: Any) -> dict[str, Any]:
        """Write it to the memory that came with the request."""
        view = memoryview(encode(found))
        while view:
            view = view[os.write(self._given("memory")[0], view) :]
        return {}

    def share(self, _view: View) -> dict[str, Any]:
        """Send copies of the mounts that hold this box's layers; as root twice, because ids can be mapped only once."""
        sources = sorted(name for name in os.listdir(".") if name[0] == "r" and name[1:].isdecimal())
        names = (".", *sources) * (2 if self._request.has_id_ranges else 1)
        with self._detached_mounts():
            self._sent = [kernel.open_tree(kernel.AT_FDCWD, name, kernel.OPEN_TREE_CLONE) for name in names]
        return {"sources": 1 + len(sources)}

    @contextmanager
    def _detached_mounts(self) -> Iterator[None]:
        """Permit mounts that are attached nowhere. The kernel counts each as a namespace, of which a box has none.

        Its user namespace is ours, and so is what the host's /proc shows of it.
        """
        limit = os.open("../sys/user/max_mnt_namespaces", os.O_RDWR | os.O_CLOEXEC, dir_fd=self._proc_self)
        try:
            before = os.read(limit, 32)
            os.pwrite(limit, b"64", 0)
            try:
                yield
            finally:
                os.pwrite(limit, before, 0)
        finally:
            os.close(limit)

    def merge(self, view: View) -> dict[str, Any]:
        """Bring the changes of a fork into this box, all or none."""
        self.await_stillness()
        return self._long_answer(merge.merge(self, view))

    def attach_fork(self) -> None:
        """Mount the bases that hold the fork's layers at `f0`, `f1`, ... for the time of a merge."""
        for number, tree in enumerate(self.trees()):
            with suppress(FileExistsError):
                os.mkdir(f"f{number}", 0o755)
            attach(tree, f"f{number}")

    def detach_fork(self) -> None:
        for number, _ in enumerate(self.trees()):
            umount(f"f{number}")
            os.rmdir(f"f{number}")

    def switch_to(self, view: View, fill: Callable[[], None]) -> None:
        """Show the box a new layer over its present ones, after `fill` has written into it."""
        layer = self._switch(view, view.state, fill)
        self._keep(view, [layer, *view.state])

    def prune(self, view: View) -> dict[str, Any]:
        """Remove the layers that no state needs any more, after the answer."""
        self._keep(view, view.state)
        return {"state": view.state}

    # --- keeping house ----------------------------------------------------------------------------------------

    def _check(self, view: View, state: State) -> None:
        """Refuse a state whose layers are not there."""
        for layer in state:
            source, _, name = layer.rpartition("/")
            known = name.isdecimal() and (not source or (source[0] in "sf" and source[1:].isdecimal()))
            if not known or not os.path.isdir(upper(layer)):
                raise OSError(errno.ESTALE, "the box has no such layer", layer)

    def _keep(self, view: View, *states: State) -> None:
        """Decide which layers are removed after the answer: those that neither the box nor a kept state uses.

        This is decided while no other process can add a layer.
        """
        kept = {layer for state in (*states, *(each.split(":") for each in self.values("keep"))) for layer in state}
        self._parts = set(view.parts)
        names = os.listdir(".")
        layers = {name.removesuffix(".stack") for name in names}
        self._unused = sorted(layer for layer in layers if layer.isdecimal() and layer not in kept)
        top = states[0][0]
        self._unused_works = [
            name
            for name in names
            if name[0] == "x" and name[1:].partition(".")[0].isdecimal() and name[1:].partition(".")[0] != top
        ]

    def _squashed(self, view: View, state: State, *, whole: bool = False) -> State:
        """Replace the lowest layers by one, if there are too many; or all that are not another box's, if `whole`."""
        if len(state) < (2 if whole else _SQUASH_FROM):
            return state
        self.await_stillness()
        keeps, run, others = state[:_SQUASH_KEEPS], state[_SQUASH_KEEPS:], []
        if whole:
            keeps, run = [], [each for each in state if "/" not in each]
            others = state[len(run) :]
        layer = self._next_layer()
        write_file(f"{layer}.stack", encode(others))
        try:
            for part in (0, *view.parts):
                trees.squash([upper(each, part) for each in run], upper(layer, part))
        except OSError:
            # No space for it, or a path that is too long for us: the box goes on with many layers.
            self._remove_layer(layer, set(view.parts))
            return state
        return [*keeps, layer, *others]

    def _remove_unused(self) -> None:
        for layer in self._unused:
            self._remove_layer(layer, self._parts)
        for name in self._unused_works:
            trees.remove(name)

    def _remove_layer(self, layer: str, parts: set[int]) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{layer}.stack")
        for part in (0, *parts):
            trees.remove(upper(layer, part))
            trees.remove(f"x{layer}.{part}" if part else f"x{layer}")


_ACTIONS: dict[str, tuple[Callable[[LayerEntry, View], dict[str, Any]], bool]] = {
    "checkpoint": (LayerEntry.checkpoint, True),
    "copy": (LayerEntry.copy, False),
    "rollback": (LayerEntry.rollback, True),
    "compare": (LayerEntry.compare, False),
    "sizes": (LayerEntry.sizes, False),
    "share": (LayerEntry.share, False),
    "merge": (LayerEntry.merge, True),
    "prune": (LayerEntry.prune, False),
}
"""Each operation, and whether the box must stand still for it."""
