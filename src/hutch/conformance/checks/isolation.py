"""The wall around a box: what it must not see of the host, of other boxes, and of its own machinery."""

import asyncio
import os
import socket
import sys
from contextlib import suppress

from hutch.conformance import nnp_probe
from hutch.conformance.claims import holds, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.model.spec import MountMode, Workspace

DOORS = ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock")


@check("isolation", needs="isolation")
async def check_ordinary_user(bench: Workbench) -> None:
    """Commands run as an ordinary user without any capability, and files they make belong to it."""
    async with bench.box() as box:
        holds(await bench.output(box, ("id", "-u")) != b"0\n", "commands run as root")
        status = await bench.output(box, ("cat", "/proc/self/status"))
        capabilities = [line for line in status.splitlines() if line.startswith((b"CapEff", b"CapPrm", b"CapAmb"))]
        same({int(line.split()[1], 16) for line in capabilities}, {0}, "effective, permitted and ambient capabilities")
        await bench.output(box, 'touch mine && test -O mine && [ "$(stat -c %u mine)" = "$(id -u)" ]')


@check("isolation", needs="isolation")
async def check_no_new_privileges(bench: Workbench) -> None:
    """No program can gain privileges: one that belongs to root and is set-user-id runs as the user who starts it."""
    async with bench.box() as box:
        machine = (await bench.output(box, ("uname", "-m"))).decode().strip()
        await box.files.write("/workspace/probe", nnp_probe.program(machine), mode=0o755)
        await bench.output(
            box,
            "cp /workspace/probe /tmp/probe && chmod 4755 /tmp/probe",
            user="root" if "root" in bench.capabilities.users else None,
        )
        result = await bench.run(box, ("/tmp/probe",))
        holds(result.exit_code != nnp_probe.IS_ROOT, "a set-user-id program of root's made its user root")
        same(result.exit_code, nnp_probe.IS_BARRED, "whether no_new_privs is set, as a program's exit code")


@check("isolation", needs="isolation")
async def check_host_name(bench: Workbench) -> None:
    """Each box has a host name of its own."""
    async with bench.box() as one, bench.box() as two:
        names = {(await bench.output(box, ("cat", "/proc/sys/kernel/hostname"))).strip().decode() for box in (one, two)}
    same(len(names), 2, "different host names of two boxes")
    holds(socket.gethostname() not in names, "a box has the host's name")


@check("isolation", needs="isolation")
async def check_host_processes(bench: Workbench) -> None:
    """No process of the host is seen inside."""
    mark = f"host-process-{os.getpid()}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; sys.stdin.read()", mark, stdin=asyncio.subprocess.PIPE
    )
    try:
        async with bench.box() as box:
            same(await bench.processes(box, mark), 0, "host processes seen inside")
            same(await bench.processes(box, "hutch conformance"), 0, "host processes seen inside")
    finally:
        process.kill()
        await process.wait()


@check("isolation", needs="isolation")
async def check_own_processes(bench: Workbench) -> None:
    """A box sees its own processes."""
    async with bench.box() as box:
        job = await bench.start(box, ("sleep", "7421"))
        same(await bench.processes(box, "7421"), 1, "own processes seen inside")
        holds((await job.info()).pid > 0, "the job has no pid")


@check("isolation", needs="isolation")
async def check_host_files(bench: Workbench) -> None:
    """No file of the host is seen that nobody mounted, and no engine's socket."""
    marker = bench.scratch / "marker"
    marker.write_text("of the host")
    marker.chmod(0o644)
    async with bench.box() as box:
        for path in (str(marker), *DOORS):
            holds((await bench.run(box, ("cat", path))).exit_code != 0, f"{path} of the host is readable inside")
            holds((await bench.run(box, ("test", "-S", path))).exit_code != 0, f"the socket {path} is seen inside")


@check("isolation", needs="isolation")
async def check_host_environment(bench: Workbench) -> None:
    """No variable of the caller's environment is seen inside."""
    name, value = "CONFORMANCE_MARK", "of-the-host"
    os.environ[name] = value
    try:
        async with bench.another() as provider:
            order = bench.order()
            box = await provider.create(order, provider.plan(order))
            try:
                seen = await bench.output(box, "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; true")
            finally:
                await box.close()
                await provider.destroy(box.record)
    finally:
        del os.environ[name]
    holds(value.encode() not in seen, "a variable of the host is seen inside")


