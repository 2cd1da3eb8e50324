"""Export and import: everything of a box in one file, and a new box from that file, on whatever provider.

This stands on the public protocols alone, so it works between a laptop and a server too. An export carries the
workspace, the home, what was changed in the system where the root is writable, the checkpoints that callers have made,
the spec and the labels. It does not carry processes, nor the values of secrets, which no file should hold; the notes
say what else was left behind.
"""

import asyncio
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar, cast

import msgspec

from hutch.api import Box
from hutch.errors import FileTooLarge, HutchError, Invalid, NotRunnable, QuotaExceeded, Refused, Unsupported
from hutch.keeper.archives import bundles, checkpoint_history
from hutch.keeper.archives.checkpoint_history import CarriedCheckpoint, Tree
from hutch.keeper.archives.system_archive import SystemArchive
from hutch.keeper.locks import run_uncancelled
from hutch.model.boxes import Moved
from hutch.model.record import Record
from hutch.model.skills import INSTALLED_AT
from hutch.model.spec import EffectiveSpec, MountMode, NetworkMode
from hutch.providers.guest_client.trees import max_copy_entries

B = TypeVar("B", bound=Box)

VERSION = 2
"""The newest format. A box without checkpoints is written in the first one, which older releases read too."""
MAX_BYTES = 1 << 40
_CHUNK_BYTES = 1 << 18
_MAX_MANIFEST_BYTES = 1 << 20
_KEPT = ("profile", "workdir", "user", "env", "labels", "read_only_root", "retention", "idle_timeout_sec", "ttl_sec",
         "allow_private", "skills", "name")  # fmt: skip
_CARRIED = frozenset({*_KEPT, "limits", "network"}) - {"allow_private"}
"""The fields that a file may set by itself: nothing that belongs to the host."""
_ENGINE_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab")
"""Every engine writes these files itself."""
_NOT_SYSTEM = (
    *_ENGINE_FILES,
    "/proc",
    "/sys",
    "/dev",
    "/tmp",
    "/run",
    "/workspace",
    "/.hutch",
    "/.hutch-run",
    "/.hutch-root",
)

Part = Literal["workspace", "home", "system"]
"""The type admits nothing else, because a part's name is also the name of a file on this machine."""


class Omission(NamedTuple):
    """Something that an export left behind."""

    text: str
    lost: bool = True
    """False for what is not the box's own: it stays where it is."""


class Manifest(Record, frozen=True, kw_only=True):
    """What a file says about the box that was exported."""

    version: int
    box_id: str
    provider: str
    image: str
    exported_at: float
    spec: dict[str, Any]
    """The arguments for `Hutch.create`."""
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    checkpoints: tuple[CarriedCheckpoint, ...] = ()


async def export_box(box: Box, file: str | os.PathLike[str]) -> Moved:
    """Write the box to `file`. The box keeps running; what its processes change meanwhile may be carried or not.

    The parts are gathered beside `file`. Together they have at most the size of the box's disk, because a new box of
    the same size could not hold more, and because the box decides what it sends.
    """
    async with _temporary_directory("hutch-export-", Path(file).resolve().parent) as here:
        parts, omissions = await copy_out_parts(box, here)
        notes = [omission.text for omission in omissions]
        trees = {name: place for name, place in (await _places(box)).items() if name in parts}
        carried = await checkpoint_history.copy_out(box, here, trees, notes)
        if box.spec.secrets:
            notes.append(f"secrets are not carried; name them again: {', '.join(sorted(box.spec.secrets))}")
        manifest = Manifest(
            version=VERSION if carried else 1, box_id=box.id, provider=box.spec.provider, image=box.spec.image,
            exported_at=time.time(), spec=spec_arguments(box.spec), parts=parts, notes=tuple(notes),
            checkpoints=carried,
        )  # fmt: skip
        (here / bundles.MANIFEST).write_bytes(manifest.to_json())
        await run_uncancelled(asyncio.to_thread(bundles.pack, here, Path(file)))
    return Moved(box_id=box.id, parts=parts, notes=tuple(notes), size=Path(file).stat().st_size)


async def import_box(
    create: Callable[..., Awaitable[B]], file: str | os.PathLike[str], *, provider: str = "",
    most: int = MAX_BYTES, spool: Path | None = None, **changes: Any,
) -> tuple[B, Moved]:  # fmt: skip
    """Create a new box from `file` with `create`; `changes` are fields of the spec that win over the file's.

    The file is unpacked in `spool`, or else beside the file, to at most `most` bytes. If a part cannot be copied into
    the new box, that box is destroyed and the error says which.
    """
    box: B | None = None
    try:
        async with _temporary_directory("hutch-import-", spool or Path(file).resolve().parent) as here:
            await run_uncancelled(asyncio.to_thread(bundles.unpack, Path(file), here, most=most))
            manifest = _read_manifest(here)
            notes = [*manifest.notes]
            box = await create(**_create_arguments(manifest, provider, changes, notes))
            places = await _places(box, writable=True)
            present = await checkpoint_history.copy_in(box, here, manifest.checkpoints, places, notes)
            parts, omitted = await copy_in_parts(box, here, manifest.parts, present)
            notes += omitted
    except BaseException:
        if box is not None:
            await run_uncancelled(box.destroy())
        raise
    return box, Moved(box_id=box.id, parts=parts, notes=tuple(notes))


