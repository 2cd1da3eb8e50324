"""Finds boxes again and removes them, from their records alone, and removes what killed processes left.

Every box has a directory `<run>/<id>`. The spawner writes the file `box` there before the box can start.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hutch.errors import EngineError
from hutch.linux import cgroup_files, processes
from hutch.linux.cgroup_detect import SELF_LEAF, CgroupSupport
from hutch.model.ids import BoxId, is_box_id
from hutch.providers.base import InstanceRecord

PROVIDER = "native"
PRESTARTED_PREFIX = ".stem-"
"""Prefix of a directory that no keeper owns. The pid of its process follows; with that process, it is removed."""
KEEPER = "keeper"
_DEATH_TIMEOUT = 20.0
_DYING = 2.0
_GROUP_TIMEOUT = 5.0
_HOME = re.compile(r"hutch-[a-z0-9][a-z0-9-]*")


def record_of(box_id: BoxId, run: str, keeper: str = "") -> InstanceRecord | None:
    """The record of a box, from its directory; None if there is none."""
    directory = os.path.join(run, box_id)
    if not os.path.isdir(directory):
        return None
    plan = read_plan(directory)
    data = {"directory": directory, **{name: value for name, value in plan.items() if name != "keeper"}}
    return InstanceRecord(provider=PROVIDER, box_id=box_id, keeper=plan.get("keeper", keeper), data=data)


def read_plan(directory: str) -> dict[str, Any]:
    try:
        with open(os.path.join(directory, "box"), "rb") as file:
            plan = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return {}  # the spawner had not written it yet, so nothing but the directory exists
    return plan if isinstance(plan, dict) else {}


def records(run: str, stores: str) -> tuple[InstanceRecord, ...]:
    """Boxes that run, or died without being destroyed, and persistent boxes that are stopped."""
    found = [record_of(box_id, run) for box_id in _box_ids(run)]
    there = {record.box_id for record in found if record is not None}
    stopped = (_stopped(box_id, run, stores) for box_id in _box_ids(stores) if box_id not in there)
    return tuple(record for record in (*found, *stopped) if record is not None)


def _box_ids(directory: str) -> list[BoxId]:
    try:
        return [BoxId(name) for name in sorted(os.listdir(directory)) if is_box_id(name)]
    except FileNotFoundError:
        return []


def _stopped(box_id: BoxId, run: str, stores: str) -> InstanceRecord:
    store = os.path.join(stores, box_id)
    try:
        with open(os.path.join(store, KEEPER)) as file:
            keeper = file.read()
    except FileNotFoundError:
        keeper = ""
    data: dict[str, Any] = {"directory": os.path.join(run, box_id), "store": store}
    return InstanceRecord(provider=PROVIDER, box_id=box_id, keeper=keeper, data=data)


def make_store(store: str, keeper: str) -> None:
    """Make a persistent box's directory, with its keeper's name where the box cannot see it."""
    os.makedirs(store, 0o700, exist_ok=True)
    with open(os.path.join(store, KEEPER), "w") as file:
        file.write(keeper)


def unowned(box_id: BoxId) -> BoxId:
    """The id of a box that belongs to this process: no list shows it, and no sweep removes it while we run."""
    return BoxId(f"{PRESTARTED_PREFIX}{os.getpid()}-{box_id}")


async def sweep(run: str) -> None:
    """Remove what killed processes left: the prestarted children of a spawner, the canary of a probe."""
    try:
        names = [name for name in os.listdir(run) if name.startswith(PRESTARTED_PREFIX)]
    except FileNotFoundError:
        return
    for name in names:
        directory = os.path.join(run, name)
        process = name.removeprefix(PRESTARTED_PREFIX).partition("-")[0]
        if process.isdecimal() and processes.start_time(int(process)) is not None:
            continue
        plan = read_plan(directory)
        record = InstanceRecord(provider=PROVIDER, box_id=BoxId(name), keeper="", data={"directory": directory, **plan})
        await discard(record)


def process_of(record: InstanceRecord) -> processes.Identity | None:
    """The first process of the box; None if it was never started."""
    return _process(_facts(record))


def _process(facts: Mapping[str, Any]) -> processes.Identity | None:
    pid, start, boot = facts.get("pid"), facts.get("start"), facts.get("boot")
    if not isinstance(pid, int) or not isinstance(start, int) or not isinstance(boot, str):
        return None
    return processes.Identity(pid, start, boot)


def _facts(record: InstanceRecord) -> Mapping[str, Any]:
    """The newest facts: a restored box runs again before its record is updated."""
    plan = read_plan(str(record.data.get("directory", "")))
    return plan if plan.get("pid") else record.data


async def ends(process: processes.Identity) -> bool:
    """Whether the process has ended, or does so within moments."""
    pidfd = process.open()
    if pidfd is None:
        return True
    try:
        return await asyncio.to_thread(processes.wait, pidfd, _DYING)
    finally:
        os.close(pidfd)


async def discard(
    record: InstanceRecord, *, keep_store: bool = False, retire: Callable[[list[str]], bool] | None = None
) -> None:
    """End a box, and remove its control groups and directories.

    `retire` may take the groups for another box instead. It is asked only if the box has ended just now: the paths in
    an older record are not to be trusted so far.
    """
    facts: Mapping[str, Any] = record.data
    pidfd = _open(facts)
    if pidfd is None:  # it has ended, or the record is outdated
        facts = _facts(record)
        pidfd = _open(facts)
    groups = _groups(facts)
    if pidfd is not None:
        await _end_processes(record, groups, pidfd)
    if pidfd is None or retire is None or not groups or not retire(groups):
        await _remove_groups(groups)
    await _remove_files(record, keep_store)


def _open(facts: Mapping[str, Any]) -> int | None:
    """The pidfd of the box's first process; None if there is none."""
    process = _process(facts)
    return process.open() if process else None


