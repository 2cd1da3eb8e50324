"""Image documents: indexes, manifests and configurations, as OCI and Docker define them."""

import hashlib
import platform as machine
from typing import Any, TypeVar

import msgspec

from hutch.errors import Invalid, NotFound, Unsupported
from hutch.images.references import is_digest
from hutch.model.images import ImageDefaults
from hutch.model.record import Record

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEXES = (INDEX, DOCKER_INDEX)
ACCEPTED = (MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX)
MAX_DOCUMENT_BYTES = 4 << 20
"""Largest size of one document; registries refuse larger ones too."""

_MAX_VARIABLE = 100_000
"""Longest environment variable in characters; execve(2) accepts 128 kB."""
_ARCHITECTURES = {
    "x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64", "i686": "386", "armv7l": "arm",
    "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64",
}  # fmt: skip

T = TypeVar("T")


class Platform(msgspec.Struct, frozen=True):
    """The platform that an image needs."""

    architecture: str = ""
    os: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One blob by digest and size."""

    media_type: str = ""
    digest: str = ""
    size: int = 0
    urls: list[str] = msgspec.field(default_factory=list)
    annotations: dict[str, str] | None = None
    platform: Platform | None = None

    @property
    def hex(self) -> str:
        return self.digest.partition(":")[2]


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """Several images under one name, one for each platform."""

    manifests: list[Descriptor]
    schema_version: int = 2
    media_type: str = INDEX


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """One image: its configuration and its layers, lowest first."""

    config: Descriptor
    layers: list[Descriptor]
    schema_version: int = 2
    media_type: str = MANIFEST


class RunConfig(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """How commands of the image should run."""

    env: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    labels: dict[str, str] | None = None


class RootFs(msgspec.Struct, frozen=True):
    diff_ids: list[str]
    type: str = "layers"


class Config(msgspec.Struct, frozen=True, omit_defaults=True):
    """The configuration blob. Fields that are not used here are not declared."""

    rootfs: RootFs
    architecture: str = ""
    os: str = ""
    variant: str = ""
    created: str | None = None
    config: RunConfig | None = None

    def defaults(self) -> ImageDefaults:
        """Return the defaults for commands. A variable that no process could have is left out."""
        run = self.config or RunConfig()
        env = dict(text.split("=", 1) for text in run.env or [] if _is_variable(text))
        return ImageDefaults(
            env=env,
            workdir=run.working_dir or "",
            user=run.user or "",
            entrypoint=tuple(run.entrypoint or ()),
            cmd=tuple(run.cmd or ()),
        )


def _is_variable(text: str) -> bool:
    return "=" in text[1:] and text[0] != "=" and "\0" not in text and len(text) < _MAX_VARIABLE


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def this_platform() -> Platform:
    """Return the platform of this machine."""
    name = machine.machine().lower()
    return Platform(architecture=_ARCHITECTURES.get(name, name), os="linux")


def parse_platform(text: str) -> Platform:
    """Parse "linux/arm64" or "arm64"."""
    parts = text.split("/")
    if len(parts) == 1:
        parts = ["linux", *parts]
    if len(parts) > 3 or not all(parts):
        raise Invalid(f"{text!r} is not a platform", remedy="write os/architecture[/variant], such as linux/arm64")
    return Platform(os=parts[0], architecture=parts[1], variant=parts[2] if len(parts) > 2 else "")


def decode(kind: type[T], data: bytes, what: str) -> T:
    """Decode a document, ignoring unknown fields. Raises Invalid."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise Invalid(f"the {what} has {len(data)} bytes, more than any image needs")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise Invalid(f"the {what} cannot be read: {error}") from error


def media_type_of(data: bytes) -> str:
    """Return the media type that a document declares, or else the one that its fields show."""
    plain: dict[str, Any] = decode(dict[str, Any], data, "manifest")
    if plain.get("schemaVersion") == 1:
        raise Unsupported("the image has a manifest of schema 1, obsolete since 2017", remedy="push it again")
    declared = plain.get("mediaType")
    if isinstance(declared, str) and declared:
        return declared
    return INDEX if "manifests" in plain else MANIFEST


def parse_manifest(data: bytes, max_layers: int) -> Manifest:
    """Parse a manifest and check that every part of it can be used here."""
    manifest = decode(Manifest, data, "manifest")
    if len(manifest.layers) > max_layers:
        raise Unsupported(f"the image has {len(manifest.layers)} layers, and a box supports {max_layers}")
    for part in (manifest.config, *manifest.layers):
        if not is_digest(part.digest) or part.size < 0:
            raise Invalid(f"the manifest identifies a blob by {part.digest[:80]!r}", remedy="only sha256 is used")
        if part.urls and "foreign" in part.media_type:
            raise Unsupported("the image has layers that its registry may not distribute")
    return manifest


def parse_config(data: bytes, manifest: Manifest) -> Config:
    config = decode(Config, data, "configuration of the image")
    ids = config.rootfs.diff_ids
    if len(ids) != len(manifest.layers) or not all(map(is_digest, ids)):
        raise Invalid(f"the image has {len(manifest.layers)} layers but {len(ids)} diff ids")
    return config


def choose_manifest(index: Index, wanted: Platform) -> Descriptor:
    """Choose the manifest for this platform. Attestations and the like have no platform."""
    images = [each for each in index.manifests if is_digest(each.digest)]
    fitting = [each for each in images if each.platform is not None and platform_matches(each.platform, wanted)]
    if fitting:
        return fitting[0]
    plain = [each for each in images if each.platform is None]
    if len(plain) == 1 and len(images) == 1:
        return plain[0]
    offered = sorted({str(each.platform) for each in images if each.platform and each.platform.os != "unknown"})
    raise NotFound(
        f"the image does not exist for {wanted}", remedy=f"it exists for {', '.join(offered) or 'no platform'}"
    )


def platform_matches(offered: Platform, wanted: Platform) -> bool:
    same = (offered.os, offered.architecture) == (wanted.os, wanted.architecture)
    return same and (not wanted.variant or offered.variant in ("", wanted.variant))


class Stored(Record, frozen=True, kw_only=True):
    """An image of the store under one of its names."""

    name: str
    manifest: str
    """Digest of its manifest, which identifies the image."""
    source: str = ""
    at: float = 0.0
    """When the image got this name."""