async def copy_out_parts(box: Box, here: Path) -> tuple[tuple[Part, ...], list[Omission]]:
    """Copy what is the box's own into `here`; return the parts, and what was left behind."""
    omissions: list[Omission] = []
    parts: tuple[Part, ...] = (
        *await _copy_out_tree(box, here, "workspace", _own_workspace(box.spec, omissions), omissions),
        *await _copy_out_tree(box, here, "home", await _home(box), omissions),
        *await _copy_out_system(box, here, omissions),
    )
    return parts, omissions


async def copy_in_parts(
    box: Box, here: Path, parts: tuple[Part, ...], present: Mapping[Tree, Path] | None = None
) -> tuple[tuple[Part, ...], list[str]]:
    """Copy the parts from `here` into the box; return those that it could take, and notes about the others.

    `present` are the trees that it has already, of its newest checkpoint.
    """
    notes: list[str] = []
    taken = tuple([part for part in parts if await _copy_in(box, here, part, notes, present or {})])
    return taken, notes


async def _places(box: Box, *, writable: bool = False) -> dict[Tree, str]:
    """The directories of the box that are carried as trees."""
    places: dict[Tree, str] = {"workspace": _own_workspace(box.spec, []), "home": await _home(box)}
    if writable and box.spec.workspace.mode is not MountMode.RW:
        places["workspace"] = ""
    return {tree: place for tree, place in places.items() if place}


@asynccontextmanager
async def _temporary_directory(prefix: str, parent: Path) -> AsyncIterator[Path]:
    """A thread removes the directory, because a box may have very many files."""
    made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    try:
        yield Path(made.name)
    finally:
        await run_uncancelled(asyncio.to_thread(made.cleanup))


def spec_arguments(spec: EffectiveSpec) -> dict[str, Any]:
    """Return the arguments by which a caller would ask for this effective spec again."""
    plain: dict[str, Any] = msgspec.to_builtins(spec)
    limits = {name: value for name, value in plain["limits"].items() if name != "max_timeout_sec"}
    kept = {name: plain[name] for name in _KEPT if plain[name]}
    return kept | {"limits": limits, "network": str(spec.network), "read_only_root": spec.read_only_root}


def _read_manifest(here: Path) -> Manifest:
    try:
        with (here / bundles.MANIFEST).open("rb") as file:
            manifest = Manifest.from_json(file.read(_MAX_MANIFEST_BYTES))
    except (FileNotFoundError, RecursionError) as error:
        raise Invalid("this is no exported box: it has no manifest", op="import") from error
    if not 1 <= manifest.version <= VERSION:
        raise Invalid(
            f"this box was exported in format {manifest.version}; this Hutch reads up to {VERSION}", op="import"
        )
    if len(manifest.checkpoints) > checkpoint_history.MAX_CARRIED:
        raise Invalid("this is no exported box: it has too many checkpoints", op="import")
    return manifest


def _create_arguments(
    manifest: Manifest, provider: str, changes: dict[str, Any], notes: list[str]
) -> dict[str, Any]:  # fmt: skip
    """An image belongs to its engine; another engine uses its own default, unless the caller names one."""
    wanted = {name: value for name, value in manifest.spec.items() if name in _CARRIED}
    # A box may have written the file, so it opens neither host files nor private networks, and no bare host.
    for name in sorted(manifest.spec.keys() - _CARRIED - changes.keys()):
        notes.append(f"the file asks for {name}, which a file cannot open: it is not carried")
    target = provider or manifest.provider
    if target == "host" and not provider:
        raise Refused(
            "the file asks for the provider host, which isolates nothing", op="import",
            remedy="name a provider (--provider), be it that one",
        )  # fmt: skip
    if target == manifest.provider:
        wanted["image"] = manifest.image
    elif not changes.get("image"):
        notes.append(f"image {manifest.image} is of provider {manifest.provider}; {target} uses its own")
    if wanted.get("network") == NetworkMode.OFF:
        wanted.pop("network")  # Profiles without network give this anyway, and a locked profile refuses the field.
    wanted |= {"provider": target} | {name: value for name, value in changes.items() if value is not None}
    if not wanted.get("name"):
        wanted.pop("name", None)  # An empty name means none.
    return wanted


# --- out of a box -------------------------------------------------------------------------------------------------


def _own_workspace(spec: EffectiveSpec, omissions: list[Omission]) -> str:
    if spec.workspace.mode is MountMode.NONE:
        return ""
    if spec.workspace.source != "own":
        text = f"the workspace is {spec.workspace.source}: it is not the box's own, and not carried"
        omissions.append(Omission(text, lost=False))
        return ""
    return "/workspace"


