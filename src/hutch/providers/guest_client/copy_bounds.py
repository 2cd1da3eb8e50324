"""How much a copy out of a box may bring. The stream is the box's word, and the disk that it fills is the caller's."""

import posixpath

from hutch.model.spec import EffectiveSpec

OF_AN_IMAGE = 16 << 30
"""Bytes that may lie outside of a box's own directories, in what its image holds."""
OF_THE_HOST = 1 << 40
"""Bytes of a directory of the host: what a box may write there, nothing of ours bounds."""
LEAST_ENTRIES = 1 << 16
_OWN = ("/workspace", "/tmp")


def most_of(spec: EffectiveSpec, source: str) -> int:
    """Bytes on disk that a copy of `source` may have; holes have none. What lies in a box's own directories has at most
    the box's disk."""
    path = posixpath.normpath(posixpath.join(spec.workdir or "/", source))
    mounted = [mount.target for mount in spec.mounts]
    if spec.workspace.source != "own":
        mounted.append("/workspace")
    if any(_meet(path, target) for target in mounted):
        return OF_THE_HOST
    disk = spec.limits.disk_mb << 20
    own = any(path == place or path.startswith(f"{place}/") for place in (*_OWN, spec.workdir or "/workspace"))
    return disk if own else disk + OF_AN_IMAGE


def entries_of(most: int) -> int:
    """Files and directories that so many bytes on disk may have: four times what the native engine lets a box make."""
    return max(LEAST_ENTRIES, most >> 10)


def _meet(path: str, target: str) -> bool:
    """Whether one of them lies in the other."""
    return f"{path}/".startswith(f"{target}/".replace("//", "/")) or f"{target}/".startswith(f"{path}/")
