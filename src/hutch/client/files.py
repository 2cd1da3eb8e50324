"""`RemoteFiles`: the `Files` protocol over HTTP. Content is streamed both ways, and names may hold any byte."""

import builtins
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from hutch.client import transfer
from hutch.client.handle import Handle
from hutch.client.transport.http import ConnectionBroken
from hutch.client.transport.requests import BYTES, Repeat
from hutch.client.watch import RemoteWatch
from hutch.errors import FileTooLarge
from hutch.model.arguments import as_bytes
from hutch.model.files import Edited, FileInfo, GrepResult, Matches
from hutch.model.spec import EffectiveSpec
from hutch.providers.guest_client.trees import max_copy_bytes

MAX_READ = 64 << 20
"""Most bytes that `read` returns without a limit."""


class RemoteFiles:
    """Files of a remote box, as its user sees them."""

    def __init__(self, handle: Handle, spec: Callable[[], EffectiveSpec]) -> None:
        self._handle = handle
        self._spec = spec

    async def _post(self, kind: type[Any], op: str, body: dict[str, Any], repeat: Repeat = Repeat.ALWAYS) -> Any:
        return await self._handle.ask(kind, "POST", f"/files/{op}", body=body, repeat=repeat)

    # --- content --------------------------------------------------------------------------------------------

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        parts: builtins.list[bytes] = []
        size = 0
        async for piece in self.open(path, offset=offset, limit=limit):
            parts.append(piece)
            size += len(piece)
            if limit is None and size > MAX_READ:
                raise FileTooLarge(
                    f"{path} has more than {MAX_READ >> 20} MB", op="files.read", remedy="read a range, or use open"
                )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_text(self, path: str) -> str:
        return (await self.read(path)).decode(errors="replace")

    async def read_lines(self, path: str, *, start: int = 1, count: int = 2000) -> tuple[builtins.list[str], bool]:
        answer = await self._handle.ask(dict[str, Any], "GET", "/files/lines", path=path, start=start, count=count)
        return answer["lines"], answer["end"]

    async def open(self, path: str, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        had = 0
        while True:
            left = None if limit is None else limit - had
            where: dict[str, Any] = {"path": path, "offset": offset + had, "limit": left}
            try:
                async with self._handle.stream("GET", "/files/content", accept=BYTES, **where) as response:
                    async for piece in response.pieces():
                        had += len(piece)
                        yield piece
                return
            except ConnectionBroken as broken:
                await self._handle.recover(broken)

    async def write(
        self, path: str, data: bytes | str | AsyncIterator[bytes], *, append: bool = False, mode: int | None = None,
        sync: bool = False, parents: bool = True,
    ) -> FileInfo:  # fmt: skip
        self._handle.refuse_if_observing("write")
        content = as_bytes(data) if isinstance(data, str) else data
        whole = isinstance(content, bytes | bytearray | memoryview)
        return await self._handle.ask(
            FileInfo, "PUT", "/files/content", content=content, path=path, append=append or None,
            mode=None if mode is None else f"{mode:03o}", sync=sync or None, parents=None if parents else False,
            repeat=Repeat.ALWAYS if whole and not append else Repeat.UNSENT if whole else Repeat.NEVER,
        )  # fmt: skip

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        self._handle.refuse_if_observing("edit")
        body = {
            "path": path, "old_base64": as_bytes(old), "new_base64": as_bytes(new), "replace_all": replace_all,
            "expect": expect,
        }  # fmt: skip
        edited: Edited = await self._post(Edited, "edit", body, Repeat.UNSENT)
        return edited

    async def digest(self, path: str) -> str:
        return await self._handle.ask(str, "POST", "/files/digest", body={"path": path}, part="digest")

    # --- names ----------------------------------------------------------------------------------------------

    async def stat(self, path: str) -> FileInfo:
        return await self._handle.ask(FileInfo, "GET", "/files/stat", path=path)

    async def exists(self, path: str) -> bool:
        return await self._handle.ask(bool, "GET", "/files/exists", part="exists", path=path)

    async def list(self, path: str = ".") -> builtins.list[FileInfo]:
        return await self._handle.ask(builtins.list[FileInfo], "GET", "/files", part="files", path=path)

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        self._handle.refuse_if_observing("mkdir")
        body = {"path": path, "parents": parents, "exist_ok": exist_ok}
        await self._post(type(None), "mkdir", body, Repeat.ALWAYS if exist_ok else Repeat.UNSENT)

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        self._handle.refuse_if_observing("move")
        body = {"source": source, "target": target, "overwrite": overwrite}
        await self._post(type(None), "move", body, Repeat.UNSENT)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        self._handle.refuse_if_observing("remove")
        await self._handle.ask(
            type(None), "DELETE", "/files/content", path=path, recursive=recursive, missing_ok=missing_ok,
            repeat=Repeat.ALWAYS if missing_ok else Repeat.UNSENT,
        )  # fmt: skip

    # --- searching ------------------------------------------------------------------------------------------

    async def glob(self, pattern: str, *, root: str = ".", limit: int = 10_000) -> Matches:
        found: Matches = await self._post(Matches, "glob", {"pattern": pattern, "root": root, "limit": limit})
        return found

    async def grep(
        self, pattern: str, *, root: str = ".", glob: str | None = None, ignore_case: bool = False,
        limit: int = 1000, timeout_sec: float = 10.0,
    ) -> GrepResult:  # fmt: skip
        body = {
            "pattern": pattern, "root": root, "glob": glob, "ignore_case": ignore_case, "limit": limit,
            "timeout_sec": timeout_sec,
        }  # fmt: skip
        found: GrepResult = await self._post(GrepResult, "grep", body)
        return found

    def watch(self, path: str = ".", *, recursive: bool = True) -> RemoteWatch:
        return RemoteWatch(self._handle, path, recursive=recursive)

    # --- trees ----------------------------------------------------------------------------------------------

    async def copy_in(self, source: str | Path, target: str) -> int:
        self._handle.refuse_if_observing("copy_in")
        return await transfer.copy_in(self._handle, source, target)

    async def copy_out(self, source: str, target: str | Path, *, most: int | None = None) -> int:
        bound = max_copy_bytes(self._spec(), source) if most is None else most
        return await transfer.copy_out(self._handle, source, target, bound)
