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


class ImageInfo(Record, frozen=True, kw_only=True):
    """An image of this machine's store, whatever it is called."""

    digest: str
    """Of its manifest: what it is."""
    names: tuple[str, ...]
    """Newest first; what stands behind `oci:` in a spec."""
    layers: int
    bytes: int
    """Unpacked."""
    at: float
    """When it got its newest name."""
    source: str
    """The registry or archive it came from."""
    boxes: tuple[str, ...]
    """Which stand on it: those that the caller may see."""
    in_use: bool
    """Whether any box does."""


class LayerInfo(Record, frozen=True, kw_only=True):
    """One layer, as it was unpacked."""

    diff_id: str
    packed_bytes: int
    bytes: int | None = None
    """None: it is not there."""
    entries: int | None = None
    devices_left_out: int = 0


class ImageDetails(ImageInfo, frozen=True, kw_only=True):
    """An image with its parts."""

    platform: str
    created: str
    """As its maker wrote it."""
    defaults: ImageDefaults
    """How its commands run where nobody says otherwise."""
    parts: tuple[LayerInfo, ...]
    """Lowest first."""
