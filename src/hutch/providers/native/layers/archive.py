"""A state of a box's files as one layer of an OCI image: its layers are merged on the host and written as a tar."""

import os
import tempfile

from hutch.images.layers import diff
from hutch.providers.native import cleanup
from hutch.providers.native.layers import trees
from hutch.providers.native.layers.view import foreign
from hutch.providers.native.rootfs.root import upper_directory

_ID_RANGE = 65536


def write_layer(bases: list[int], state: list[str], path: str) -> None:
    """Write the tar. `bases` are the mounts that hold the layers: the box's own, then those of boxes before it.

    The mounts are attached nowhere, and are walked by their descriptors.
    """
    draft = tempfile.mkdtemp(prefix="hutch-layer-")
    try:
        merged = os.path.join(draft, "merged")
        trees.squash([_directory(bases, layer) for layer in state], merged)
        with open(path, "xb") as out:
            diff.from_changes(merged, out, _owner, with_workspace=True)
    finally:
        cleanup.remove_tree(draft)


def _directory(bases: list[int], layer: str) -> str:
    source, _, name = foreign(layer, "").partition("/")
    return f"/proc/self/fd/{bases[int(source)]}/{upper_directory(name)}"


def _owner(number: int) -> int:
    """The owner in the image: a range of ids begins at a multiple of its length; an ordinary user is root there."""
    return number % _ID_RANGE if os.geteuid() == 0 else 0
