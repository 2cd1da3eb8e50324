"""Streams of a container box's files: packed from a container to a file of ours, and unpacked in another container.

The program that does it (`guest_bundle.files_stream`) runs inside, beside the guest, as an exec of the engine.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import IO, Any

from hutch.errors import EngineError
from hutch.providers.docker.engine.api import COPY_TIMEOUT, Engine
from hutch.providers.docker.lanes import RELAY_USER
from hutch.providers.guest_bundle.files_stream import LENGTH, MAX_HEADER
from hutch.providers.guest_bundle.pack import GuestBundle

_FRAME = 8
_STDOUT = 1
_PIECE = 1 << 18
_KEPT = 500
_SLACK_BYTES = 64 << 20
"""Bytes of a stream that are not content: the headers of its entries."""

Spool = IO[bytes]
"""A file of ours that holds a stream of files."""


@contextlib.contextmanager
def spool() -> Iterator[Spool]:
    """A file without a name, for one stream."""
    with tempfile.TemporaryFile(prefix="hutch-files-") as file:
        yield file


class BoxFiles:
    """The files of the box in one container. `user` is the box's user, as the engine names it."""

    def __init__(self, engine: Engine, bundle: GuestBundle, container: str, user: str) -> None:
        self._engine = engine
        self._bundle = bundle
        self._container = container
        self._user = user

    async def processes(self) -> list[int]:
        """Return some processes of the box's commands that run now."""
        async with self._program({"op": "look"}, self._user) as program:
            return list((await program.header())["busy"])

    async def pack(self, trees: list[str], *, with_root: bool, most: int, into: Spool) -> bool:
        """Write these trees, and what was changed in the root, to a file of at most `most` bytes.

        Commands of the box stand still meanwhile. Returns whether there were any.
        """
        copy = _Copy(into, most + _SLACK_BYTES)
        request: dict[str, Any] = {"op": "pack", "trees": trees, "paths": [], "apart": trees}
        busy = await self._pack(request, self._user, copy)
        paths = await self._engine.changes(self._container) if with_root else {}
        if copy.denied or paths:
            denied, copy.denied = copy.denied, []
            busy |= await self._pack({**request, "trees": denied, "paths": list(paths.items())}, RELAY_USER, copy)
        if copy.denied:  # a file that root, without any capability, may not read: it is the user's own
            denied, copy.denied = copy.denied, []
            again = [(path, over) for path, over in paths.items() if path.strip("/") in denied]
            await self._pack({**request, "trees": [], "paths": again}, self._user, copy)
        if copy.denied:
            raise EngineError(
                f"the files of the box could not be copied: neither its user nor its root may read /{copy.denied[0]}",
                op="checkpoint", remedy="give it a mode by which its owner may read it",
            )  # fmt: skip
        copy.end()
        return busy

    async def _pack(self, request: dict[str, Any], user: str, copy: "_Copy") -> bool:
        async with self._program(request, user) as program:
            busy = (await program.header())["count"] > 0
            await program.copy_to(copy)
        return bool(busy)

    async def unpack(self, source: Spool) -> None:
        """Put the files of a stream into the container, in which nobody has run anything yet."""
        if await self._unpack(source, self._user):
            await self._unpack(source, RELAY_USER)

    async def _unpack(self, source: Spool, user: str) -> bool:
        async with self._program({"op": "unpack"}, user) as program:
            sending = asyncio.ensure_future(program.send_all(source))
            try:
                return bool((await program.header())["others"])  # it may fail before it has read everything
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await sending

    @contextlib.asynccontextmanager
    async def _program(self, request: dict[str, Any], user: str) -> AsyncIterator["_Program"]:
        argv = self._bundle.argv("hutch.providers.guest_bundle.files_stream")
        async with asyncio.timeout(COPY_TIMEOUT):
            exec_id = await self._engine.exec_create(self._container, argv, user=user, attached=True)
            async with self._engine.http.upgraded(f"/exec/{exec_id}/start", {"Detach": False, "Tty": False}) as both:
                program = _Program(*both)
                await program.send(request)
                yield program


