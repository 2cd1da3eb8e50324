"""What an engine can do for us: read, and then proven by a canary box made of nothing but our own guest."""

import contextlib
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from hutch import __version__
from hutch.errors import HutchError
from hutch.model.capabilities import Capabilities, Missing, Pause
from hutch.model.ids import new_box_id
from hutch.model.limits import EnforcedBy, Grades, Limits
from hutch.model.record import Record
from hutch.model.spec import EffectiveSpec, Isolation, NetworkMode, Order, Retention, Workspace
from hutch.providers.base import Command
from hutch.providers.docker import engine_info
from hutch.providers.docker.context import EngineContext
from hutch.providers.docker.engine_info import Machine
from hutch.providers.docker.instance import ContainerInstance
from hutch.providers.guest_bundle.pack import GuestBundle

Canary = Callable[[NetworkMode], Awaitable["CanaryResult"]]


def unusable(provider: str, error: HutchError) -> Capabilities:
    return Capabilities(
        provider=provider, usable=False, reason=error.message, remedy=error.remedy or f"is {provider} running?"
    )


def canary_order(provider: str, image: str, network: NetworkMode) -> Order:
    limits = Limits(
        cpus=1.0, memory_mb=64, pids=16, disk_mb=16, open_files=256, timeout_sec=10.0, max_timeout_sec=10.0
    )  # fmt: skip
    spec = EffectiveSpec(
        profile="", provider=provider, image=f"oci:{image}", workspace=Workspace(), workdir="/workspace", user="user",
        mounts=(), env={}, secrets={}, network=network, allow_private=(), limits=limits, read_only_root=True,
        retention=Retention.TEMPORARY, idle_timeout_sec=0.0, ttl_sec=60.0, labels={}, ports=(), name="",
    )  # fmt: skip
    box_id = new_box_id()
    return Order(box_id=box_id, keeper=f"canary-{box_id}", spec=spec)


class CanaryResult(NamedTuple):
    """What a canary has told."""

    status: str
    pty: bool
    interfaces: frozenset[str]
    """Of its network, without the loopback."""


class Proof(Record, frozen=True, kw_only=True):
    """What is remembered of the canaries."""

    pty: bool
    no_network: str
    """Why a box cannot have one; "" if it can."""


async def has_terminal(box: ContainerInstance, bundle: GuestBundle) -> bool:
    """Whether a program that is started in a terminal has it as its own; gVisor did not give it so for years."""
    code = "import os; os.open('/dev/tty', os.O_RDWR)"
    job = await box.start(Command(command=tuple(bundle.python(code)), pty=True, timeout_sec=10.0))
    return (await job.wait(15.0)).exit_code == 0


async def probe(provider: str, context: EngineContext, canary: Canary, *, anew: bool = False) -> Capabilities:
    """The capabilities, if a box lives there and is as hardened as it should be; else why not. `anew`: what earlier
    canaries have shown proves nothing."""
    mark = _mark(context)
    if anew and mark is not None:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)
    proof = _remembered(mark)
    if proof is None:
        try:
            sung = await canary(NetworkMode.OFF)
        except HutchError as error:
            return unusable(provider, error)
        if soft := softness(sung.status, context.machine.isolation):
            return unusable(
                provider,
                HutchError(
                    f"containers of this engine are not hardened: {soft}",
                    remedy="give the engine its default seccomp profile and security options back",
                ),
            )
        proof = Proof(pty=sung.pty, no_network=await _network_obstacle(canary))
        _remember(mark, proof)
    context.pty, context.no_network = proof.pty, proof.no_network
    return capabilities(provider, context, proof, walled=await context.walls() is not None)


async def _network_obstacle(canary: Canary) -> str:
    try:
        sung = await canary(NetworkMode.ON)
    except HutchError as error:
        return f"a network for a box could not be made: {error.message}"
    return "" if sung.interfaces else "the runtime gives a box no interface"


def softness(status: str, isolation: Isolation) -> str:
    """What of the engine's hardening is missing in a guest's own status (proc_pid_status(5)); "" if nothing."""
    found = dict(re.findall(r"^(\w+):\s*(\S+)", status, re.M))
    if int(found.get("CapEff", "0"), 16) or int(found.get("CapPrm", "0"), 16):
        return f"capabilities {found.get('CapPrm')} are left"
    if isolation is not Isolation.NAMESPACES:
        return ""  # behind a wall of its own the kernel that answers is not the machine's
    if found.get("NoNewPrivs") != "1":
        return "no_new_privs is not set"
    if found.get("Seccomp") != "2":
        return "no system call filter is loaded"
    return ""


