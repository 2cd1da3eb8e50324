"""Build boxes: short-lived boxes in which dependencies of skills are installed and repositories are fetched.

Both run code of strangers, or talk to machines that strangers name. So they run in a box, whose network reaches no
private address.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hutch.errors import FileTooLarge, HutchError, Invalid, Refused, Unavailable
from hutch.keeper.access.files import streaming
from hutch.keeper.boxes.live import Live
from hutch.keeper.skills.skills import Skills, in_thread
from hutch.logs import log
from hutch.model.limits import LimitsAsked
from hutch.model.skills import NO_SKILL
from hutch.model.spec import NetworkMode, Spec
from hutch.providers.base import Command
from hutch.providers.guest_client.local_trees import unpacked
from hutch.skills import dependencies, git
from hutch.skills.content import MAX_PACKAGE_BYTES
from hutch.skills.skill_index import Origin
from hutch.skills.sources import Source, Zip

SESSION = "skills"
BUILD_SECONDS = 900.0
_MOST_STREAMED = (dependencies.MAX_MB + 256) << 20
"""Bytes of built dependencies on their way out of a box, with a header for each of their files."""
_ARCHIVE = "/workspace/tree.zip"
_REPOSITORY = "/workspace/repository"


class CreateBox(Protocol):
    """The signature of `Keeper.create`."""

    def __call__(self, spec: Spec, *, session: str, owner: str) -> Awaitable[Live]: ...


DestroyBox = Callable[[Live, str], Awaitable[object]]


class BuildBoxes:
    """Builds and fetches skills for the owners of one keeper."""

    def __init__(self, skills: Skills, create: CreateBox, destroy: DestroyBox) -> None:
        self._skills = skills
        self._create = create
        self._destroy = destroy
        self._building: dict[tuple[str, str], asyncio.Task[str]] = {}
        """Builds in progress by owner and digest, so that a second caller waits for the first one's build."""

    @asynccontextmanager
    async def _box(self, owner: str, *, network: bool) -> AsyncIterator[Live]:
        spec = Spec(
            network=NetworkMode.ON if network else NetworkMode.OFF, skills=NO_SKILL, ttl_sec=2 * BUILD_SECONDS,
            labels={"purpose": "skills"}, limits=LimitsAsked(disk_mb=dependencies.MAX_MB, memory_mb=1024),
        )  # fmt: skip
        live = await self._create(spec, session=SESSION, owner=owner)
        live.pins += 1
        try:
            if network and live.record.spec.network is NetworkMode.OFF:
                raise Refused("the profile allows no network", remedy="choose a profile that does, or vendor the files")
            yield live
        finally:
            live.unpin()
            await self._destroy(live, "its work for a skill is done")

    @asynccontextmanager
    async def _scratch(self) -> AsyncIterator[Path]:
        """Create a scratch directory, and remove it, in threads: it may hold ten thousand files."""
        scratch = self._skills.store.scratch()
        place = await in_thread(scratch.__enter__)
        try:
            yield place
        finally:
            await in_thread(scratch.__exit__, None, None, None)

    # --- dependencies ---------------------------------------------------------------------------------------

    async def prepare(self, owner: str, name: str, digest: str) -> str:
        """Install the dependencies of a version, once. Returns why that failed; empty if all are there."""
        if await in_thread(self._skills.store.prepared, owner, digest):
            return ""
        key = (owner, digest)
        building = self._building.get(key)
        if building is None:
            building = self._building[key] = asyncio.create_task(self._build(owner, name, digest))
            building.add_done_callback(lambda _: self._building.pop(key, None))
        return await asyncio.shield(building)

    async def _build(self, owner: str, name: str, digest: str) -> str:
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                await self._install(owner, name, digest)
        except (HutchError, OSError, TimeoutError) as error:
            reason = getattr(error, "message", "") or str(error) or f"it took more than {BUILD_SECONDS:g} s"
            warning = f"its dependencies could not be prepared: {reason}"
            log("keeper").warning("dependencies of a skill not prepared", skill=name, error=reason)
            await in_thread(self._skills.store.warn, owner, name, digest, warning)
            return warning
        return ""

    async def _install(self, owner: str, name: str, digest: str) -> None:
        store = self._skills.store
        needed = store.packages.get(digest).manifest.dependencies
        async with self._scratch() as scratch:
            source = scratch / "skill"
            source.mkdir()
            await in_thread(store.packages.copy, digest, source)
            async with self._box(owner, network=dependencies.needs_network(needed)) as live:
                files = live.running.files
                await files.copy_in(source, dependencies.SKILL_AT)
                await files.mkdir(dependencies.BUILD_AT)
                await files.mkdir(dependencies.EMPTY_AT)
                for command in dependencies.commands(needed):
                    await _run(live, command, cwd=dependencies.EMPTY_AT)
                # The stream is bounded: code of strangers has run in that box and may send without end.
                coming = _bounded(streaming(files).pack(dependencies.BUILD_AT), _MOST_STREAMED)
                await unpacked(coming, dependencies.BUILD_AT, scratch / "built", _MOST_STREAMED)
            await in_thread(store.keep_dependencies, owner, name, digest, scratch / "built")

    # --- repositories ---------------------------------------------------------------------------------------

    async def fetch(
        self, owner: str, url: str, ref: str = "", path: str = "", protocols: tuple[str, ...] = ("https",)
    ) -> Source:
        """Fetch one commit of a repository as an archive, in a box. The archive is as untrusted as any other."""
        git.check_source(url, ref, local="file" in protocols)
        env = git.environment(protocols)
        async with self._box(owner, network="file" not in protocols) as live:
            return await fetch_commit(live, url, ref, path, env)


