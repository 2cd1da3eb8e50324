"""`/files`: download and upload, by the sandbox's token or by a signed URL."""

import posixpath
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from hutch.errors import FileFailed, FileTooLarge, Invalid
from hutch.keeper.access.files import GuardedFiles
from hutch.model.files import FileInfo, FileKind
from hutch.model.record import encode_json
from hutch.server.e2b.agent.files import ReplayedPieces, on_files
from hutch.server.e2b.agent.filesystem import ATTRIBUTES, resolved
from hutch.server.e2b.errors import Answer
from hutch.server.e2b.requests import Request
from hutch.server.handlers.box.files import DOWNLOAD_HEADERS, byte_range
from hutch.server.multipart import parts_of
from hutch.server.request import BYTES, Send

_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 256 << 10
_METADATA = "x-metadata-"
MAX_METADATA_BYTES = 4096
WRITTEN_BYTES = 500
"""Bytes of memory that the description of one written file is counted as, besides its path."""


async def serve(request: Request, send: Send) -> Answer | None:
    """Answer a download or an upload."""
    if request.method == "GET":
        return await _download(request, send)
    if request.method == "POST":
        return await _upload(request)
    raise Invalid(f"{request.method} is not for files: GET downloads and POST uploads")


# --- download -------------------------------------------------------------------------------------------------


async def _download(request: Request, send: Send) -> Answer | None:
    path = request.resolve(request.query.get("path", ""))
    return await on_files(request, lambda files: send_file(request, send, files, path))


async def send_file(request: Request, send: Send, files: GuardedFiles, path: str) -> Answer | None:
    """Send a file, or the part of it that a Range names; compressed if the client accepts only that."""
    info = await resolved(files, path)
    if info.kind is FileKind.DIRECTORY:
        raise Invalid(f"path '{path}' is a directory")
    headers = {**DOWNLOAD_HEADERS, "content-type": BYTES, "accept-ranges": "bytes"}
    chosen = byte_range(request.call.header("range"), info.size) if info.size else None
    if chosen is not None and chosen[0] >= info.size:
        return Answer(416, b"", (("content-range", f"bytes */{info.size}"),))
    first, last = chosen or (0, info.size - 1)
    status, length = 206 if chosen else 200, last - first + 1
    if chosen:
        headers["content-range"] = f"bytes {first}-{last}/{info.size}"
    content = _content(files, path, first, length, info)
    if not chosen and _wants_gzip(request):
        headers["content-encoding"] = "gzip"
        content = _compressed(content)
    elif _is_sized(info):
        headers["content-length"] = str(length)
    await _send(send, status, headers, content)
    return None


def _is_sized(info: FileInfo) -> bool:
    """Whether the size is that of the content: files of /proc and /sys have none."""
    return info.kind is FileKind.FILE and (info.size > 0 or not info.path.startswith(("/proc/", "/sys/")))


async def _content(
    files: GuardedFiles, path: str, offset: int, length: int, info: FileInfo
) -> AsyncGenerator[bytes, None]:
    sent = 0
    limit = length if _is_sized(info) else None
    if limit == 0:
        return
    async with aclosing(cast(AsyncGenerator[bytes, None], files.open(path, offset=offset, limit=limit))) as pieces:
        async for piece in pieces:
            sent += len(piece)
            yield piece
    if limit is not None and sent < limit:
        # The length was already sent: the connection is cut, so that the client does not take this for the whole file.
        raise FileFailed(f"{path} became shorter while it was read", op="read", retryable=True)


def _wants_gzip(request: Request) -> bool:
    """Whether the client accepts nothing but gzip. Others get plain bytes, which cost less on a local connection."""
    return request.call.header("accept-encoding").strip().lower() == "gzip"


