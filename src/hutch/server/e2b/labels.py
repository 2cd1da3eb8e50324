"""The labels that make a box a sandbox. A caller's metadata are labels too, under the names that the caller chose."""

from hutch.errors import Invalid
from hutch.keeper.boxes.records import BoxRecord

SESSION = "e2b"
"""The session under which all of an owner's E2B clients hold their sandboxes: the protocol knows no sessions."""
PREFIX = "e2b."
TEMPLATE = f"{PREFIX}template"
"""The template by which the sandbox was created. Boxes without it are no sandboxes."""
AUTO_RESUME = f"{PREFIX}auto-resume"
MASKED_HOST = f"{PREFIX}masked-host"
"""The Host header that programs on its ports see, if the creator chose one; `${PORT}` stands for the port."""
TRAFFIC = f"{PREFIX}traffic"
"""`PRIVATE` if its ports are reached only with a token."""
PRIVATE = "private"
TIMEOUT = f"{PREFIX}timeout"
"""The timeout that it was created with, which it gets again when a request resumes it."""

VOLUME = f"{PREFIX}volume"
"""The volume whose content a box reads and writes for clients. Such a box is no sandbox."""
SNAPSHOT = f"{PREFIX}snapshot"
"""The name of a snapshot, or `-`. A box with this label holds the files of a snapshot and is no sandbox."""
SNAPSHOT_OF = f"{PREFIX}snapshot-of"
"""The sandbox from which a snapshot was made."""
SNAPSHOT_TEMPLATE = f"{PREFIX}snapshot-template"
"""The template of that sandbox."""


def ours(given: dict[str, str]) -> dict[str, str]:
    """Return the server's own labels, without the caller's metadata."""
    return {key: value for key, value in given.items() if key.startswith(PREFIX)}


def of_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """Return the caller's metadata as labels. Invalid if a name is reserved for the server's own."""
    for key in metadata:
        if key.startswith(PREFIX):
            raise Invalid(f"metadata has the key {key!r}: names that begin with {PREFIX!r} are the server's own")
    return metadata


def metadata_of(record: BoxRecord) -> dict[str, str]:
    return {key: value for key, value in record.spec.labels.items() if not key.startswith(PREFIX)}


def resumes_by_itself(record: BoxRecord) -> bool:
    return record.spec.labels.get(AUTO_RESUME) == "yes"