async def fetch_commit(live: Live, url: str, ref: str, path: str, env: dict[str, str]) -> Source:
    address = f"file://{url}" if "file" in env["GIT_ALLOW_PROTOCOL"] else url
    await _run(live, git.command(["init", "--bare", "--quiet", "--template=", _REPOSITORY]), env=env)
    fetch = ["-C", _REPOSITORY, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules"]
    await _run(live, git.command([*fetch, "--", address, ref or "HEAD"]), env=env)
    output = await _run(live, git.command(["-C", _REPOSITORY, "rev-parse", "--verify", "FETCH_HEAD^{commit}"]), env=env)
    commit = output.strip()
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise Invalid(f"git found no commit for {ref or 'HEAD'} of {url}")
    archive = ["-C", _REPOSITORY, "archive", "--format=zip", f"--output={_ARCHIVE}", "FETCH_HEAD"]
    await _run(live, git.command(archive), env=env)
    data = await live.running.files.read(_ARCHIVE, limit=MAX_PACKAGE_BYTES + 1)
    return Commit(Zip(url, data, path), Origin(kind="git", place=url, path=path, ref=ref, commit=commit))


@dataclass(frozen=True)
class Commit:
    """A skill source: the archive of one commit."""

    archive: Zip
    origin: Origin

    def fetch(self, into: Path, scratch: Path) -> Origin:
        self.archive.fetch(into, scratch)
        return self.origin


async def _bounded(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > most:
            raise FileTooLarge(f"the dependencies have more than {dependencies.MAX_MB} MB")
        yield piece


async def _run(
    live: Live, command: str | list[str], *, cwd: str | None = None, env: dict[str, str] | None = None
) -> str:
    """Run a command that must succeed, and return its standard output."""
    words = command if isinstance(command, str) else tuple(command)
    result = await live.running.run(
        Command(command=words, cwd=cwd, env=env or {}, timeout_sec=BUILD_SECONDS, keep_output=1 << 16)
    )
    if result.exit_code == 0:
        return result.stdout
    message = " ".join((result.stderr or result.stdout).split())[-600:]
    if result.exit_code == 127:
        raise Unavailable(f"the box has no such program: {message}", retryable=False, remedy="use an image that has it")
    raise Invalid(message or f"{words} ended with {result.exit_code} ({result.verdict.cause})")
