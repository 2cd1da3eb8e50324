"""Scenarios with real boxes on the machine of a test topology (scenario_runner.py).

Run one with `python -m tests.providers.native.network.scenarios SCENARIO`.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.keeper.killed_keepers import House, house, spawners_of
from tests.keeper.test_restart_native import holder, make
from tests.providers.native.network import tls_server
from tests.providers.native.network.topology import MACHINE, OUTSIDE, PORT

from hutch.api import Box, Hutch
from hutch.keeper.takeover.prune import prune
from hutch.linux import kernel
from hutch.linux.netlink import Netlink
from hutch.model.boxes import Event
from hutch.model.results import Cause
from hutch.model.spec import Mount
from hutch.providers.base import Leftover
from hutch.providers.native.instance import OFFLINE
from hutch.providers.native.network import firewall
from hutch.providers.native.network.availability import ROUTED, available, privileged

TIMEOUT = 30.0
KNOCK = f"""python3 -c '
import socket, sys
for address in sys.argv[1:]:
    try:
        socket.create_connection((address, {PORT}), 20).close()
        print("connected", end=" ")
    except OSError as error:
        print(error.strerror, end=" ")
' """
CONNECT = f"""python3 -c 'import socket; socket.create_connection(("{OUTSIDE}", {PORT}), 20); print("connected")'"""
TALK = f"""python3 -c '
import socket, ssl
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for number in range(8):
    try:
        plain = socket.create_connection(("{OUTSIDE}", {tls_server.PORT}), 20)
        with context.wrap_socket(plain) as talk:
            talk.sendall(b"line %d\\n" % number)
            whole = talk.makefile("rb").read()
            print("whole" if whole == b"line %d\\n" % number * {tls_server.TIMES} else "torn", end=" ")
    except OSError as error:
        print(error, end=" ")
'"""
ASK = "python3 -c 'import socket; print(socket.gethostbyname(\"example.test\"))'"

SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


async def reached(box: Box) -> str:
    """What answers in the outside, what the machine itself says, and a name."""
    result = await box.exec(KNOCK + f"{OUTSIDE} {MACHINE}")
    name = await box.exec(ASK)
    return f"{result.stdout}{name.stdout.strip()} {result.stderr}{name.stderr}".strip()


ONLINE = "connected No route to host 192.0.2.55"


def names_held() -> set[str]:
    """The uplink names that network worker_processes on this machine hold."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {line.split()[-1] for line in lines if "@hutch-uplink" in line}


def left_on_the_machine() -> list[str]:
    """Links, tables and names of uplinks."""
    with Netlink() as link:
        left = [name for name in link.links() if name.startswith("hv")]
    return left + sorted(names_held()) + (sorted(firewall.tags()) if privileged() else [])


def until_nothing_is_left(place: House) -> None:
    assert place.traces() == []
    assert left_on_the_machine() == []


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.02)


def routed() -> bool:
    """Whether boxes are joined to the machine's own namespace, where the dead leave traces."""
    return available().how == ROUTED


@scenario
def on() -> None:
    """A box with a network and one without; a network and a mount do not get into each other's way."""
    mount = Mount(source=str(Path(__file__).parent), target="/mnt/here")  # below the working directory: allowed

    async def act(place: House) -> None:
        async with place.opened() as hutch:
            async with hutch.box(network="on", mounts=(mount,)) as box:
                assert await reached(box) == ONLINE
                assert Path(__file__).name in (await box.exec("ls /mnt/here")).stdout
            async with hutch.box(network="off") as box:
                assert (await box.exec(KNOCK + OUTSIDE)).stdout == "Network is unreachable "
        until_nothing_is_left(place)

    with house() as place:
        asyncio.run(act(place))


@scenario
def private_ranges() -> None:
    """Boxes that may reach different private ranges have the same spawner, helper and pasta."""

    async def act(place: House) -> None:
        async with place.opened() as hutch:
            async with hutch.box(network="on", allow_private=("10.9.0.0/16",)) as box:
                assert (await box.exec(KNOCK + "10.9.9.9 192.168.77.7")).stdout == "connected Permission denied "
                for number in range(4):
                    private = ("192.168.0.0/16", f"10.{number}.0.0/16")
                    async with hutch.box(network="on", allow_private=private) as other:
                        found = await other.exec(KNOCK + "192.168.77.7 10.9.9.9")
                        assert found.stdout == "connected Permission denied "
                async with hutch.box(network="on") as other:
                    assert (await other.exec(KNOCK + "192.168.77.7 10.9.9.9")).stdout == "Permission denied " * 2
                assert len(network_helpers(descendants(os.getpid()))) == 1
                stats = [Path(f"/proc/{pid}/stat").read_text() for pid in spawners_of(os.getpid())]
                living = [stat for stat in stats if ") Z " not in stat]  # those of the probe may not be reaped yet
                assert len(living) <= 2, "one for the boxes with a network, one for the others"
        until_nothing_is_left(place)

    with house() as place:
        asyncio.run(act(place))


