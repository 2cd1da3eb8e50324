"""Files as E2B's agent has them: it reaches every file of the sandbox, and gives what it makes to the call's user.

The user's own rights are tried first: most files are the user's, and a guest of root costs a process. Callers who may
not act as root keep to the user's rights.
"""

import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from hutch.errors import FileDenied, HutchError, Unsupported
from hutch.keeper.access.files import GuardedFiles
from hutch.keeper.access.handles import BoxHandle
from hutch.policy import rights
from hutch.server.e2b.requests import Request

T = TypeVar("T")
MAX_REPLAYED = 1 << 20
"""Bytes of an upload that are kept until it is known that the user may write the file."""


async def on_files(request: Request, work: Callable[[GuardedFiles], Awaitable[T]], *made: str) -> T:
    """Do work on files; where the user's rights do not suffice, once more as root.

    What root then made of the paths `made`, and the directories above them, becomes the user's.
    """
    async with request.using() as box:
        try:
            return await work(request.files_of(box))
        except FileDenied as denied:
            if request.user == "root" or not rights.current().root:
                raise
            files = box.files_as("root")
            try:
                new = [each for path in made for each in await _missing(files, path)]
                result = await work(files)
            except Unsupported:  # An ordinary user's box has no root.
                raise denied from None
        if made:
            await _give(box, [*new, *made])
        return result


async def _missing(files: GuardedFiles, path: str) -> list[str]:
    """Return the directories above a path that are not there yet."""
    found: list[str] = []
    above = posixpath.dirname(path)
    while above != "/" and not await files.exists(above):
        found.append(above)
        above = posixpath.dirname(above)
    return found


async def _give(box: BoxHandle, paths: list[str]) -> None:
    done = await box.exec(["chown", "--no-dereference", f"{box.spec.user}:", "--", *paths], user="root", timeout=30.0)
    if done.exit_code != 0:
        raise HutchError(f"{paths[-1]} was made, but could not be given to {box.spec.user}", code="file_failed")


class ReplayedPieces:
    """The pieces of an upload. Those that an attempt has read before it was refused come again in the next one."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._kept: list[bytes] = []
        self._size = 0

    async def attempt(self) -> AsyncGenerator[bytes, None]:
        if self._size > MAX_REPLAYED:
            raise FileDenied("the user may not write there, which was noticed too late to try it as root")
        for piece in tuple(self._kept):
            yield piece
        async for piece in self._pieces:
            self._size += len(piece)
            if self._size <= MAX_REPLAYED:
                self._kept.append(piece)
            else:
                self._kept.clear()
            yield piece
