"""Host places that policy has allowed a box to show, each pinned to the inode that was looked at."""

from hutch.model.record import Record
from hutch.model.spec_kinds import MountMode


class CheckedMount(Record, frozen=True, kw_only=True):
    """A mount that may be made: the place with no symlink in its path, and the inode that was found there."""

    real: str
    target: str
    mode: MountMode
    dev: int
    ino: int
    public: bool = False
    """Everybody may read it as it is, so that nobody's ids have to be mapped: the box sees the files as nobody's."""


class CheckedMounts(Record, frozen=True, kw_only=True):
    """Everything of the host that a box will show."""

    mounts: tuple[CheckedMount, ...] = ()
    """Without those of mode none."""
    workspace: CheckedMount | None = None
    """None: the box's own, or none at all."""
    image: CheckedMount | None = None
    """The directory or archive of a `dir:` or `tar:` image."""
