"""The skills of this machine's user: `Hutch().skills`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.skills.mounts import SkillBoxes
from hutch.keeper.skills.skills import Skills, scan
from hutch.model.skills import (
    FoundSkill,
    SkillBinding,
    SkillFile,
    SkillInfo,
    SkillPlace,
    SkillPreview,
    SkillVersion,
)

if TYPE_CHECKING:
    from hutch import api
    from hutch.skills.sources import Source


class OwnSkills:
    """The `Skills` protocol of one owner. Sources may be paths of this machine: who calls this may read them."""

    def __init__(self, skills: Skills, boxes: SkillBoxes, owner: str = LOCAL_OWNER) -> None:
        self._skills = skills
        self._boxes = boxes
        self._owner = owner

    async def all(self) -> tuple[SkillInfo, ...]:
        return await self._skills.all(self._owner)

    async def get(self, name: str) -> SkillInfo:
        return await self._skills.get(self._owner, name)

    async def body(self, name: str) -> str:
        return await self._skills.body(self._owner, name)

    async def files(self, name: str, version: str = "") -> tuple[SkillFile, ...]:
        return await self._skills.files(self._owner, name, version)

    async def read_file(self, name: str, path: str, version: str = "") -> bytes:
        return await self._skills.read_file(self._owner, name, path, version)

    async def versions(self, name: str) -> tuple[SkillVersion, ...]:
        return await self._skills.versions(self._owner, name)

    async def export(self, name: str, version: str = "") -> bytes:
        return await self._skills.export(self._owner, name, version)

    async def scan(self, directory: str | Path) -> tuple[FoundSkill, ...]:
        return await scan(directory)

    async def preview(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False
    ) -> SkillPreview:
        return await self._skills.preview(self._owner, _source(source, path, ref, local_git))

    async def install(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False, digest: str = ""
    ) -> SkillInfo:
        return await self._skills.install(self._owner, _source(source, path, ref, local_git), digest=digest)

    async def create(self, name: str, description: str, body: str = "") -> SkillInfo:
        return await self._skills.create(self._owner, name, description, body)

    async def write_file(
        self, name: str, path: str, data: bytes | str, *, executable: bool = False, expect: str = ""
    ) -> SkillInfo:
        content = data.encode() if isinstance(data, str) else data
        return await self._skills.change_files(
            self._owner, name, {path: content}, expect=expect, executable=executable
        )  # fmt: skip

    async def remove_file(self, name: str, path: str, *, expect: str = "") -> SkillInfo:
        return await self._skills.change_files(self._owner, name, {path: None}, expect=expect)

    async def save(self, name: str, box: "api.Box", path: str = "") -> SkillInfo:
        return await self._skills.save(self._owner, name, box, path)

    async def upgrade(self, name: str) -> SkillInfo:
        return await self._skills.upgrade(self._owner, name)

    async def rollback(self, name: str, version: str = "") -> SkillInfo:
        return await self._skills.rollback(self._owner, name, version)

    async def pin(self, name: str, version: str = "") -> SkillInfo:
        return await self._skills.pin(self._owner, name, version)

    async def unpin(self, name: str) -> SkillInfo:
        return await self._skills.unpin(self._owner, name)

    async def remove(self, name: str) -> None:
        await self._skills.remove(self._owner, name)

    async def bindings(self) -> tuple[SkillBinding, ...]:
        return await self._skills.bindings(self._owner)

    async def bind(self, group: str, names: Sequence[str]) -> SkillBinding:
        return await self._skills.bind(self._owner, group, tuple(names))

    async def prepare(self, name: str, box: "api.Box") -> SkillPlace:
        return await self._boxes.prepare(self._owner, name, box)


def _source(source: str | Path | bytes, path: str, ref: str, local_git: bool) -> "Source":
    from hutch.skills import sources

    if isinstance(source, bytes):
        return sources.Zip("sent.zip", source, path)
    return sources.of(str(source), path=path, ref=ref, local_git=local_git)
