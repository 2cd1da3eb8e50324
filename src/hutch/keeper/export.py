"""Moving a box: everything of it in one file, and a new box from that file, on whatever provider.

Stands on the public protocols alone, so it works between a laptop and a server too. Carried are the workspace, the
home, what was changed in the system where the root is writable, the spec and the labels. Not carried: processes, and
the values of secrets, which no file should hold; the notes say what else was left behind.
"""

import asyncio
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, cast

import msgspec

from hutch.api import Box
from hutch.errors import FileTooLarge, HutchError, Invalid, NotRunnable, QuotaExceeded, Refused, Unsupported
from hutch.keeper import bundles
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.system_archive import SystemArchive
from hutch.model.boxes import Moved
from hutch.model.record import Record
from hutch.model.skills import INSTALLED_AT
from hutch.model.spec import EffectiveSpec, MountMode, NetworkMode
from hutch.providers.guest_client.copy_bounds import entries_of

B = TypeVar("B", bound=Box)

VERSION = 1
MOST_BYTES = 1 << 40
_PIECE = 1 << 18
_LONGEST_MANIFEST = 1 << 20
_KEPT = ("profile", "workdir", "user", "env", "labels", "read_only_root", "retention", "idle_timeout_sec", "ttl_sec",
         "allow_private", "skills", "name")  # fmt: skip
