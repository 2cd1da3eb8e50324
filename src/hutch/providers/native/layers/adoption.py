"""How a new box gets the layers of the box that it is forked from: they come as mounts, and lie below its own.

The new box's first process does this itself, before it gives up its privileges and becomes the guest, so that nothing
has to enter the box. Standard library only.
"""

import errno
import os
from collections.abc import Sequence

from hutch.linux import kernel
from hutch.providers.native.layers.view import MERGED, View, foreign, write_file

_FIRST_LAYER = "1"
"""The box's own layer over those that it adopts. Layer 0 is the empty one that it was made with."""


def adopt(state: Sequence[str], trees: Sequence[int], plain: Sequence[int]) -> None:
    """Show the box a state of another one. The working directory is the base, and the root is the merged view.

    `trees` are the mounts that hold the layers. Root also gives them as they are in the other box (`plain`), for forks
    of this box: ids can be mapped only once.
    """
    os.chroot(".")  # only mounts below the root are in the mount table
    for number, tree in enumerate(trees):
        os.mkdir(f"s{number}", 0o755)
        os.mkdir(f"r{number}", 0o755)
        if plain:
            attach(plain[number], f"r{number}")
            attach(tree, f"s{number}")
        else:
            attach(tree, f"r{number}")
            kernel.mount(f"r{number}", f"s{number}", None, kernel.MS_BIND, None)
    own = os.open(f"{MERGED}/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        view = View(own)
    finally:
        os.close(own)
    write_file("last", _FIRST_LAYER.encode())
    view.prepare(_FIRST_LAYER, adopted(state))
    view.commit(_FIRST_LAYER)
    view.release()


def adopted(state: Sequence[str]) -> list[str]:
    """The names that the layers of a state have in a box that adopts them."""
    return [foreign(layer, "s") for layer in state]


def attach(tree: int, name: str) -> None:
    """Attach a mount of another box's layers, which nobody here may write to."""
    kernel.mount_setattr(tree, b"", kernel.AT_EMPTY_PATH, add=kernel.MOUNT_ATTR_RDONLY)
    kernel.move_mount(tree, kernel.AT_FDCWD, name)


def map_ids(trees: Sequence[int], pid: int) -> list[int]:
    """Have the files in these mounts seem those of the box whose first process this is.

    Returns the mounts whose file system refuses: one of the box's own user namespace, or one that maps no ids at all.
    """
    refused = []
    userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for tree in trees:
            try:
                kernel.mount_setattr(tree, b"", kernel.AT_EMPTY_PATH, add=kernel.MOUNT_ATTR_IDMAP, userns=userns)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                refused.append(tree)
    finally:
        os.close(userns)
    return refused


def unmapped() -> OSError:
    return OSError(errno.ENOSYS, "this kernel maps no ids of a tmpfs (Linux 6.3 does)")
