"""Paths of files as AstrBot's SDKs name them: relative to /workspace, and never outside it."""

import posixpath

from hutch.errors import Invalid

WORKSPACE = "/workspace"


class InvalidPath(Invalid):
    """A path that cannot be a file of the workspace; `reason` is the Bay API's word for why."""

    code = "invalid_path"

    def __init__(self, path: str, reason: str, text: str) -> None:
        super().__init__(f"path {path[:200]!r} {text}", details={"field": "path", "reason": reason})
        self.reason = reason


def workspace_path(path: str) -> str:
    """Return the place of a path in the box; an absolute path below /workspace is accepted too."""
    if not path:
        raise InvalidPath(path, "empty_path", "is empty")
    if "\0" in path:
        raise InvalidPath(path, "null_byte", "has a null byte")
    plain = posixpath.normpath(posixpath.join(WORKSPACE, path))
    if plain == WORKSPACE or plain.startswith(f"{WORKSPACE}/"):
        return plain
    if path.startswith("/"):
        raise InvalidPath(path, "absolute_path", "is absolute: name it relative to the workspace")
    raise InvalidPath(path, "path_traversal", "leads out of the workspace")
