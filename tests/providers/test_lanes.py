"""The two lanes to a container's guest: what starts through them is what the engine itself would start, no more."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from hutch import http1
from hutch.errors import PortClosed, Unsupported
from hutch.providers.base import Command
from hutch.providers.docker import probe
from hutch.providers.docker.engine import info as engine_info
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.endpoint import Endpoint, parse
from hutch.providers.docker.objects.helper_containers import BASE
from hutch.providers.docker.settings import LaneChoice, Settings
from hutch.providers.guest_bundle.pack import HOME, guest_bundle
from tests.providers import daemons, rootfs
from tests.providers.container_boxes import box, order, run

TIMEOUT = 60.0
PRIVILEGES = """
grep -E '^(Uid|Gid|Groups|Cap[A-Z][a-z]+|NoNewPrivs|Seccomp|Seccomp_filters):' /proc/self/status
cat /proc/self/attr/current 2>/dev/null | tr -d '\\0'; echo
cat /proc/self/cgroup
grep -E 'open files|core|processes' /proc/self/limits
for ns in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$ns; done
"""


async def engine_exec(engine: Engine, container: str, argv: list[str], user: str) -> str:
    """What `docker exec` does, by the same API."""
    exec_id = await engine.exec_create(container, argv, user=user, attached=True)
    body = json.dumps({"Detach": False, "Tty": False}).encode()
    reader, writer = await asyncio.open_unix_connection(engine.http.endpoint.path)
    writer.write(
        engine.http.head("POST", f"/exec/{exec_id}/start", None, len(body), {"Content-Type": "application/json"}) + body
    )
    assert http1.parse_head(await reader.readuntil(b"\r\n\r\n")).status in (101, 200)
    raw, text = await reader.read(), b""
    writer.close()
    while raw:
        size = int.from_bytes(raw[4:8], "big")
        text, raw = text + raw[8 : 8 + size], raw[8 + size :]
    return text.decode()


@pytest.mark.parametrize(("runtime", "lane"), [("runc", "fast"), ("runc", "api"), ("crun", "fast")])
@pytest.mark.parametrize(("user", "ids"), [("user", "1000:1000"), ("root", "0:0")])
async def test_privileges_are_those_of_the_engines_exec(
    docker: daemons.Daemon, tmp_path: Path, runtime: str, lane: str, user: str, ids: str
) -> None:
    """Filter, capabilities, no_new_privs, label, control groups, limits, namespaces: as `docker exec` gives them."""
    if shutil.which(runtime) is None:
        pytest.skip(f"{runtime} is not installed (tools/setup.sh)")
    provider = daemons.provider(docker, tmp_path, lane=lane, runtime=runtime)
    if runtime == "crun" and not (found := await provider.probe()).usable:
        pytest.skip(f"crun does not run on this machine: {found.reason}")
    async with box(provider) as made:
        assert made.record.data["lane"] == lane
        ours = (await run(made, PRIVILEGES, user=user)).stdout
        theirs = await engine_exec(daemons.engine_of(docker), made.container, ["/bin/bash", "-c", PRIVILEGES], ids)
    assert ours == theirs
    assert "Seccomp:\t2" in ours and "NoNewPrivs:\t1" in ours and "CapBnd:\t0000000000000000" in ours
    assert f"Uid:\t{ids.split(':')[0]}\t" in ours


async def test_the_fast_lane_never_goes_around_gvisor(docker: daemons.Daemon, tmp_path: Path) -> None:
    """A sandbox of its own kernel is entered through its own kernel only, also if the fast lane is asked for."""
    if shutil.which("runsc") is None:
        pytest.skip("runsc is not installed (tools/setup.sh)")
    with pytest.raises(Unsupported, match="kernel of its own"):
        await daemons.provider(docker, tmp_path, lane="fast", runtime="runsc").list()
    provider = daemons.provider(docker, tmp_path, lane="auto", runtime="runsc")
    capabilities = await provider.probe()
    assert (capabilities.isolation, capabilities.facts["lane"]) == ("gvisor", "api")
    async with box(provider, image=f"oci:{rootfs.SMALL}") as made:
        assert made.record.data["lane"] == "api" and "pid" not in made.record.data
        # Another kernel than the machine's answers.
        assert (await run(made, ["uname", "-r"])).stdout.strip() != Path(
            "/proc/sys/kernel/osrelease"
        ).read_text().strip()


@pytest.mark.parametrize(
    ("runtimes", "runtime", "direct"),
    [
        ({"runc": {"path": "runc"}}, "", True),
        ({"mine": {"path": "/usr/bin/crun"}}, "mine", True),
        ({"runc": {"path": "/usr/bin/runsc"}}, "runc", False),
        ({"kata": {"path": "/usr/bin/kata-runtime"}}, "kata", False),
        ({"runsc-kvm": {"path": "/opt/wrapper"}}, "runsc-kvm", False),
        ({"unknown": {"path": "/opt/something"}}, "unknown", False),
        ({}, "io.containerd.kata.v2", False),
    ],
)
def test_only_known_runtimes_are_direct(runtimes: dict[str, dict[str, str]], runtime: str, direct: bool) -> None:
    """By what the runtime is, not by what it is called; one that nobody knows counts as a wall."""
    info = {"Runtimes": runtimes, "DefaultRuntime": "runc", "KernelVersion": "6"}
    found = engine_info.read(info, {}, Endpoint(path="/s"), Settings(runtime=runtime))
    assert found.is_direct is direct
    if not direct:
        with pytest.raises(Unsupported):
            engine_info.fast(found, Endpoint(path="/s"), LaneChoice.FAST)


def test_a_remote_engine_has_no_fast_lane() -> None:
    endpoint = parse("tcp://10.0.0.1:2375")
    found = engine_info.read(
        {"Runtimes": {"runc": {"path": "runc"}}, "DefaultRuntime": "runc"}, {}, endpoint, Settings()
    )
    assert "another machine" in engine_info.obstacle(found, endpoint)


async def test_a_command_of_the_box_cannot_use_its_guests_door(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Lesson 31: it sees the socket and is turned away; the guest's memory and descriptors are closed to it."""
    call = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/.hutch-run/guest'); print(s.recv(100))"
    async with box(daemons.provider(docker, tmp_path, lane="fast")) as made:
        assert (await run(made, guest_bundle().python(call))).stdout == "b''\n"
        assert (await run(made, guest_bundle().python(call), user="root")).stdout.startswith(
            "b'"
        )  # so the call itself works
        for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/fd/3", "/proc/1/root/etc/passwd"):
            result = await run(made, ["cat", path])
            assert result.exit_code != 0 and "ermission denied" in result.stderr, path
        assert (await run(made, ["touch", f"{HOME}/bin/new"], user="root")).exit_code != 0
        assert (await run(made, "echo still here")).stdout == "still here\n"


ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 7000))
while True:
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
"""


@pytest.mark.parametrize("lane", ["fast", "api"])
async def test_ports_are_reached_through_the_guest(docker: daemons.Daemon, tmp_path: Path, lane: str) -> None:
    """No port of the container is published, and it has no network: the way in is the guest's own link (S6)."""
    async with box(daemons.provider(docker, tmp_path, lane=lane)) as made:
        with pytest.raises(PortClosed):
            await made.connect(7000)
        await made.start(Command(command=tuple(guest_bundle().python(ECHO))))
        async with asyncio.timeout(TIMEOUT):
            while 7000 not in {each.port for each in await made.ports()}:
                await asyncio.sleep(0.05)
        stream = await made.connect(7000)
        sent = bytes(range(256)) * 4000
        sending = asyncio.create_task(stream.send(sent))
        received = b""
        while len(received) < len(sent):
            received += await stream.receive()
        await sending
        assert received == sent
        stream.end()
        assert await stream.receive() == b""