def adopted(place: House, box_id: str, look: Callable[[Box], Awaitable[str]] = reached) -> None:
    """A new keeper finds the box online, gives others a network too, and all of it is removed."""

    async def act() -> None:
        dead = names_held()
        assert dead, "the helper has gone with its spawner"
        async with place.opened() as hutch:
            box = await hutch.attach(box_id, takeover=True)
            assert await look(box) == ONLINE
            async with hutch.box(network="on") as other:
                assert await reached(other) == ONLINE
            assert await reached(box) == ONLINE
            await box.destroy()
            until(lambda: not names_held() & dead, "the helper of the dead spawner has ended")
        async with place.opened():
            pass  # the next keeper sweeps

    asyncio.run(act())
    until_nothing_is_left(place)


@scenario
def killed_keeper() -> None:
    """Its spawner ends in good order, and leaves the helper to the box."""
    with house() as place:
        keeper = holder(place)
        box_id = make(keeper, network="on")
        (spawner,) = spawners_of(keeper.pid)
        keeper.kill()
        until(lambda: spawner not in place.processes(), "the spawner has ended")
        adopted(place, box_id)


@scenario
def killed_spawner() -> None:
    with house() as place:
        keeper = holder(place)
        box_id = make(keeper, network="on")
        keeper.kill(lambda pid: [*spawners_of(pid), pid])
        adopted(place, box_id)


def descendants(pid: int) -> list[int]:
    """Without those who have ended and wait for their burial."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [each for child in map(int, found) if running(child) for each in (child, *descendants(child))]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def network_helpers(among: list[int]) -> list[int]:
    """Those who hold the name of an uplink themselves."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    names = {f"socket:[{line.split()[6]}]" for line in lines if "@hutch-uplink" in line}
    return [pid for pid in among if names & open_files(pid)]


def open_files(pid: int) -> set[str]:
    try:
        return {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    except (FileNotFoundError, PermissionError):  # it has just ended, or is a guest, whom nobody looks at
        return set()


def worker_processes(helper: int) -> list[int]:
    """The helper's worker, and pasta where it carries: what a new one is made of when it dies."""
    until(lambda: len(descendants(helper)) == (1 if routed() else 2), "nobody else is there any more")
    return descendants(helper)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pid), "it has ended")


async def reached_soon(box: Box) -> str:
    deadline = time.monotonic() + TIMEOUT
    while (found := await reached(box)) != ONLINE and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return found


@scenario
def killed_workers() -> None:
    """One after the other, while a keeper has the box, and when nobody has it."""

    async def act(place: House) -> None:
        async with place.opened() as hutch, hutch.box(network="on") as box:
            assert await reached(box) == ONLINE
            (helper,) = network_helpers(descendants(os.getpid()))
            for number in range(len(worker_processes(helper))):
                kill(worker_processes(helper)[number])
                assert await reached_soon(box) == ONLINE
            async with hutch.box(network="on") as other:
                assert await reached(other) == ONLINE
            assert network_helpers(descendants(os.getpid())) == [helper]
            assert not [event for event in await hutch.events() if event.kind == "warning"]
        until_nothing_is_left(place)

    with house() as place:
        asyncio.run(act(place))
    with house() as place:
        keeper = holder(place)
        box_id = make(keeper, network="on")
        (helper,) = network_helpers(descendants(keeper.pid))
        keeper.kill(lambda pid: [*spawners_of(pid), pid])
        for victim in reversed(worker_processes(helper)):
            os.kill(victim, signal.SIGKILL)
        adopted(place, box_id, reached_soon)


@scenario
def killed_helper() -> None:
    """Nobody is left to mend it: the box reports it in every way there is, and new boxes are online."""

    async def act(place: House) -> None:
        async with place.opened() as hutch, hutch.box(network="on") as box:
            assert (await box.info()).reason != OFFLINE
            failed = await box.exec("exit 3")
            assert (failed.verdict.cause, failed.verdict.remedy) == (Cause.EXIT, "")
            (helper,) = network_helpers(descendants(os.getpid()))
            (spawner,) = [each for each in spawners_of(os.getpid()) if helper in descendants(each)]
            doomed = [helper, *worker_processes(helper)]
            os.kill(helper, signal.SIGKILL)
            until(lambda: not any(map(running, doomed)), "worker and pasta have gone with it")

            failed = await box.exec(ASK)
            assert (failed.verdict.cause, failed.verdict.remedy) == (Cause.EXIT, OFFLINE)
            assert (await box.exec("true")).ok
            assert (await box.info()).reason == OFFLINE
            until(lambda: not running(spawner), "its spawner has ended")
            async with hutch.box(network="on") as other:
                assert await reached(other) == ONLINE
                assert (await other.info()).reason != OFFLINE
            assert [event.box_id for event in await answer(hutch)] == [box.id]
        until(lambda: not joined(), "the kernel has taken down the links of the dead boxes")
        await prune_all(place)
        until_nothing_is_left(place)

    def joined() -> list[str]:
        with Netlink() as link:
            return [name for name in link.links() if re.fullmatch(r"hv[0-9a-f]{6}-\d+", name)]

    async def answer(hutch: Hutch) -> list[Event]:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            found = [event for event in await hutch.events() if event.kind == "warning" and event.reason == OFFLINE]
            if found:
                return found
            await asyncio.sleep(0.1)
        return []

    with house() as place:
        asyncio.run(act(place))