async def _compressed(content: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    async with aclosing(content):
        async for piece in content:
            if data := compressor.compress(piece):
                yield data
    yield compressor.flush()


async def _send(send: Send, status: int, headers: dict[str, str], content: AsyncGenerator[bytes, None]) -> None:
    """Send a stream; its first piece is awaited before the status, so an early error still gets its own status."""
    async with aclosing(content):
        first = await anext(content, b"")
        listed = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": listed})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in content:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# --- upload ---------------------------------------------------------------------------------------------------


async def _upload(request: Request) -> Answer:
    """Write one or several files; directories above them are created, and files that exist are overwritten."""
    kind = request.call.header("content-type")
    limit = request.call.service.config.server.max_upload_mb << 20
    pieces = decoded(request.call.header("content-encoding"), request.call.pieces(limit), limit)
    path, metadata = request.query.get("path", ""), _metadata(request)
    written: list[dict[str, object]] = []
    if kind.startswith("multipart/form-data"):
        async with aclosing(parts_of(kind, pieces)) as parts:
            async for part in parts:
                if part.name == "file":
                    written.append(await _write(request, path or part.filename, part.content, metadata))
    elif kind.startswith(BYTES):
        if not path:
            raise Invalid("an upload of plain bytes needs the query parameter path")
        written.append(await _write(request, path, pieces, metadata))
    else:
        raise Invalid(f"an upload is multipart/form-data or {BYTES}, not {kind[:100]!r}")
    return Answer(200, encode_json(written), (("content-type", "application/json"),))


async def _write(
    request: Request, name: str, content: AsyncIterator[bytes], metadata: dict[str, str]
) -> dict[str, object]:
    if not name:
        raise Invalid("the file has no path: give the query parameter path, or a filename of the part")
    path = request.resolve(name)
    request.account.take(WRITTEN_BYTES + 2 * len(path))  # The answer lists every file of the body.
    pieces = ReplayedPieces(content)
    await on_files(
        request,
        lambda files: files.overwrite(path, pieces.attempt(), prefix=ATTRIBUTES, attributes=metadata),
        path,
    )
    written: dict[str, object] = {"path": path, "name": posixpath.basename(path), "type": "file"}
    return written | ({"metadata": metadata} if metadata else {})


def _metadata(request: Request) -> dict[str, str]:
    """Return the metadata of an upload: the headers `X-Metadata-NAME`."""
    found = {
        name.removeprefix(_METADATA): value
        for name, value in request.call.headers.items()
        if name.startswith(_METADATA)
    }
    for name, value in found.items():
        if not name or not value.isascii() or not value.isprintable():
            raise Invalid(f"the metadata {name[:40]!r} has no name, or a value that is not printable ASCII")
    if sum(len(name) + len(value) for name, value in found.items()) > MAX_METADATA_BYTES:
        raise Invalid(f"the metadata of a file has at most {MAX_METADATA_BYTES} bytes")
    return found


async def decoded(encoding: str, pieces: AsyncIterator[bytes], limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a body that may be compressed; a bomb is refused at the size of the largest upload."""
    if encoding.lower() in ("", "identity"):
        async for piece in pieces:
            yield piece
        return
    if encoding.lower() != "gzip":
        raise Invalid(f"Content-Encoding {encoding[:40]!r} is not supported", remedy="send gzip, or plain bytes")
    total = 0
    decompressor = zlib.decompressobj(_GZIP)
    try:
        async for piece in pieces:
            while piece:
                if decompressor.eof:  # A gzip file may consist of several, one after the other.
                    decompressor = zlib.decompressobj(_GZIP)
                data = decompressor.decompress(piece, _PIECE)
                piece = decompressor.unconsumed_tail or decompressor.unused_data
                total += len(data)
                if total > limit:
                    raise FileTooLarge(f"the decompressed body is larger than {limit >> 20} MB")
                if data:
                    yield data
        if rest := decompressor.flush():
            yield rest
    except zlib.error as error:
        raise Invalid(f"the body is no gzip: {error}") from error
    if not decompressor.eof:
        raise Invalid("the compressed body ends too early")
