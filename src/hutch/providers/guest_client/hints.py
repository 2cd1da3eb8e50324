"""Remedies for refusals that a failed command complains about in its own words. They are hints, never facts."""

from hutch.model.spec import EffectiveSpec, NetworkMode

_LAST_WORDS = 4096
"""Bytes at the end of each stream that are searched."""
_NO_NETWORK = (
    b"Could not resolve", b"Temporary failure in name resolution", b"Temporary failure resolving",
    b"Name or service not known", b"Network is unreachable", b"EAI_AGAIN", b"ENOTFOUND", b"ENETUNREACH",
)  # fmt: skip
_READ_ONLY = (b"Read-only file system", b"EROFS", b"read only lock file")
_NOT_ROOT = (
    b"are you root?",
    b"Could not open lock file",
    b"sudo: not found",
    b"sudo: command not found",
    b"requested operation requires superuser",
)


def remedy_for(stdout: bytes, stderr: bytes, spec: EffectiveSpec, user: str) -> str:
    """Return what to do about the refusal that the output names, if this box would have refused that; else ""."""
    words = stdout[-_LAST_WORDS:] + stderr[-_LAST_WORDS:]
    if spec.network is NetworkMode.OFF and _any(_NO_NETWORK, words):
        return "this box has no network: use one with network on, for example of profile network_basic or app"
    if spec.read_only_root and _any((*_READ_ONLY, *_NOT_ROOT), words):
        return (
            "the system of this box is read-only: write below /workspace, /tmp or the home directory, "
            "or use a box with a writable system, for example of profile code or app"
        )
    if user not in ("root", "0") and _any(_NOT_ROOT, words):
        return "there is no sudo in a box: run the command as user root"
    return ""


def _any(complaints: tuple[bytes, ...], words: bytes) -> bool:
    return any(complaint in words for complaint in complaints)
