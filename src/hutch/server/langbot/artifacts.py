"""Skills of LangBot in boxes: trees of files that are named by their digest and shown read-only.

LangBot activates skills while a session lives, so each workspace has one directory of trees, which all its boxes show.
A tree is copied there once, checked against its manifest file by file, and appears under its name only as a whole.
"""

import asyncio
import hashlib
import json
import os
import posixpath
import secrets
import shutil
import stat
from contextlib import suppress
from typing import Annotated, BinaryIO, Literal

import msgspec

from hutch.errors import HutchError
from hutch.keeper.locks import KeyedLocks
from hutch.model.record import Record
from hutch.policy.values import at_or_below
from hutch.server.langbot.messages import BoxFailure, BoxSpec, MountSpec
from hutch.server.langbot.shared_roots import SharedRoots

DIRECTORY = ".hutch-artifacts"
MAX_FILES = 2048
MAX_BYTES = 256 << 20
MAX_TREES = 256
MAX_MANIFEST_BYTES = 4 << 20
PIECE_BYTES = 1 << 20


class ManifestFile(Record, frozen=True, kw_only=True):
    path: Annotated[str, msgspec.Meta(min_length=1)]
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    executable: bool


class Manifest(Record, frozen=True, kw_only=True):
    algorithm: Literal["sha256-tree-v1"]
    files: Annotated[tuple[ManifestFile, ...], msgspec.Meta(max_length=MAX_FILES)]
    total_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]


class Artifacts:
    """Prepares the trees of each workspace."""

    def __init__(self, roots: SharedRoots) -> None:
        self._roots = roots
        self._locks = KeyedLocks()
        """A lock for each workspace, so that a tree is copied once and the directory's limits hold."""
        self.trees = tuple(f"{root}/{DIRECTORY}" for root in roots.paths)
        """Where the trees of all workspaces lie. No box may write there, whatever path leads to it: a link in the place
        of a workspace's directory would lead this server elsewhere."""

    async def directory(self, namespace: str, host_path: str) -> str:
        """Return the directory that a new box of the workspace shows; empty if its box could write there."""
        path = f"{self._roots.check(host_path)}/{DIRECTORY}/{namespace}"
        if at_or_below(path, os.path.normpath(host_path)):
            return ""
        await self._roots.make_directory(path)
        return path

    async def prepare(self, namespace: str, spec: BoxSpec) -> None:
        """Make every skill of the spec visible in the workspace's boxes."""
        for mount in spec.extra_mounts:
            if not mount.is_artifact:
                continue
            try:
                if spec.host_path is None or not (directory := await self.directory(namespace, spec.host_path)):
                    raise ValueError("its workspace cannot show it")
                async with self._locks.lock(namespace):
                    await asyncio.to_thread(_publish, mount, directory, self._roots)
            except (HutchError, OSError, ValueError, msgspec.DecodeError) as error:
                raise BoxFailure("BoxError", f"Immutable artifact preparation failed: {error}") from error


def _publish(mount: MountSpec, directory: str, roots: SharedRoots) -> None:
    """Copy a tree below `directory` under its digest, unless it is there already."""
    digest = (mount.content_digest or "")[7:]
    target = f"{directory}/{digest}"
    if os.path.isdir(target):
        return
    manifest = _read_manifest(_open_below(roots, mount.manifest_path or ""), digest)
    if len(os.listdir(directory)) >= MAX_TREES:
        raise ValueError("Immutable artifact cache limit reached")
    staging = f"{directory}/.{secrets.token_hex(8)}"
    source = _open_below(roots, mount.host_path, os.O_DIRECTORY)
    try:
        os.mkdir(staging, 0o755)
        for entry in manifest.files:
            _copy(source, entry, staging)
        os.rename(staging, target)
    finally:
        os.close(source)
        with suppress(FileNotFoundError):
            shutil.rmtree(staging)


def _read_manifest(descriptor: int, digest: str) -> Manifest:
    with os.fdopen(descriptor, "rb") as file:
        body = file.read(MAX_MANIFEST_BYTES + 1)
    if len(body) > MAX_MANIFEST_BYTES:
        raise ValueError("Artifact manifest is too large")
    manifest = msgspec.json.decode(body, type=Manifest)
    plain = json.dumps(json.loads(body), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    if hashlib.sha256(plain.encode()).hexdigest() != digest:
        raise ValueError("Artifact manifest does not match content_digest")
    for entry in manifest.files:
        if posixpath.normpath(entry.path) != entry.path or entry.path.startswith(("/", "../")) or entry.path == "..":
            raise ValueError("Artifact manifest contains an unsafe path")
    if sum(entry.size for entry in manifest.files) != manifest.total_bytes:
        raise ValueError("Artifact manifest contains an invalid total size")
    return manifest


def _copy(source: int, entry: ManifestFile, staging: str) -> None:
    *parents, name = entry.path.split("/")
    directory = os.dup(source)
    try:
        for parent in parents:
            below = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = below
        # O_NONBLOCK: opening a pipe that somebody put there must not hang.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("Artifact source must be a regular file")
            _copy_checked(file, entry, f"{staging}/{entry.path}")
    finally:
        os.close(directory)


def _copy_checked(source: BinaryIO, entry: ManifestFile, target: str) -> None:
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    left, digest = entry.size, hashlib.sha256()
    with open(target, "xb") as copy:
        while piece := source.read(min(PIECE_BYTES, left + 1)):
            left -= len(piece)
            if left < 0:
                break
            digest.update(piece)
            copy.write(piece)
    if left or digest.hexdigest() != entry.sha256:
        raise ValueError(f"Artifact source changed: {entry.path}")
    os.chmod(target, 0o555 if entry.executable else 0o444)


def _open_below(roots: SharedRoots, path: str, flags: int = 0) -> int:
    """Open a path below a shared root, wherever symlinks lead, and refuse it if that is elsewhere."""
    roots.check(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        roots.check(os.readlink(f"/proc/self/fd/{descriptor}"))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