@check("isolation", needs="isolation")
async def check_descriptors(bench: Workbench) -> None:
    """A command inherits its three streams and no other descriptor."""
    async with bench.box() as box:
        # Each descriptor is looked for by its number, because listing the directory would open one more.
        got = await bench.output(
            box, ("sh", "-c", "for n in $(seq 3 200); do [ -e /proc/$$/fd/$n ] && echo $n; done; :")
        )
        same(got, b"", "descriptors beside 0, 1 and 2")


@check("isolation", needs="isolation")
async def check_other_boxes(bench: Workbench) -> None:
    """Two boxes share no file and see none of each other's processes."""
    async with bench.box() as one, bench.box() as two:
        await bench.output(one, "for d in /workspace /tmp /dev/shm; do [ -w $d ] && echo x >$d/left; done; true")
        await bench.start(one, ("sleep", "7422"))
        result = await bench.run(two, ("sh", "-c", "ls /workspace/left /tmp/left /dev/shm/left 2>/dev/null"))
        same(result.stdout_bytes, b"", "files of another box")
        same(await bench.processes(two, "7422"), 0, "processes of another box")


@check("isolation", needs="isolation")
async def check_read_only_root(bench: Workbench) -> None:
    """A read-only root holds everywhere, while the workspace, /tmp and HOME are writable."""
    async with bench.box(read_only_root=True) as box:
        for path in ("/", "/usr", "/etc", "/usr/bin", "/var"):
            # This runs as root where possible, because a kernel may check the directory's mode first.
            user = "root" if "root" in bench.capabilities.users else None
            result = await bench.run(box, ("touch", f"{path}/new"), env={"LC_ALL": "C"}, user=user)
            # A directory that only its mode protects says "Permission denied".
            holds(
                not result.ok and "Read-only file system" in result.stderr,
                f"{path} is not read-only: {result.stderr!r}",
            )
        await bench.output(box, 'touch /workspace/new /tmp/new "$HOME/new"')


@check("isolation", needs="writable_root")
async def check_writable_root(bench: Workbench) -> None:
    """A writable root can be changed by a user with the rights, and the change is this box's alone."""
    async with bench.box(read_only_root=False) as box:
        if "root" not in bench.capabilities.users:
            result = await bench.run(box, ("touch", "/etc/conformance"))
            holds(result.ok or "ermission denied" in result.stderr, f"the root is not writable: {result.stderr!r}")
            return
        await bench.output(box, "echo changed >/etc/conformance && cat /etc/conformance", user="root")
        async with bench.box(read_only_root=False) as other:
            result = await bench.run(other, ("cat", "/etc/conformance"))
            holds(result.exit_code != 0, "another box sees the changed root")
    holds(not os.path.exists("/etc/conformance"), "the host sees the changed root")


@check("isolation", needs="isolation")
async def check_read_only_workspace(bench: Workbench) -> None:
    """A read-only workspace cannot be written, by commands nor by file operations."""
    async with bench.box(workspace=Workspace(mode=MountMode.RO)) as box:
        result = await bench.run(box, ("touch", "/workspace/new"))
        holds(result.exit_code != 0, "a command wrote into a read-only workspace")
        with suppress(OSError):
            await box.files.write("/workspace/new", b"x")
        same(await box.files.exists("/workspace/new"), False, "whether the file is there")


@check("isolation", needs="isolation")
async def check_kernel_knobs(bench: Workbench) -> None:
    """The kernel's switches and the hardware cannot be reached: sysctls, kernel memory, block devices."""
    async with bench.box() as box:
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/proc/sysrq-trigger"):
            # A file masked by /dev/null can be opened, and nobody reads what is written.
            result = await bench.run(box, ("sh", "-c", f"! [ {path} -ef /dev/null ] && printf '' >>{path}"))
            holds(result.exit_code != 0, f"{path} can be opened for writing")
        for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/proc/kcore"):
            result = await bench.run(box, ("sh", "-c", f"head -c 1 {path} | grep -q ."))
            holds(result.exit_code != 0, f"{path} can be read")


@check("isolation", needs="isolation")
async def check_usual_devices(bench: Workbench) -> None:
    """The devices that every program expects are there: null, zero, full, urandom, and a place for shared memory."""
    async with bench.box() as box:
        await bench.output(box, "echo x >/dev/null && head -c 9 /dev/zero | wc -c && head -c 9 /dev/urandom | wc -c")
        holds((await bench.run(box, ("sh", "-c", "echo x >/dev/full"))).exit_code != 0, "/dev/full is not full")
