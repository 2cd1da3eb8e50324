"""`RemoteKernels`: the `Kernels` protocol over HTTP."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from hutch.client.handle import Handle
from hutch.client.transport.requests import Repeat, decode_answer
from hutch.errors import HutchError, Unavailable
from hutch.model.code import CodeError, CodePiece, CodeResult, Display, KernelInfo
from hutch.model.record import encode_json

NDJSON = "application/x-ndjson"


class _Line(msgspec.Struct):
    """One line of a streamed run."""

    stream: str = ""
    text: str = ""
    display: Display | None = None
    error: CodeError | None = None
    result: CodeResult | None = None
    failed: dict[str, Any] | None = None


class RemoteKernels:
    """The kernels of a box at a server."""

    def __init__(self, handle: Handle, checked_name: Callable[[str, str], str]) -> None:
        self._handle = handle
        self._checked_name = checked_name

    def _path(self, kernel: str, action: str = "") -> str:
        return f"/kernels/{self._checked_name(kernel, 'kernel')}{action}"

    async def start(
        self, language: str = "python", *, cwd: str | None = None, env: dict[str, str] | None = None
    ) -> KernelInfo:
        self._handle.refuse_if_observing("kernels.start")
        body = {"language": language, "cwd": cwd, "env": env or {}}
        return await self._handle.ask(KernelInfo, "POST", "/kernels", body=body, repeat=Repeat.UNSENT)

    async def all(self) -> tuple[KernelInfo, ...]:
        return await self._handle.ask(tuple[KernelInfo, ...], "GET", "/kernels", part="kernels")

    async def run(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "", keep_output: int = 1 << 20,
    ) -> CodeResult:  # fmt: skip
        self._handle.refuse_if_observing("code")
        data, _ = await self._handle.run_once("/code", _body(language, code, timeout, env, kernel, keep_output))
        return decode_answer(data, CodeResult)

    async def stream(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "", keep_output: int = 1 << 20,
    ) -> AsyncIterator[CodePiece]:  # fmt: skip
        self._handle.refuse_if_observing("code")
        content = encode_json(_body(language, code, timeout, env, kernel, keep_output))
        kept = _Kept(keep_output)
        rest = b""
        async with self._handle.stream(
            "POST", "/code", accept=NDJSON, content=content, repeat=Repeat.UNSENT
        ) as response:  # fmt: skip
            async for data in response.pieces():
                *lines, rest = (rest + bytes(data)).split(b"\n")
                for line in lines:
                    piece = kept.piece(decode_answer(line, _Line))
                    yield piece
                    if piece.result is not None:
                        return
        raise Unavailable("the server ended the answer before the code had ended", op="code")

    async def interrupt(self, kernel: str) -> None:
        self._handle.refuse_if_observing("interrupt")
        await self._handle.ask(type(None), "POST", self._path(kernel, "/interrupt"), repeat=Repeat.UNSENT)

    async def restart(self, kernel: str) -> KernelInfo:
        self._handle.refuse_if_observing("restart")
        return await self._handle.ask(KernelInfo, "POST", self._path(kernel, "/restart"), repeat=Repeat.UNSENT)

    async def remove(self, kernel: str) -> None:
        self._handle.refuse_if_observing("remove")
        await self._handle.ask(type(None), "DELETE", self._path(kernel), repeat=Repeat.UNSENT)


class _Kept:
    """Puts what was streamed back into the result, which comes without it."""

    def __init__(self, keep_output: int) -> None:
        self._keep = keep_output
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._sizes = {"stdout": 0, "stderr": 0}
        self._displays: list[Display] = []

    def piece(self, line: _Line) -> CodePiece:
        if line.failed is not None:
            raise HutchError.of(line.failed)
        if line.stream in self._texts and self._sizes[line.stream] <= self._keep:
            self._texts[line.stream].append(line.text)
            self._sizes[line.stream] += len(line.text)
        if line.display is not None:
            self._displays.append(line.display)
        result = line.result
        if result is not None:
            texts = {name: "".join(parts)[: self._keep] for name, parts in self._texts.items()}
            result = result.but(displays=tuple(self._displays), **texts)
        return CodePiece(stream=line.stream, text=line.text, display=line.display, error=line.error, result=result)


def _body(
    language: str, code: str, timeout: float | None, env: dict[str, str] | None, kernel: str, keep_output: int
) -> dict[str, Any]:
    body = {
        "language": language, "code": code, "env": env or {}, "kernel": kernel, "keep_output": keep_output,
    }  # fmt: skip
    return body if timeout is None else body | {"timeout": timeout}
