"""What an image brings to a box besides files: how its commands want to run."""

import msgspec

from hutch.model.record import Record


class ImageDefaults(Record, frozen=True, kw_only=True):
    """Used where neither the caller nor the profile says otherwise."""

    env: dict[str, str] = msgspec.field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    """As a box knows it: "user", "root" or a number; empty: the image does not say."""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """What the image runs when nobody names a command."""
        return (*self.entrypoint, *self.cmd)
