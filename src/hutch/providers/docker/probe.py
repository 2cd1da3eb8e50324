"""An engine's capabilities: read from its answers, then proven by a canary box that holds nothing but our guest."""

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
from hutch.providers.docker.context import EngineContext
from hutch.providers.docker.engine import info as engine_info
from hutch.providers.docker.engine.info import EngineInfo
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
    """The facts that a canary box has shown."""

    status: str
    pty: bool
    interfaces: frozenset[str]
    """The interfaces of its network, without the loopback."""


class Proof(Record, frozen=True, kw_only=True):
    """The stored part of the canaries' results."""

    pty: bool
    no_network: str
    """The reason why a box cannot have a network, or "" if it can."""


async def has_terminal(box: ContainerInstance, bundle: GuestBundle) -> bool:
    """Return whether a program in a terminal has it as its controlling terminal, which older gVisor does not give."""
    code = "import os; os.open('/dev/tty', os.O_RDWR)"
    job = await box.start(Command(command=tuple(bundle.python(code)), pty=True, timeout_sec=10.0))
    return (await job.wait(15.0)).exit_code == 0


async def probe(provider: str, context: EngineContext, canary: Canary, *, anew: bool = False) -> Capabilities:
    """Return the capabilities if a canary box works and is hardened, else why not. `anew` ignores stored results."""
    mark = _proof_path(context)
    if anew and mark is not None:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)
    proof = _read_proof(mark)
    if proof is None:
        try:
            result = await canary(NetworkMode.OFF)
        except HutchError as error:
            return unusable(provider, error)
        if soft := missing_hardening(result.status, context.machine.isolation):
            return unusable(
                provider,
                HutchError(
                    f"containers of this engine are not hardened: {soft}",
                    remedy="give the engine its default seccomp profile and security options back",
                ),
            )
        proof = Proof(pty=result.pty, no_network=await _network_obstacle(canary))
        _write_proof(mark, proof)
    context.pty, context.no_network = proof.pty, proof.no_network
    return capabilities(provider, context, proof, walled=await context.walls() is not None)


async def _network_obstacle(canary: Canary) -> str:
    try:
        result = await canary(NetworkMode.ON)
    except HutchError as error:
        return f"a network for a box could not be made: {error.message}"
    return "" if result.interfaces else "the runtime gives a box no interface"


def missing_hardening(status: str, isolation: Isolation) -> str:
    """Return what hardening is missing according to a guest's status (proc_pid_status(5)); "" if nothing."""
    found = dict(re.findall(r"^(\w+):\s*(\S+)", status, re.M))
    if int(found.get("CapEff", "0"), 16) or int(found.get("CapPrm", "0"), 16):
        return f"capabilities {found.get('CapPrm')} are left"
    if isolation is not Isolation.NAMESPACES:
        return ""  # the kernel that answers is the sandbox's own, not the host's
    if found.get("NoNewPrivs") != "1":
        return "no_new_privs is not set"
    if found.get("Seccomp") != "2":
        return "no system call filter is loaded"
    return ""


def grades(found: EngineInfo) -> Grades:
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
        ports=True,
        durable_jobs=True,
        pty=proof.pty,
        watch=True,
        pause=Pause.FREEZE,
        users=("user", "root"),
        writable_root=True,
        persistent=True,
        layers=True,
        networks=(NetworkMode.OFF,) if proof.no_network else (NetworkMode.OFF, NetworkMode.ON),
        images=("oci",),
        default_image=f"oci:{image}" if image else "",
        mounts=True,
        memory_mb=found.memory_mb,
        grades=grades(found),
        disk_if_persistent=EnforcedBy.WATCHDOG,  # volumes and the root's layer are directories of the engine
        disk_if_writable_root=EnforcedBy.WATCHDOG,
        missing=_missing(context, proof, walled=walled),
        facts={
            "engine": f"{found.product} {found.version} at {context.engine.http.endpoint}",
            "runtime": found.runtime,
            "lane": "fast" if context.fast else "api",
            "cgroups": f"v{found.cgroups}",
            "kernel": found.kernel,
            "storage": f"{found.storage} on {found.backing}" if found.backing else found.storage,
            "layers": "copies: a checkpoint costs as much as copying the box's files, a rollback also a new container",
            "disk": "tmpfs: half of disk_mb for /workspace, a quarter each for the home and /tmp",
            "egress": "private ranges and the machine refused" if walled else "not filtered",
        },
    )


def _missing(context: EngineContext, proof: Proof, *, walled: bool) -> tuple[Missing, ...]:
    found = [
        Missing(what="images.host", reason="containers are made of images", remedy="use oci:REF"),
        Missing(what="uid_range", reason="commands run as the box's user or as root", remedy="use user or root"),
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


def _read_proof(mark: Path | None) -> Proof | None:
    if mark is None:
        return None
    try:
        return Proof.from_json(mark.read_bytes())
    except (OSError, HutchError, ValueError):
        return None


def _write_proof(mark: Path | None, proof: Proof) -> None:
    if mark is not None:
        with contextlib.suppress(OSError):  # without the file the next probe only has to make two boxes
            # Also the state directory, which may be missing: `parents` alone would make it readable for others.
            mark.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.parent.mkdir(mode=0o700, exist_ok=True)
            mark.write_bytes(proof.to_json())


def _proof_path(context: EngineContext) -> Path | None:
    """Return where a canary's result is stored, under a name that covers all that the result depends on."""
    if not context.settings.state_dir:
        return None
    words = (repr(context.machine), repr(context.settings), context.bundle.digest, str(os.geteuid()), __version__)
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]
    return Path(context.settings.state_dir, "cache", f"container-canary-{key}")
