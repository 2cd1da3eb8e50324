"""The box's end of `copy_in` and `copy_out`: a tree out of it, a tree into it."""

import os
import stat
from contextlib import ExitStack

from hutch.guest.path_steps import Failure, Operation, Reply, Request, Steps, failure
from hutch.guest.paths import followed, open_file, spelled
from hutch.guest.trees import pack
from hutch.guest.unpack import Unpacker


def pack_request(request: Request, workdir: str) -> Steps:
    path = spelled(request)
    try:
        top = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, workdir)
    except OSError as error:
        raise failure(error, "copy", path) from None
    info = os.fstat(top)
    if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        os.close(top)
        raise Failure("file_failed", f"cannot copy {path!r}: it is neither a file nor a directory", path=path)
    yield from pack(top, path)
    return {}


class Unpack:
    """A tree from the host, to `path`; parents are made."""

    def __init__(self, request: Request, workdir: str) -> None:
        path = spelled(request)
        self._held = ExitStack()
        place = self._held.enter_context(followed(path, workdir, "copy to", parents=True))
        self._unpacker = Unpacker(place.directory, place.name, str(request.get("into") or ""))

    def data(self, content: bytes) -> None:
        self._unpacker.data(content)

    def end(self) -> Reply:
        try:
            return self._unpacker.end()
        finally:
            self._held.close()

    def abort(self) -> None:
        self._unpacker.abort()
        self._held.close()


OPERATIONS: dict[str, Operation] = {"files.pack": pack_request, "files.unpack": Unpack}
