"""Images as they are shown, and what an image says about its commands."""

import msgspec

from hutch.model.record import Record


class ImageDefaults(Record, frozen=True, kw_only=True):
    """Defaults of an image, used if neither the caller nor the profile says otherwise."""

    env: dict[str, str] = msgspec.field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    """"user", "root" or a number; empty if the image names none."""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The command of the image if the caller names none."""
        return (*self.entrypoint, *self.cmd)


class ImageInfo(Record, frozen=True, kw_only=True):
    """An image in this machine's store."""

    digest: str
    """Digest of its manifest."""
    names: tuple[str, ...]
    """Its names, newest first, as they follow `oci:` in a spec."""
    layers: int
    bytes: int
    """Unpacked size."""
    at: float
    """When it got its newest name."""
    source: str
    """The registry or archive it came from."""
    boxes: tuple[str, ...]
    """The boxes that use it, of those that the caller may see."""
    in_use: bool
    """Whether any box uses it."""


class LayerInfo(Record, frozen=True, kw_only=True):
    """One layer, as it was unpacked."""

    diff_id: str
    packed_bytes: int
    bytes: int | None = None
    """None if the layer is missing."""
    entries: int | None = None
    devices_left_out: int = 0


class ImageDetails(ImageInfo, frozen=True, kw_only=True):
    """An image with its parts."""

    platform: str
    created: str
    """Time of its creation, as its maker wrote it."""
    defaults: ImageDefaults
    """How its commands run unless the caller or the profile says otherwise."""
    parts: tuple[LayerInfo, ...]
    """Its layers, lowest first."""
