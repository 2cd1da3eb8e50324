"""Skills of the key's owner, on a server. Sources on this machine are packed here: the server reads no path of ours."""

import asyncio
import io
import zipfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from hutch import api
from hutch.client.calling import Repeat
from hutch.errors import NotFound
from hutch.model.skills import (
    FoundSkill,
    SkillBinding,
    SkillFile,
    SkillInfo,
    SkillPlace,
    SkillPreview,
    SkillVersion,
)
from hutch.skills import collecting, sources
from hutch.skills.content import Budget, walk
from hutch.skills.manifest import check_name

Ask = Callable[..., Awaitable[Any]]
LONG_SECONDS = 900.0


class RemoteSkills:
    """The `Skills` protocol over HTTP."""

    def __init__(self, ask: Ask, get: Ask) -> None:
        self._ask = ask
        self._get = get

    async def _skill(self, method: str, path: str, /, **options: Any) -> SkillInfo:
        options.setdefault("repeat", Repeat.UNSENT)
        changed: SkillInfo = await self._ask(SkillInfo, method, path, **options)
        return changed

    async def _listed(self, path: str, name: str, kind: Any, **query: Any) -> Any:
        return msgspec.convert((await self._ask(dict[str, Any], "GET", path, **query))[name], kind)

    # --- reading --------------------------------------------------------------------------------------------

    async def all(self) -> tuple[SkillInfo, ...]:
        found: tuple[SkillInfo, ...] = await self._listed("/v1/skills", "skills", tuple[SkillInfo, ...])
        return found

    async def get(self, name: str) -> SkillInfo:
        found: SkillInfo = await self._ask(SkillInfo, "GET", _at(name))
        return found

    async def body(self, name: str) -> str:
        told: dict[str, str] = await self._ask(dict[str, str], "GET", f"{_at(name)}/body")
        return told["body"]

    async def files(self, name: str, version: str = "") -> tuple[SkillFile, ...]:
        found: tuple[SkillFile, ...] = await self._listed(
            f"{_at(name)}/files", "files", tuple[SkillFile, ...], version=version
        )
        return found

    async def read_file(self, name: str, path: str, version: str = "") -> bytes:
        data: bytes = await self._get("GET", f"{_at(name)}/files/content", path=path, version=version)
        return data

    async def versions(self, name: str) -> tuple[SkillVersion, ...]:
        found: tuple[SkillVersion, ...] = await self._listed(
            f"{_at(name)}/versions", "versions", tuple[SkillVersion, ...]
        )
        return found

    async def export(self, name: str, version: str = "") -> bytes:
        data: bytes = await self._get("GET", f"{_at(name)}/export", version=version)
        return data

    async def scan(self, directory: str | Path) -> tuple[FoundSkill, ...]:
        return await asyncio.to_thread(collecting.scan, Path(directory).absolute())

    # --- changing -------------------------------------------------------------------------------------------

    async def preview(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False
    ) -> SkillPreview:
        told: SkillPreview = await self._sent(SkillPreview, "/preview", source, path, ref, local_git)
        return told

    async def install(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False, digest: str = ""
    ) -> SkillInfo:
        skill: SkillInfo = await self._sent(SkillInfo, "", source, path, ref, local_git, digest=digest)
        return skill

    async def _sent(
        self, kind: type[Any], tail: str, source: str | Path | bytes, path: str, ref: str, local_git: bool,
        digest: str = "",
    ) -> Any:  # fmt: skip
        content = source if isinstance(source, bytes) else None
        if content is None:
            found = sources.of(str(source), path=path, ref=ref, local_git=local_git)
            if isinstance(found, sources.Git) and not found.local:
                body = {"git": found.url, "ref": ref, "path": path, "digest": digest}
                return await self._ask(
                    kind, "POST", f"/v1/skills{tail}", body=body, seconds=LONG_SECONDS, repeat=Repeat.UNSENT
                )
            content, path = await asyncio.to_thread(_packed, found), ""
        return await self._ask(
            kind, "POST", f"/v1/skills/archive{tail}", content=content, path=path, digest=digest, repeat=Repeat.UNSENT
        )

    async def create(self, name: str, description: str, body: str = "") -> SkillInfo:
        told = {"name": check_name(name), "description": description, "body": body}
        return await self._skill("POST", "/v1/skills", body=told)

    async def write_file(
        self, name: str, path: str, data: bytes | str, *, executable: bool = False, expect: str = ""
    ) -> SkillInfo:
        content = data.encode() if isinstance(data, str) else data
        return await self._skill(
            "PUT", f"{_at(name)}/files/content", content=content, path=path, executable=executable, expect=expect
        )

    async def remove_file(self, name: str, path: str, *, expect: str = "") -> SkillInfo:
        return await self._skill("DELETE", f"{_at(name)}/files/content", path=path, expect=expect)

    async def save(self, name: str, box: api.Box, path: str = "") -> SkillInfo:
        return await self._skill("POST", f"{_at(name)}/save", body={"box": box.id, "path": path})

    async def upgrade(self, name: str) -> SkillInfo:
        return await self._skill("POST", f"{_at(name)}/upgrade", seconds=LONG_SECONDS)

    async def rollback(self, name: str, version: str = "") -> SkillInfo:
        return await self._skill("POST", f"{_at(name)}/rollback", body={"version": version})

    async def pin(self, name: str, version: str = "") -> SkillInfo:
        return await self._skill("POST", f"{_at(name)}/pin", body={"version": version}, repeat=Repeat.ALWAYS)

    async def unpin(self, name: str) -> SkillInfo:
        return await self._skill("DELETE", f"{_at(name)}/pin", repeat=Repeat.ALWAYS)

    async def remove(self, name: str) -> None:
        await self._ask(type(None), "DELETE", _at(name), repeat=Repeat.UNSENT)

    async def bindings(self) -> tuple[SkillBinding, ...]:
        found: tuple[SkillBinding, ...] = await self._listed("/v1/skill-bindings", "bindings", tuple[SkillBinding, ...])
        return found

    async def bind(self, group: str, names: Sequence[str]) -> SkillBinding:
        bound: SkillBinding = await self._ask(
            SkillBinding, "PUT", f"/v1/skill-bindings/{quote(group, safe='')}", body={"skills": list(names)}
        )
        return bound

    async def prepare(self, name: str, box: api.Box) -> SkillPlace:
        place: SkillPlace = await self._ask(
            SkillPlace, "POST", f"{_at(name)}/prepare", body={"box": box.id}, seconds=LONG_SECONDS
        )
        return place


def _at(name: str) -> str:
    return f"/v1/skills/{check_name(name)}"


def _packed(source: sources.Source) -> bytes:
    """A source of this machine as a zip of one skill, within the limits a server has too."""
    if isinstance(source, sources.Zip) and not source.path:
        try:
            return Path(source.name).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {source.name}") from error
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hutch-skill-") as place:
        top, scratch = Path(place, "package"), Path(place, "scratch")
        top.mkdir()
        scratch.mkdir()
        source.fetch(top, scratch)
        out, budget = io.BytesIO(), Budget()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in walk(top):
                budget.file(file.name, file.size)
                about = zipfile.ZipInfo(f"skill/{file.name}", (1980, 1, 1, 0, 0, 0))
                about.external_attr = (0o100755 if file.executable else 0o100644) << 16
                about.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(about, Path(file.path).read_bytes())
        return out.getvalue()