async def test_a_guest_needs_nothing_of_its_image(docker: daemons.Daemon, tmp_path: Path) -> None:
    """No C library, no shell, no Python: the canary's image has one empty directory, and files work in it."""
    provider = daemons.provider(docker, tmp_path)
    async with box(provider, image=f"oci:{BASE}") as made:
        await made.files.write("note", b"kept")
        assert await made.files.read("note") == b"kept"
        assert (await run(made, guest_bundle().python("print(6 * 7)"))).stdout == "42\n"
    async with box(provider, order(image=f"oci:{rootfs.SMALL}")) as made:
        assert (await run(made, "busybox | head -1")).stdout.startswith("BusyBox")


def test_what_an_engine_does_not_hold_is_watched_or_said() -> None:
    """A rootless engine without control groups: the guest holds memory and processes, and nobody holds processors."""
    info = {"DefaultRuntime": "runc", "MemoryLimit": False, "PidsLimit": False, "CpuCfsQuota": False}
    found = engine_info.read(info, {}, Endpoint(path="/s"), Settings())
    grades = probe.grades(found)
    assert (grades.memory_mb, grades.pids, grades.cpus) == ("watchdog", "watchdog", "none") and found.is_watched


def test_the_plant_is_known_by_its_content() -> None:
    """Two processes pack the same guest under the same name, so that an engine keeps it once."""
    code = "from hutch.providers.guest_bundle.pack import guest_bundle; print(guest_bundle().digest)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == guest_bundle().digest
    names = {name for name, _ in guest_bundle().files}
    assert {"bin/python3", guest_bundle().linker} <= names and any(
        name.endswith("hutch/guest/main.pyc") for name in names
    )
    assert not [name for name in names if "msgspec" in name], "the guest stands alone"


def test_the_api_lane_works_on_uvloop(docker: daemons.Daemon, tmp_path: Path) -> None:
    """The engine's hijacked stream belongs to an event loop whose transports are not asyncio's own."""

    async def use() -> None:
        async with box(daemons.provider(docker, tmp_path, lane="api")) as made:
            assert (await run(made, "echo hijacked")).stdout == "hijacked\n"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use())
