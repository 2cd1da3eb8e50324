"""Bounds of a copy out of a box: the box writes the stream, and could fill the caller's disk with it."""

import posixpath

from hutch.model.spec import EffectiveSpec

IMAGE_BYTES = 16 << 30
"""The bytes that a copy may have beyond the box's own disk limit, because the image holds them."""
HOST_BYTES = 1 << 40
"""The most bytes of a copy from a mounted host directory, whose size no limit of ours bounds."""
MIN_ENTRIES = 1 << 16
_OWN = ("/workspace", "/tmp")


def max_copy_bytes(spec: EffectiveSpec, source: str) -> int:
    """Return the most bytes on disk that a copy of `source` may have: in the box's own directories, its disk limit."""
    path = posixpath.normpath(posixpath.join(spec.workdir or "/", source))
    mounted = [mount.target for mount in spec.mounts]
    if spec.workspace.source != "own":
        mounted.append("/workspace")
    if any(_overlap(path, target) for target in mounted):
        return HOST_BYTES
    disk = spec.limits.disk_mb << 20
    own = any(path == place or path.startswith(f"{place}/") for place in (*_OWN, spec.workdir or "/workspace"))
    return disk if own else disk + IMAGE_BYTES


def max_copy_entries(most: int) -> int:
    """Return the most entries of a copy of that size: four times what the native engine lets a box create."""
    return max(MIN_ENTRIES, most >> 10)


def _overlap(path: str, target: str) -> bool:
    """Return whether one path lies in the other."""
    return f"{path}/".startswith(f"{target}/".replace("//", "/")) or f"{target}/".startswith(f"{path}/")