async def _home(box: Box) -> str:
    home = (await box.exec('printf %s "$HOME"')).stdout
    return home if home.startswith("/") and home not in ("/", "/workspace", "/tmp") else ""


async def _copy_out_tree(
    box: Box, here: Path, part: Part, source: str, omissions: list[Omission]
) -> list[Part]:  # fmt: skip
    if not source or not await box.files.exists(source):
        return []
    try:
        await box.files.copy_out(source, here / part, most=await _bytes_left(box, here))
    except FileTooLarge as error:
        raise QuotaExceeded(
            f"{source} has more than the box's disk of {box.spec.limits.disk_mb} MB can hold", op="export",
            retryable=False, remedy="remove files, or give the box a larger disk_mb: names of one file count each",
        ) from error  # fmt: skip
    except (PermissionError, Unsupported) as error:
        omissions.append(Omission(f"{source} is not carried: {error}"))
        await asyncio.to_thread(shutil.rmtree, here / part, ignore_errors=True)
        return []
    return [part]


async def _bytes_left(box: Box, here: Path) -> int:
    """Return how many bytes of the box's disk size are not used by the parts copied so far."""
    used = await asyncio.to_thread(checkpoint_history.bytes_on_disk, here)
    return max(0, (box.spec.limits.disk_mb << 20) - used)


async def _copy_out_system(box: Box, here: Path, omissions: list[Omission]) -> list[Part]:
    """Copy the system files that were changed since the box was created.

    The kernel stamps every change of an inode (ctime), whatever a program does to the other times. A deleted file
    leaves no trace, so deletions are not carried.
    """
    if box.spec.read_only_root:
        return []
    created_at = (await box.info()).created_at
    others = [home for home in (await _home(box),) if home] + [mount.target for mount in box.spec.mounts]
    pruned = " -o ".join(f"-path {shlex.quote(path)}" for path in (*_NOT_SYSTEM, *others))
    script = (
        f"find / \\( {pruned} \\) -prune -o \\( -type f -o -type l \\) -newerct '@{created_at:.3f}' -print0"
        f" | tar -cSf - --no-recursion --null -T -"
    )
    left = await _bytes_left(box, here)
    archive = SystemArchive(left, max_copy_entries(left))
    try:
        stream = box.stream(["/bin/bash", "-o", "pipefail", "-c", script], user="root")
        # Closing the stream kills a tar that never ends when it has written too much.
        async with aclosing(cast(AsyncGenerator[tuple[str, bytes], None], aiter(stream))) as chunks:
            with await asyncio.to_thread(open, here / "system.tar", "wb") as file:
                async for name, chunk in chunks:
                    if name == "stdout":
                        archive.feed(chunk)
                        await asyncio.to_thread(file.write, chunk)
        reason = "" if stream.result.exit_code == 0 else "the box needs bash, GNU find and tar"
        if not reason:
            archive.end()
    except (NotRunnable, Refused, Unsupported, QuotaExceeded, Invalid) as error:
        reason = error.message
    if reason:
        omissions.append(Omission(f"changes outside of workspace and home are not carried: {reason}"))
        (here / "system.tar").unlink(missing_ok=True)
        return []
    return ["system"]


# --- into a box ---------------------------------------------------------------------------------------------------


async def _copy_in(
    box: Box, here: Path, part: Part, notes: list[str], present: Mapping[Tree, Path]
) -> bool:  # fmt: skip
    if part == "system":
        return await _copy_in_system(box, here / "system.tar", notes)
    target = _own_workspace(box.spec, []) if part == "workspace" else await _home(box)
    if not target or (part == "workspace" and box.spec.workspace.mode is not MountMode.RW):
        notes.append(f"the new box has no {part} of its own that can be written: it is not carried")
        return False
    if part == "workspace" and await box.files.exists(INSTALLED_AT):
        # The new box has its owner's skills mounted there read-only, so those of the old box are not copied.
        await asyncio.to_thread(shutil.rmtree, here / part / os.path.basename(INSTALLED_AT), ignore_errors=True)
    await checkpoint_history.bring(box, present.get(part), here / part, target)
    return True


async def _copy_in_system(box: Box, archive: Path, notes: list[str]) -> bool:
    if box.spec.read_only_root:
        notes.append("changes outside of workspace and home are not carried: the new box's root is read-only")
        return False
    try:
        job = await box.start(["tar", "-xpf", "-", "-C", "/"], user="root")
        async for chunk in _chunks(archive):
            await job.write(chunk)
        await job.close_stdin()
        result = await job.wait()
    except (NotRunnable, Refused, Unsupported) as error:
        notes.append(f"changes outside of workspace and home are not carried: {error.message}")
        return False
    if not result.ok:
        raise HutchError(f"changes of the system could not be put into the box: {result.stderr[-300:]}", op="import")
    return True


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    def read(file: IO[bytes]) -> bytes:
        return file.read(_CHUNK_BYTES)

    with await asyncio.to_thread(open, path, "rb") as file:
        while chunk := await asyncio.to_thread(read, file):
            yield chunk
