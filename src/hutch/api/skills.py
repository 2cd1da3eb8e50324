"""The protocol of skill packages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hutch.api.boxes import Box
from hutch.model.skills import FoundSkill, SkillBinding, SkillFile, SkillInfo, SkillPlace, SkillPreview, SkillVersion


class Skills(Protocol):
    """The skill packages of this owner and their versions (docs/guides/skills.md). Raises: NotFound for others."""

    async def all(self) -> tuple[SkillInfo, ...]: ...

    async def get(self, name: str) -> SkillInfo: ...

    async def body(self, name: str) -> str:
        """Return the instructions of its SKILL.md, without the front matter."""

    async def files(self, name: str, version: str = "") -> tuple[SkillFile, ...]: ...

    async def read_file(self, name: str, path: str, version: str = "") -> bytes: ...

    async def versions(self, name: str) -> tuple[SkillVersion, ...]:
        """List the kept versions, newest first."""

    async def export(self, name: str, version: str = "") -> bytes:
        """Return a zip archive; the same version always gives the same bytes."""

    async def scan(self, directory: str | Path) -> tuple[FoundSkill, ...]:
        """Find the skills in a directory tree of this machine; `problem` says why one could not be installed."""

    async def preview(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False
    ) -> SkillPreview:
        """Show what `install` would install and change."""

    async def install(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False, digest: str = ""
    ) -> SkillInfo:
        """Install from a directory, a zip (a file or its bytes), a git URL, or with `local_git` a local repository.

        `path` selects one of several skills; `digest` allows only the version that a preview has shown. The same
        content twice is one version. Raises: Conflict while the skill is pinned to another version.
        """

    async def create(self, name: str, description: str, body: str = "") -> SkillInfo:
        """Create a skill of one file."""

    async def write_file(
        self, name: str, path: str, data: bytes | str, *, executable: bool = False, expect: str = ""
    ) -> SkillInfo:
        """Make a new version that differs in this file. Raises: Conflict if `expect` is not the active version."""

    async def remove_file(self, name: str, path: str, *, expect: str = "") -> SkillInfo: ...

    async def save(self, name: str, box: Box, path: str = "") -> SkillInfo:
        """Make a new version of what was edited in a box, by default in the skill's state directory under `edit`."""

    async def upgrade(self, name: str) -> SkillInfo:
        """Install the newest version from the source of the active one."""

    async def rollback(self, name: str, version: str = "") -> SkillInfo:
        """Activate the version before, or the one that is named."""

    async def pin(self, name: str, version: str = "") -> SkillInfo:
        """Keep the active version, or the one that is named, until it is unpinned."""

    async def unpin(self, name: str) -> SkillInfo: ...

    async def remove(self, name: str) -> None:
        """Remove a skill with all its versions; running boxes no longer show it."""

    async def bindings(self) -> tuple[SkillBinding, ...]: ...

    async def bind(self, group: str, names: Sequence[str]) -> SkillBinding:
        """Set the skills of a group, which boxes made with `skills=group` show. Without names the group ends."""

    async def prepare(self, name: str, box: Box) -> SkillPlace:
        """Install a skill's dependencies in a box and make its state directory; return what its programs need."""
