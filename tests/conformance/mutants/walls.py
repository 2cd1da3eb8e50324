"""Mutants with a hole in the wall: limits that do not hold, the host in sight. None of them harms the machine."""

import asyncio
import os
from pathlib import Path

from hutch.model.limits import Limits
from hutch.model.results import Cause, Result, Verdict
from hutch.model.spec import CheckedMount, Mount, MountMode, NetworkMode, Order, Workspace
from hutch.providers.base import Command, Instance, InstanceRecord
from tests.conformance.mutants.mutant import Mutant, MutantInstance, texts


class TellsNoLimits(Mutant):
    """Lesson 24: every failure is just an exit code."""

    kills = ("limits.memory", "limits.pids", "limits.disk")

    def result(self, result: Result) -> Result:
        return result.but(verdict=Verdict(cause=Cause.OK if result.exit_code == 0 else Cause.EXIT))


class QuartersTheMemory(Mutant):
    kills = ("limits.memory_enough",)

    def order(self, order: Order) -> Order:
        return limited(order, memory_mb=order.spec.limits.memory_mb // 4, disk_mb=1)


class LimitsEachAlone(Mutant):
    """The box has room for the sum."""

    kills = ("limits.memory_of_the_sum",)

    def order(self, order: Order) -> Order:
        return limited(order, memory_mb=order.spec.limits.memory_mb * 4)


class BlamesTheLastLimit(Mutant):
    kills = ("limits.innocent",)
    met: Verdict | None = None

    def result(self, result: Result) -> Result:
        if result.verdict.cause is Cause.OOM:
            self.met = result.verdict
        return result.but(verdict=self.met) if self.met and not result.ok else result


class HasNoDiskLimit(Mutant):
    kills = ("limits.disk", "limits.disk_everywhere")

    def order(self, order: Order) -> Order:
        return limited(order, disk_mb=200)


class OpensManyFiles(Mutant):
    kills = ("limits.open_files",)

    def order(self, order: Order) -> Order:
        return limited(order, open_files=4096)


class TakesEveryProcessor(Mutant):
    """Ahead of the machine's other work, beside which it might get no more than its limit by chance."""

    kills = ("limits.cpus",)
    alone = True

    def order(self, order: Order) -> Order:
        return limited(order, cpus=4.0)

    class Box(MutantInstance):
        async def run(self, command: Command) -> Result:
            groups = self.inner.record.data["groups"]
            assert isinstance(groups, list)
            for group in map(Path, groups):
                for name, most in (("cpu.shares", "262144"), ("cpu.weight", "10000")):
                    for file in (group / name, group.parent / name):
                        if file.exists():
                            file.write_text(most)
            return await super().run(command)


class ChangesNoLimit(Mutant):
    kills = ("limits.change",)

    class Box(MutantInstance):
        async def change_limits(self, limits: Limits) -> tuple[str, ...]:
            return ()


class RunsOnTheHost(Mutant):
    """No wall at all, for commands that only look."""

    kills = (
        "isolation.host_name", "isolation.host_processes", "isolation.host_files", "isolation.host_environment",
        "network.off_host_loopback", "network.on_host_loopback",
    )  # fmt: skip

    class Box(MutantInstance):
        async def run(self, command: Command) -> Result:
            words = ("bash", "-c", command.command) if isinstance(command.command, str) else command.command
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
            out, error = await process.communicate()
            cause = Cause.OK if process.returncode == 0 else Cause.EXIT
            return Result(job_id="", exit_code=process.returncode, stdout_bytes=out, stderr_bytes=error,
                          verdict=Verdict(cause=cause))  # fmt: skip


class ShowsRoot(Mutant):
    """Commands see themselves with all that belongs to root."""

    kills = ("isolation.ordinary_user",)

    def result(self, result: Result) -> Result:
        seen = result.stdout_bytes.replace(b"CapEff:\t0000000000000000", b"CapEff:\t000001ffffffffff")
        return result.but(stdout_bytes=seen)


class LetsProgramsRise(Mutant):
    """Whatever is started is root's, as a set-user-id program would make it."""

    kills = ("isolation.no_new_privileges",)

    def command(self, command: Command) -> Command:
        return command.but(user="root") if command.command == ("/tmp/probe",) else command


class SharesOneBox(Mutant):
    """Lesson 33: every caller gets the box that is there."""

    kills = ("isolation.other_boxes", "isolation.host_name")
    shared: Instance | None = None

    async def create(self, order: Order, planned: InstanceRecord) -> Instance:
        if self.shared is None:
            self.shared = await super().create(order, planned)
        return self.shared


class HidesProcesses(Mutant):
    kills = ("isolation.own_processes",)

    def command(self, command: Command) -> Command:
        return texts(command, lambda text: text.replace("/proc/[0-9]*", "/proc/none"))


class LeaksDescriptors(Mutant):
    kills = ("isolation.descriptors",)

    def command(self, command: Command) -> Command:
        words = ("sh", "-c", command.command) if isinstance(command.command, str) else command.command
        return command.but(command=("sh", "-c", 'exec 7</dev/null; exec "$@"', "sh", *words))


class LeavesRootWritable(Mutant):
    kills = ("isolation.read_only_root",)

    def order(self, order: Order) -> Order:
        return order.but(spec=order.spec.but(read_only_root=False))


class LocksRoot(Mutant):
    kills = ("isolation.writable_root",)

    def order(self, order: Order) -> Order:
        return order.but(spec=order.spec.but(read_only_root=True))


class WritableWorkspace(Mutant):
    kills = ("isolation.read_only_workspace",)

    def order(self, order: Order) -> Order:
        return order.but(spec=order.spec.but(workspace=Workspace()))


class HasNoDevices(Mutant):
    kills = ("isolation.usual_devices",)

    def command(self, command: Command) -> Command:
        return texts(command, lambda text: text.replace("/dev/", "/nodev/"))


class HasAnInterface(Mutant):
    """Network off has a way out, as /proc shows it."""

    kills = ("network.off",)

    def command(self, command: Command) -> Command:
        if command.command != ("cat", "/proc/net/dev"):
            return command
        return command.but(command=("printf", "head\\nhead\\n    lo: 0\\n  eth0: 0\\n"))


class LoopbackIsDown(Mutant):
    """Calls to itself are as unreachable as everything else."""

    kills = ("network.own_loopback",)

    def command(self, command: Command) -> Command:
        return texts(command, lambda text: text.replace("127.0.0.1", "203.0.113.1"))


class NetworkStaysOff(Mutant):
    kills = ("network.on",)

    def order(self, order: Order) -> Order:
        return order.but(spec=order.spec.but(network=NetworkMode.OFF))


class MountsEverythingWritable(Mutant):
    kills = ("mounts.read_only", "mounts.several")

    def order(self, order: Order) -> Order:
        return with_modes(order, MountMode.RW)


class MountsNothingWritable(Mutant):
    kills = ("mounts.writable", "mounts.several")

    def order(self, order: Order) -> Order:
        return with_modes(order, MountMode.RO)


class MountsTheDirectory(Mutant):
    """A file brings its neighbours along."""

    kills = ("mounts.one_file",)

    def order(self, order: Order) -> Order:
        return repinned(order.but(spec=order.spec.but(mounts=tuple(
            mount.but(source=os.path.dirname(mount.source), target=os.path.dirname(mount.target))
            for mount in order.spec.mounts
        ))))  # fmt: skip


class MakesMissingSources(Mutant):
    """As Docker does with -v."""

    kills = ("mounts.missing_source",)

    def order(self, order: Order) -> Order:
        for mount in order.spec.mounts:
            os.makedirs(mount.source, exist_ok=True)
        return repinned(order)


class TrustsNames(Mutant):
    """What lies at the path now is mounted, whatever policy looked at."""

    kills = ("mounts.swapped_source",)

    def order(self, order: Order) -> Order:
        return repinned(order)


class KeepsItsOwnWorkspace(Mutant):
    kills = ("mounts.workspace_of_the_host",)

    def order(self, order: Order) -> Order:
        places = order.places.but(workspace=None)
        return order.but(spec=order.spec.but(workspace=Workspace()), places=places)


def limited(order: Order, **limits: float) -> Order:
    return order.but(spec=order.spec.but(limits=order.spec.limits.but(**limits)))


def with_modes(order: Order, mode: MountMode) -> Order:
    mounts = tuple(mount.but(mode=mode) for mount in order.spec.mounts)
    places = order.places.but(mounts=tuple(place.but(mode=mode) for place in order.places.mounts))
    return order.but(spec=order.spec.but(mounts=mounts), places=places)


def repinned(order: Order) -> Order:
    return order.but(places=order.places.but(mounts=tuple(pin(mount) for mount in order.spec.mounts)))


def pin(mount: Mount) -> CheckedMount:
    real = os.path.realpath(mount.source)
    found = os.stat(real)
    return CheckedMount(real=real, target=mount.target, mode=mount.mode, dev=found.st_dev, ino=found.st_ino)
