"""`RemoteSkills`: the `Skills` protocol over HTTP. Skills on this machine are sent as a zip."""

import asyncio
import io
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from hutch import api
from hutch.client.boxes import checked_name
from hutch.client.transport.requests import Repeat
from hutch.model.skills import (
    FoundSkill,
    SkillBinding,
    SkillFile,
    SkillInfo,
    SkillPlace,
    SkillPreview,
    SkillVersion,
)
from hutch.skills import content, sources

Ask = Callable[..., Awaitable[Any]]
Get = Callable[..., Awaitable[bytes]]


class RemoteSkills:
    """Skills of the key's owner."""

    def __init__(self, ask: Ask, get: Get) -> None:
        self._ask = ask
        self._get = get

    async def _of(self, kind: type[Any], method: str, name: str, path: str = "", /, **options: Any) -> Any:
        return await self._ask(kind, method, f"/v1/skills/{checked_name(name, 'skill')}{path}", **options)

    async def _change(self, method: str, name: str, path: str = "", /, **options: Any) -> SkillInfo:
        changed: SkillInfo = await self._of(SkillInfo, method, name, path, repeat=Repeat.UNSENT, **options)
        return changed

    # --- reading --------------------------------------------------------------------------------------------

    async def all(self) -> tuple[SkillInfo, ...]:
        found: tuple[SkillInfo, ...] = await self._ask(tuple[SkillInfo, ...], "GET", "/v1/skills", part="skills")
        return found

    async def get(self, name: str) -> SkillInfo:
        found: SkillInfo = await self._of(SkillInfo, "GET", name)
        return found

    async def body(self, name: str) -> str:
        found: str = await self._of(str, "GET", name, "/body", part="body")
        return found

    async def files(self, name: str, version: str = "") -> tuple[SkillFile, ...]:
        kind, given = tuple[SkillFile, ...], version or None
        found: tuple[SkillFile, ...] = await self._of(kind, "GET", name, "/files", part="files", version=given)
        return found

    async def read_file(self, name: str, path: str, version: str = "") -> bytes:
        where = f"/v1/skills/{checked_name(name, 'skill')}/files/content"
        return await self._get(where, path=path, version=version or None)

    async def versions(self, name: str) -> tuple[SkillVersion, ...]:
        kind = tuple[SkillVersion, ...]
        found: tuple[SkillVersion, ...] = await self._of(kind, "GET", name, "/versions", part="versions")
        return found

    async def export(self, name: str, version: str = "") -> bytes:
        return await self._get(f"/v1/skills/{checked_name(name, 'skill')}/export", version=version or None)

    async def scan(self, directory: str | Path) -> tuple[FoundSkill, ...]:
        return await asyncio.to_thread(content.scan_skills, Path(directory).absolute())

    # --- changing -------------------------------------------------------------------------------------------

    async def preview(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False
    ) -> SkillPreview:
        found: SkillPreview = await self._upload(SkillPreview, "/preview", source, path, ref, local_git)
        return found

    async def install(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False, digest: str = ""
    ) -> SkillInfo:
        made: SkillInfo = await self._upload(SkillInfo, "", source, path, ref, local_git, digest=digest)
        return made

    async def _upload(
        self, kind: type[Any], what: str, source: str | Path | bytes, path: str, ref: str, local_git: bool,
        digest: str = "",
    ) -> Any:  # fmt: skip
        """Send a skill. The server fetches repositories; other sources are packed here."""
        if isinstance(source, bytes):
            query = {"path": path or None, "digest": digest or None}
            return await self._ask(kind, "POST", f"/v1/skills/archive{what}", content=source, **query)
        found = sources.parse_source(str(source), path=path, ref=ref, local_git=local_git)
        if isinstance(found, sources.Git) and not found.local:
            body = {"git": found.url, "ref": ref, "path": path, "digest": digest}
            return await self._ask(kind, "POST", f"/v1/skills{what}", body=body)
        content = await asyncio.to_thread(_zip_of, found)
        return await self._ask(kind, "POST", f"/v1/skills/archive{what}", content=content, digest=digest or None)

    async def create(self, name: str, description: str, body: str = "") -> SkillInfo:
        asked = {"name": name, "description": description, "body": body}
        made: SkillInfo = await self._ask(SkillInfo, "POST", "/v1/skills", body=asked, repeat=Repeat.UNSENT)
        return made

    async def write_file(
        self, name: str, path: str, data: bytes | str, *, executable: bool = False, expect: str = ""
    ) -> SkillInfo:
        content = data.encode() if isinstance(data, str) else data
        query = {"path": path, "executable": executable or None, "expect": expect or None}
        return await self._change("PUT", name, "/files/content", content=content, **query)

    async def remove_file(self, name: str, path: str, *, expect: str = "") -> SkillInfo:
        return await self._change("DELETE", name, "/files/content", path=path, expect=expect or None)

    async def save(self, name: str, box: api.Box, path: str = "") -> SkillInfo:
        return await self._change("POST", name, "/save", body={"box": box.id, "path": path})

    async def upgrade(self, name: str) -> SkillInfo:
        return await self._change("POST", name, "/upgrade")

    async def rollback(self, name: str, version: str = "") -> SkillInfo:
        return await self._change("POST", name, "/rollback", body={"version": version})

    async def pin(self, name: str, version: str = "") -> SkillInfo:
        return await self._change("POST", name, "/pin", body={"version": version})

    async def unpin(self, name: str) -> SkillInfo:
        return await self._change("DELETE", name, "/pin")

    async def remove(self, name: str) -> None:
        await self._of(type(None), "DELETE", name, repeat=Repeat.UNSENT)

    # --- groups and boxes -----------------------------------------------------------------------------------

    async def bindings(self) -> tuple[SkillBinding, ...]:
        kind = tuple[SkillBinding, ...]
        found: tuple[SkillBinding, ...] = await self._ask(kind, "GET", "/v1/skill-bindings", part="bindings")
        return found

    async def bind(self, group: str, names: Sequence[str]) -> SkillBinding:
        path = f"/v1/skill-bindings/{checked_name(group, 'group')}"
        bound: SkillBinding = await self._ask(SkillBinding, "PUT", path, body={"skills": list(names)})
        return bound

    async def prepare(self, name: str, box: api.Box) -> SkillPlace:
        place: SkillPlace = await self._of(SkillPlace, "POST", name, "/prepare", body={"box": box.id})
        return place


def _zip_of(source: sources.Source) -> bytes:
    """Return one skill of this machine as a zip."""
    with tempfile.TemporaryDirectory(prefix="hutch-skill-") as scratch:
        into, aside = Path(scratch, "skill"), Path(scratch, "aside")
        into.mkdir()
        aside.mkdir()
        source.fetch(into, aside)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in content.hash_files(into):
                entry = zipfile.ZipInfo(file.path)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (0o755 if file.executable else 0o644) << 16
                archive.writestr(entry, (into / file.path).read_bytes())
        return packed.getvalue()
