"""Image references: `debian`, `registry.example.org:5000/team/app:1.2`, `app@sha256:…`; each has one full form."""

import re
from typing import NamedTuple

from hutch.errors import Invalid

DEFAULT_REGISTRY = "docker.io"
DEFAULT_TAG = "latest"

_HOST = re.compile(r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Reference(NamedTuple):
    """Identifies an image: its registry, its repository, and a tag or digest."""

    registry: str
    repository: str
    tag: str
    """Empty if only a digest was given."""
    digest: str
    """Empty for whatever the tag refers to now."""

    def __str__(self) -> str:
        """The full form, which is the image's name in the store."""
        text = f"{self.registry}/{self.repository}"
        text += f":{self.tag}" if self.tag else ""
        return text + (f"@{self.digest}" if self.digest else "")

    @property
    def short(self) -> str:
        """The form that people write."""
        text = str(self)
        for prefix in (f"{DEFAULT_REGISTRY}/library/", f"{DEFAULT_REGISTRY}/"):
            if text.startswith(prefix):
                return text.removeprefix(prefix)
        return text

    @property
    def wanted(self) -> str:
        """What to request from a registry: the digest, or else the tag."""
        return self.digest or self.tag


def parse(text: str, default_registry: str = DEFAULT_REGISTRY) -> Reference:
    """Parse a reference. A first part with a dot, a colon or the name `localhost` is a registry. Raises Invalid."""
    rest, at, digest = text.partition("@")
    if at and not is_digest(digest):
        raise _invalid(text, "sha256: and 64 hexadecimal digits must follow the @")
    first, slash, others = rest.partition("/")
    registry = default_registry
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, rest = first, others
    repository, colon, tag = rest.rpartition(":")
    if not colon:
        repository, tag = rest, "" if digest else DEFAULT_TAG
    if not _HOST.fullmatch(registry):
        raise _invalid(text, f"{registry!r} is not a host name")
    if not _REPOSITORY.fullmatch(repository) or len(repository) > 255:
        raise _invalid(
            text, f"{repository!r} is not a repository name: lower case letters, digits and . _ - between them"
        )
    if (colon or tag) and not _TAG.fullmatch(tag):
        raise _invalid(text, f"{tag!r} is not a tag")
    if registry == DEFAULT_REGISTRY and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(registry, repository, tag, digest)


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def _invalid(text: str, why: str) -> Invalid:
    return Invalid(
        f"{text!r} is not an image reference: {why}",
        remedy="write NAME, NAME:TAG, HOST[:PORT]/NAME:TAG or NAME@sha256:…",
    )
