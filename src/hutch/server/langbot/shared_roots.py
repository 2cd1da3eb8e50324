"""Host directories that LangBot and Hutch share, as the operator configured them (`server.langbot_shared_roots`).

A path that LangBot sends is only a name on LangBot's machine. It is used here if it lies below such a root, and never
because something happens to exist under that name.
"""

import asyncio
import os
from collections.abc import Sequence

from hutch.errors import Refused
from hutch.policy.values import at_or_below


class SharedRoots:
    """The roots, and safe creation of directories below them."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.paths = tuple(os.path.realpath(root) for root in roots)

    def root_of(self, path: str) -> str | None:
        """Return the root below which the path lies by its text; mounting checks again where it really leads."""
        plain = os.path.normpath(path)
        return next((root for root in self.paths if plain != root and at_or_below(plain, root)), None)

    def check(self, path: str) -> str:
        """Return the root of a path. Raises Refused for a path of another machine or another program."""
        root = self.root_of(path)
        if root is None:
            raise Refused(
                f"host path {path[:300]} does not lie below a directory that this server shares with LangBot",
                remedy="add LangBot's data directory to server.langbot_shared_roots, if both run on one machine",
            )
        return root

    async def make_directory(self, path: str) -> bool:
        """Create a directory below a root, as the root's owner would; False if the path lies below none."""
        root = self.root_of(path)
        if root is None:
            return False
        await asyncio.to_thread(_make_below, root, os.path.relpath(os.path.normpath(path), root))
        return True


def _make_below(root: str, relative: str) -> None:
    """Create each missing directory through the descriptor of its parent, so that no symlink leads elsewhere."""
    try:
        parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            facts = os.fstat(parent)
            for name in relative.split("/"):
                try:
                    os.mkdir(name, 0o755, dir_fd=parent)
                    if os.geteuid() == 0:
                        os.chown(name, facts.st_uid, facts.st_gid, dir_fd=parent, follow_symlinks=False)
                except FileExistsError:
                    pass
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                os.close(parent)
                parent = below
        finally:
            os.close(parent)
    except OSError as error:
        raise Refused(f"{relative} cannot be made below {root}: {error.strerror}") from error