async def _end_processes(record: InstanceRecord, groups: list[str], pidfd: int) -> None:
    """Kill the box's first process and wait for its end, which ends every process in its pid namespace."""
    try:
        processes.kill(pidfd)
        for path in groups[-1:]:  # where the freezer is a separate hierarchy, it is the last
            _thaw(path)
        await _ended(pidfd, record.box_id)
    finally:
        os.close(pidfd)


async def _ended(pidfd: int, box_id: str) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not over.done():
            over.set_result(None)

    loop.add_reader(pidfd, tell)
    try:
        async with asyncio.timeout(_DEATH_TIMEOUT):
            await over
    except TimeoutError as error:
        message = f"box {box_id} did not die within {_DEATH_TIMEOUT:g} s of SIGKILL"
        raise EngineError(
            message, op="destroy", remedy="a process is stuck in the kernel: see /proc/*/stack"
        ) from error
    finally:
        loop.remove_reader(pidfd)


async def _remove_groups(groups: list[str]) -> None:
    for path in reversed(groups):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise EngineError(f"cannot remove the control group {path}: {error}", op="destroy") from error
            await asyncio.to_thread(cgroup_files.remove, path, time.monotonic() + _GROUP_TIMEOUT)


async def _remove_files(record: InstanceRecord, keep_store: bool) -> None:
    store = _own(record, "store")
    if store and not keep_store and os.path.isdir(store):
        await asyncio.to_thread(remove_tree, store)
    directory = _own(record, "directory")
    if directory:
        await _remove_directory(directory)


def _own(record: InstanceRecord, name: str) -> str:
    """A directory of the record, if it has the box's name: a damaged record must not make us remove another one."""
    path = record.data.get(name)
    if not isinstance(path, str) or not path:
        return ""
    if os.path.basename(path) != record.box_id or not os.path.isabs(path):
        raise EngineError(f"the record of box {record.box_id} names a {name} that is not its own: {path}", op="destroy")
    return path


def _groups(facts: Mapping[str, Any]) -> list[str]:
    groups = facts.get("groups")
    paths = [path for path in groups if isinstance(path, str)] if isinstance(groups, list) else []
    # A damaged record must not make us remove other groups.
    return [path for path in paths if "/hutch-" in path and ".." not in path]


def _thaw(path: str) -> None:
    """Thaw a v1 group, where SIGKILL takes effect only after the thaw. In a v2 group it takes effect at once."""
    with contextlib.suppress(FileNotFoundError):
        cgroup_files.write(f"{path}/freezer.state", "THAWED")


async def _remove_directory(directory: str) -> None:
    """Remove a box's directory, in a thread if it holds spilled output, which may be large."""
    try:
        for name in ("guest", "deputy", "box"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{directory}/{name}")
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(f"{directory}/spill")
        os.rmdir(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        await asyncio.to_thread(remove_tree, directory)


def remove_tree(path: str) -> None:
    """Remove a tree that a box has written, however deep. Overlay's work directories have no permissions at all."""
    from hutch.guest.files import removal  # rarely needed

    parent = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in removal.remove_tree(parent, os.path.basename(path), removal.enter if os.geteuid() == 0 else _enter):
            pass
    finally:
        os.close(parent)


def _enter(name: str, directory: int) -> int:
    """Open one of our directories, whatever its mode is."""
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
    finally:
        os.close(found)


def sweep_groups(machine: CgroupSupport, *, dry_run: bool = False) -> tuple[str, ...]:
    """Remove the control groups that killed keepers left, in every hierarchy, and return their names.

    A keeper's directory `hutch-<keeper>` is held by a shared lock of every process that uses it (`cgroups.Tree`), so a
    free lock means that nobody uses it. A group with processes is a box that somebody may come back for: it stays.
    """
    places = sorted({seat.directory for _, seat in machine.hierarchies})
    names = {name for place in places for name in os.listdir(place) if _HOME.fullmatch(name) and name != SELF_LEAF}
    return tuple(name for name in sorted(names) if _sweep_group([f"{place}/{name}" for place in places], dry_run))


def _sweep_group(homes: list[str], dry_run: bool) -> bool:
    homes = [home for home in homes if os.path.isdir(home)]
    with _alone(homes) as alone:
        groups = [group for home in homes for group in (*_below(home), home)]
        if not alone or any(map(_occupied, groups)):
            return False
        for group in () if dry_run else groups:
            with contextlib.suppress(OSError):  # a process may just have joined it
                os.rmdir(group)
        return True


@contextlib.contextmanager
def _alone(homes: list[str]) -> Iterator[bool]:
    """Lock these directories, and yield whether no other process holds one of them."""
    with contextlib.ExitStack() as held:
        try:
            for home in homes:
                fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):
            yield False
            return
        yield bool(homes)


def _below(home: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [entry.path for entry in os.scandir(home) if entry.is_dir()]
    return []


def _occupied(group: str) -> bool:
    try:
        with open(f"{group}/cgroup.procs", "rb") as file:
            return bool(file.read(1))
    except FileNotFoundError:
        return False