async def prune_all(place: House) -> list[Leftover]:
    found = [leftover async for leftover in prune(place.config())]
    assert not [leftover for leftover in found if leftover.problem], found
    return found


@scenario
def pruned() -> None:
    """Nobody comes for the box: it ends by its own clock, its helper with it, and prune removes the rest."""

    with house() as place:
        keeper, other = holder(place, grace=0.5), holder(place)
        make(keeper, network="on")
        living = make(other, network="on")
        keeper.kill(lambda pid: [*spawners_of(pid), pid])
        until(lambda: len(names_held()) == 1, "the helper of the dead spawner has ended")
        swept = asyncio.run(prune_all(place))
        kinds = [left.kind for left in swept if left.name.startswith("hutch_")]
        assert kinds == (["network"] if routed() else []), swept
        assert other.ask(f"exec {living} {CONNECT}") == "connected"
        assert other.ask("close") == "closed"
        until_nothing_is_left(place)


def command(place: House, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {"HUTCH_STATE_DIR": str(place.state), "HUTCH_RUN_DIR": str(place.run), "HOME": str(place.top)}
    program = [str(Path(sys.executable).with_name("hutch")), *arguments]
    return subprocess.run(program, env={**os.environ, **environ}, capture_output=True, text=True, check=False)


def hutch(place: House, *arguments: str) -> str:
    done = command(place, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@scenario
def left_by_the_command_line() -> None:
    """`hutch box create` ends at once; the box it made is online for the next session that asks for it."""
    with house() as place:
        box_id = hutch(place, "box", "create", "--net", "on")
        assert hutch(place, "box", "exec", box_id, "--", "sh", "-c", CONNECT) == "connected"
        hutch(place, "box", "destroy", box_id)
        until(lambda: not names_held(), "the helper has ended")
        hutch(place, "prune")
        assert left_on_the_machine() == []


@scenario
def talking() -> None:
    """Not one of many connections is lost after its handshake."""
    with house() as place:
        talked = hutch(place, "run", "--net", "on", "--timeout", "200", "--", "sh", "-c", TALK)
        assert talked == " ".join(["whole"] * 8)
        until(lambda: not names_held(), "the helper has ended")
        hutch(place, "prune")


def doctors_word(place: House) -> dict[str, str]:
    findings = json.loads(hutch(place, "doctor", "--json"))["findings"]
    (found,) = [finding for finding in findings if finding["name"] == "network connection"]
    return dict(found)


@scenario
def tried() -> None:
    """A connection is made for the doctor, and nothing is left of it: no link, no name, no dead process without a
    parent. The first process of a container would be given such a one; here this process is."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    with house() as place:
        assert doctors_word(place)["state"] == "ok"
        until(lambda: not names_held(), "the helper has ended")
        assert left_on_the_machine() == []
        assert orphans() == [], orphans()


def orphans() -> list[str]:
    """The names of processes, dead ones included, that were left to this one."""
    children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    return [Path("/proc", pid, "comm").read_text().strip() for pid in children]


@scenario
def tried_in_vain() -> None:
    """All parts are there, and nothing comes through: nobody is promised a network, and every caller learns why."""
    with house() as place:
        found = doctors_word(place)
        assert found["state"] == "warn" and "would not come through" in found["found"] and found["fix"], found
        refused = command(place, "run", "--net", "on", "--", "true")
        assert refused.returncode != 0 and "would not come through" in refused.stderr, refused
        assert hutch(place, "run", "--", "echo", "still") == "still"
        until(lambda: not names_held(), "the helper has ended")
        assert left_on_the_machine() == []


@scenario
def run_by_the_command_line() -> None:
    """`hutch run --net on` reaches the outside and a resolver; with `--net off`, and by default, nothing is there."""
    with house() as place:
        reached = hutch(place, "run", "--net", "on", "--", "sh", "-c", f"{KNOCK} {OUTSIDE}; {ASK}")
        assert reached.split() == ["connected", "192.0.2.55"], reached
        for options in ((), ("--net", "off")):
            reached = hutch(place, "run", *options, "--", "sh", "-c", f"{KNOCK} {OUTSIDE}")
            assert reached == "Network is unreachable", reached
        until(lambda: not names_held(), "the helper has ended")
        hutch(place, "prune")
        assert left_on_the_machine() == []


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
    print("done")