_CARRIED = frozenset({*_KEPT, "limits", "network"}) - {"allow_private"}
"""What a file may ask for by itself: nothing of the host's."""
_ENGINES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab")
"""Every engine writes its own."""
_ELSEWHERE = (
    *_ENGINES,
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


NOT_ITS_OWN = "the workspace is"
"""How the note begins that a workspace is somebody else's."""

Part = Literal["workspace", "home", "system"]
"""Nothing else: a part's name is that of a file of this machine, which is read into the box."""


class Manifest(Record, frozen=True, kw_only=True):
    """What a file says of the box it was made from."""

    version: int
    box_id: str
    provider: str
    image: str
    exported_at: float
    spec: dict[str, Any]
    """As `Hutch.create` takes it."""
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()


async def export_box(box: Box, file: str | os.PathLike[str]) -> Moved:
    """Write the box to `file`. The box goes on; what its processes change meanwhile may be carried or not.

    What is gathered lies beside `file`, and all of it has at most the bytes of the box's disk: a new box of the same
    size could not take more, and what comes is the box's word."""
    notes: list[str] = []
    async with _place("hutch-export-", Path(file).resolve().parent) as here:
        parts = await carry_out(box, here, notes)
        if box.spec.secrets:
            notes.append(f"secrets are not carried; name them again: {', '.join(sorted(box.spec.secrets))}")
        manifest = Manifest(
            version=VERSION, box_id=box.id, provider=box.spec.provider, image=box.spec.image,
            exported_at=time.time(), spec=asked(box.spec), parts=parts, notes=tuple(notes),
        )  # fmt: skip
        (here / bundles.MANIFEST).write_bytes(manifest.to_json())
        await run_uncancelled(asyncio.to_thread(bundles.pack, here, Path(file)))
    return Moved(box_id=box.id, parts=parts, notes=tuple(notes), size=Path(file).stat().st_size)


async def import_box(
    create: Callable[..., Awaitable[B]], file: str | os.PathLike[str], *, provider: str = "",
    most: int = MOST_BYTES, spool: Path | None = None, **changes: Any,
) -> tuple[B, Moved]:  # fmt: skip
    """A new box from `file`, made by `create`; `changes` are fields of the spec that win over the file's. It is
    unpacked in `spool`, else beside the file, to at most `most` bytes. If a part cannot be put into the new box, that
    box is destroyed and the error says which."""
    box: B | None = None
    try:
        async with _place("hutch-import-", spool or Path(file).resolve().parent) as here:
            await run_uncancelled(asyncio.to_thread(bundles.unpack, Path(file), here, most=most))
            manifest = _manifest(here)
            notes = [*manifest.notes]
            box = await create(**_wanted(manifest, provider, changes, notes))
            parts = await carry_in(box, here, manifest.parts, notes)
    except BaseException:
        if box is not None:
            await run_uncancelled(box.destroy())
        raise
    return box, Moved(box_id=box.id, parts=parts, notes=tuple(notes))


async def carry_out(box: Box, here: Path, notes: list[str]) -> tuple[Part, ...]:
    """Copy what is the box's own into `here`; which parts there are. `notes` gets what was left behind, and why."""
    return (
        *await _take_tree(box, here, "workspace", _workspace(box.spec, notes), notes),
        *await _take_tree(box, here, "home", await _home(box), notes),
        *await _take_system(box, here, notes),
    )


async def carry_in(box: Box, here: Path, parts: tuple[Part, ...], notes: list[str]) -> tuple[Part, ...]:
    """Copy the parts from `here` into the box; those that it could take."""
    return tuple([part for part in parts if await _put(box, here, part, notes)])


@asynccontextmanager
async def _place(prefix: str, parent: Path) -> AsyncIterator[Path]:
    """A directory for a while. A thread removes it: a box may have very many files."""
    made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    try:
        yield Path(made.name)
    finally:
        await run_uncancelled(asyncio.to_thread(made.cleanup))


def asked(spec: EffectiveSpec) -> dict[str, Any]:
    """The effective spec as a caller would ask for it again."""
    plain: dict[str, Any] = msgspec.to_builtins(spec)
    limits = {name: value for name, value in plain["limits"].items() if name != "max_timeout_sec"}
    kept = {name: plain[name] for name in _KEPT if plain[name]}
    return kept | {"limits": limits, "network": str(spec.network), "read_only_root": spec.read_only_root}


def _manifest(here: Path) -> Manifest:
    try:
        with (here / bundles.MANIFEST).open("rb") as file:
            manifest = Manifest.from_json(file.read(_LONGEST_MANIFEST))
    except (FileNotFoundError, RecursionError) as error:
        raise Invalid("this is no exported box: it has no manifest", op="import") from error
    if manifest.version != VERSION:
        raise Invalid(f"this box was exported in format {manifest.version}; this Hutch reads {VERSION}", op="import")
    return manifest


def _wanted(manifest: Manifest, provider: str, changes: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """An image is the engine's own; on another one its own default stands, unless the caller names one."""
    wanted = {name: value for name, value in manifest.spec.items() if name in _CARRIED}
    # A box may have written the file (lesson 44): it opens neither host files nor private networks, and no bare host.
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
        wanted.pop("network")  # what every profile that has none gives, and what a locked one refuses to be told
    wanted |= {"provider": target} | {name: value for name, value in changes.items() if value is not None}
    if not wanted.get("name"):
        wanted.pop("name", None)  # an empty name is none
    return wanted


# --- out of a box -------------------------------------------------------------------------------------------------


def _workspace(spec: EffectiveSpec, notes: list[str]) -> str:
    if spec.workspace.mode is MountMode.NONE:
        return ""
    if spec.workspace.source != "own":
        notes.append(f"{NOT_ITS_OWN} {spec.workspace.source}: it is not the box's own, and not carried")
        return ""
    return "/workspace"


async def _home(box: Box) -> str:
    home = (await box.exec('printf %s "$HOME"')).stdout
    return home if home.startswith("/") and home not in ("/", "/workspace", "/tmp") else ""


async def _take_tree(box: Box, here: Path, part: Part, source: str, notes: list[str]) -> list[Part]:
    if not source or not await box.files.exists(source):
        return []
    try:
        await box.files.copy_out(source, here / part, most=await _left(box, here))
    except FileTooLarge as error:
        raise QuotaExceeded(
            f"{source} has more than the box's disk of {box.spec.limits.disk_mb} MB can hold", op="export",
            retryable=False, remedy="remove files, or give the box a larger disk_mb: names of one file count each",
        ) from error  # fmt: skip
    except (PermissionError, Unsupported) as error:
        notes.append(f"{source} is not carried: {error}")
        await asyncio.to_thread(shutil.rmtree, here / part, ignore_errors=True)
        return []
    return [part]


async def _left(box: Box, here: Path) -> int:
    """Bytes of the box's disk that were not gathered yet."""
    used = await asyncio.to_thread(_on_disk, here)
    return max(0, (box.spec.limits.disk_mb << 20) - used)


def _on_disk(place: Path) -> int:
    """Holes have no bytes there."""
    found = (os.lstat(os.path.join(top, name)) for top, _, names in os.walk(place) for name in names)
    return sum(each.st_blocks * 512 for each in found)


async def _take_system(box: Box, here: Path, notes: list[str]) -> list[Part]:
    """What was changed since the box was made: the kernel stamps every change of an inode (ctime), whoever sets the
    other times. What was deleted leaves no trace and is not carried."""
    if box.spec.read_only_root:
        return []
    born = (await box.info()).created_at
    others = [home for home in (await _home(box),) if home] + [mount.target for mount in box.spec.mounts]
    pruned = " -o ".join(f"-path {shlex.quote(path)}" for path in (*_ELSEWHERE, *others))
    script = (
        f"find / \\( {pruned} \\) -prune -o \\( -type f -o -type l \\) -newerct '@{born:.3f}' -print0"
        f" | tar -cSf - --no-recursion --null -T -"
    )
    left = await _left(box, here)
    archive = SystemArchive(left, entries_of(left))
    try:
        stream = box.stream(["/bin/bash", "-o", "pipefail", "-c", script], user="root")
        # Closed by name: a box's tar that never ends is killed when it has written too much.
        async with aclosing(cast(AsyncGenerator[tuple[str, bytes], None], aiter(stream))) as pieces:
            with await asyncio.to_thread(open, here / "system.tar", "wb") as file:
                async for name, piece in pieces:
                    if name == "stdout":
                        archive.take(piece)
                        await asyncio.to_thread(file.write, piece)
        reason = "" if stream.result.exit_code == 0 else "the box needs bash, GNU find and tar"
        if not reason:
            archive.end()
    except (NotRunnable, Refused, Unsupported, QuotaExceeded, Invalid) as error:
        reason = error.message
    if reason:
        notes.append(f"changes outside of workspace and home are not carried: {reason}")
        (here / "system.tar").unlink(missing_ok=True)
        return []
    return ["system"]


# --- into a box ---------------------------------------------------------------------------------------------------


async def _put(box: Box, here: Path, part: Part, notes: list[str]) -> bool:
    if part == "system":
        return await _put_system(box, here / "system.tar", notes)
    target = _workspace(box.spec, []) if part == "workspace" else await _home(box)
    if not target or (part == "workspace" and box.spec.workspace.mode is not MountMode.RW):
        notes.append(f"the new box has no {part} of its own that can be written: it is not carried")
        return False
    if part == "workspace" and await box.files.exists(INSTALLED_AT):
        # The new box shows its owner's skills there, read-only: those that the old one showed have no place.
        await asyncio.to_thread(shutil.rmtree, here / part / os.path.basename(INSTALLED_AT), ignore_errors=True)
    await box.files.copy_in(here / part, target)
    return True


async def _put_system(box: Box, archive: Path, notes: list[str]) -> bool:
    if box.spec.read_only_root:
        notes.append("changes outside of workspace and home are not carried: the new box's root is read-only")
        return False
    try:
        job = await box.start(["tar", "-xpf", "-", "-C", "/"], user="root")
        async for piece in _pieces(archive):
            await job.write(piece)
        await job.close_stdin()
        result = await job.wait()
    except (NotRunnable, Refused, Unsupported) as error:
        notes.append(f"changes outside of workspace and home are not carried: {error.message}")
        return False
    if not result.ok:
        raise HutchError(f"changes of the system could not be put into the box: {result.stderr[-300:]}", op="import")
    return True


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    def read(file: IO[bytes]) -> bytes:
        return file.read(_PIECE)

    with await asyncio.to_thread(open, path, "rb") as file:
        while piece := await asyncio.to_thread(read, file):
            yield piece