def grades(found: Machine) -> Grades:
    inside = EnforcedBy.WATCHDOG if found.is_watched else EnforcedBy.CGROUP
    return Grades(
        cpus=EnforcedBy.CGROUP if "cpus" in found.holds else EnforcedBy.NONE,
        memory_mb=inside,
        pids=inside,
        disk_mb=EnforcedBy.QUOTA,
        open_files=EnforcedBy.RLIMIT,
    )


def capabilities(provider: str, context: EngineContext, proof: Proof, *, walled: bool) -> Capabilities:
    found, image = context.machine, context.settings.image.removeprefix("oci:")
    return Capabilities(
        provider=provider,
        isolation=found.isolation,
        guest=True,
        durable_jobs=True,
        pty=proof.pty,
        watch=True,
        pause=Pause.FREEZE,
        users=("user", "root"),
        writable_root=True,
        persistent=True,
        networks=(NetworkMode.OFF,) if proof.no_network else (NetworkMode.OFF, NetworkMode.ON),
        images=("oci",),
        default_image=f"oci:{image}" if image else "",
        mounts=True,
        memory_mb=found.memory_mb,
        grades=grades(found),
        disk_if_persistent=EnforcedBy.WATCHDOG,  # volumes and the root's layer are directories of the engine's
        disk_if_writable_root=EnforcedBy.WATCHDOG,
        missing=_missing(context, proof, walled=walled),
        facts={
            "engine": f"{found.product} {found.version} at {context.engine.http.endpoint}",
            "runtime": found.runtime,
            "lane": "fast" if context.fast else "api",
            "cgroups": f"v{found.cgroups}",
            "kernel": found.kernel,
            "storage": f"{found.storage} on {found.backing}" if found.backing else found.storage,
            "disk": "tmpfs: half of disk_mb for /workspace, a quarter each for the home and /tmp",
            "egress": "private ranges and the machine refused" if walled else "not filtered",
        },
    )


def _missing(context: EngineContext, proof: Proof, *, walled: bool) -> tuple[Missing, ...]:
    found = [
        Missing(what="images.host", reason="containers are made of images", remedy="use oci:REF"),
        Missing(what="uid_range", reason="commands run as the box's user or as root", remedy="use user or root"),
        Missing(what="ports", reason="ports of containers are not published", remedy="use the native provider"),
    ]
    if "cpus" not in context.machine.holds:
        found.append(
            Missing(
                what="grades.cpus",
                reason="the engine has no control group for processors",
                remedy="run it as root, or delegate the cpu controller to its user (cgroup v2)",
            )
        )
    if not proof.pty:
        found.append(
            Missing(
                what="pty",
                reason=f"runtime {context.machine.runtime} gives programs no controlling terminal",
                remedy="use a newer release of it, or another runtime",
            )
        )
    if proof.no_network:
        found.append(Missing(what="networks.on", reason=proof.no_network, remedy="check the engine's own networks"))
    elif not walled:
        found.append(
            Missing(
                what="egress",
                reason="boxes with network may reach private addresses: only root on the engine's machine can filter",
                remedy="run Hutch as root beside the engine, or filter there yourself",
            )
        )
    if not context.fast:
        reason = engine_info.obstacle(context.machine, context.engine.http.endpoint) or "lane api is asked for"
        found.append(Missing(what="lane.fast", reason=reason, remedy="run Hutch as root beside the engine"))
    return tuple(found)


def _remembered(mark: Path | None) -> Proof | None:
    if mark is None:
        return None
    try:
        return Proof.from_json(mark.read_bytes())
    except (OSError, HutchError, ValueError):
        return None


def _remember(mark: Path | None, proof: Proof) -> None:
    if mark is not None:
        with contextlib.suppress(OSError):  # what cannot be kept costs the next probe two boxes, nothing more
            mark.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            mark.write_bytes(proof.to_json())


def _mark(context: EngineContext) -> Path | None:
    """Where a canary that lived is remembered: by all that its answer may depend on."""
    if not context.settings.state_dir:
        return None
    words = (repr(context.machine), repr(context.settings), context.bundle.digest, str(os.geteuid()), __version__)
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]
    return Path(context.settings.state_dir, "cache", f"container-canary-{key}")