class _Copy:
    """A stream that is being written from those of several programs."""

    def __init__(self, file: Spool, most: int) -> None:
        self.file = file
        self._most = most
        self.denied: list[str] = []

    def begin(self, header: dict[str, Any]) -> int:
        """Write a header, unless it names something that could not be read. Returns the length of what follows."""
        if header["type"] == "denied":
            self.denied.append(str(header["path"]))
            return 0
        data = json.dumps(header).encode()
        self.file.write(LENGTH.pack(len(data)) + data)
        sizes = [int(size) for _, size in header.get("segments", ())]
        if any(size < 0 for size in sizes) or self.file.tell() + sum(sizes) > self._most:
            raise EngineError(
                f"the box's files are more than the {self._most >> 20} MB that a checkpoint may have", op="checkpoint",
                remedy="remove some of them",
            )  # fmt: skip
        return sum(sizes)

    def end(self) -> None:
        self.file.write(LENGTH.pack(0))


class _Program:
    """The exec's streams: the engine sends frames, `stream (1) | 0 0 0 | length (4, big endian) | bytes`."""

    def __init__(self, source: Any, writer: asyncio.StreamWriter) -> None:
        self._source = source
        self._writer = writer
        self._raw = bytearray()
        self._stdout = bytearray()
        self._stderr = b""

    async def send(self, request: dict[str, Any]) -> None:
        data = json.dumps(request).encode()
        for start in range(0, len(data), _PIECE):
            self._writer.write((LENGTH.pack(len(data)) if not start else b"") + data[start : start + _PIECE])
            await self._writer.drain()

    async def send_all(self, source: Spool) -> None:
        source.seek(0)
        while piece := await asyncio.to_thread(source.read, _PIECE):
            self._writer.write(piece)
            await self._writer.drain()

    async def header(self) -> dict[str, Any]:
        """Return the next header.

        Raises:
            EngineError: The program failed, or did not start.
        """
        head = await self._exactly(LENGTH.size)
        (length,) = LENGTH.unpack(head)
        if length > MAX_HEADER:
            # The engine writes why an exec could not be started where its output would have been.
            said = (head + self._stdout[:_KEPT]).decode("utf-8", "replace").strip()
            raise EngineError(f"the files of the box could not be copied: {said}", op="layers")
        found: dict[str, Any] = json.loads(await self._exactly(length))
        if "failed" in found:
            raise EngineError(
                f"the files of the box could not be copied: {found['failed']}", op="layers",
                details={"errno": int(found.get("errno") or 0)},
                remedy="the box is as it was: remove files or checkpoints, or ask for a larger disk_mb",
            )  # fmt: skip
        return found

    async def copy_to(self, copy: _Copy) -> None:
        """Copy entries until the one that ends the program's stream; a failure is an entry too."""
        while True:
            head = await self._exactly(LENGTH.size)
            if not any(head):
                return
            self._stdout[:0] = head
            left = copy.begin(await self.header())
            while left:
                if not self._stdout:
                    await self._fill()
                piece = bytes(self._stdout[:left])
                del self._stdout[:left]
                await asyncio.to_thread(copy.file.write, piece)
                left -= len(piece)

    async def _exactly(self, size: int) -> bytes:
        while len(self._stdout) < size:
            await self._fill()
        data = bytes(self._stdout[:size])
        del self._stdout[:size]
        return data

    async def _fill(self) -> None:
        """Receive more of what the program writes."""
        received = await self._source.receive()
        if not received:
            said = self._stderr.decode("utf-8", "replace").strip() or "its stream broke off"
            raise EngineError(f"the files of the box could not be copied: {said}", op="layers")
        self._raw += received
        while len(self._raw) >= _FRAME:
            length = int.from_bytes(self._raw[4:_FRAME], "big")
            if length > 64 << 20:
                raise EngineError("the engine's stream makes no sense", op="layers")
            if len(self._raw) < _FRAME + length:
                return
            content = bytes(self._raw[_FRAME : _FRAME + length])
            if self._raw[0] == _STDOUT:
                self._stdout += content
            else:
                self._stderr = (self._stderr + content)[-_KEPT:]
            del self._raw[: _FRAME + length]
