"""Findings of `hutch doctor` about this machine, and the table of what kernels and distributions give.

A finding names one requirement, how it stands here, what follows from that, and the exact fix.
"""

from collections.abc import Iterable
from enum import StrEnum

from hutch.model.record import Record


class Standing(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Boxes work, but something is weaker or missing."""
    FAIL = "fail"
    """The native engine cannot be used."""


class Finding(Record, frozen=True, kw_only=True):
    name: str
    state: Standing
    found: str
    consequence: str = ""
    fix: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name=name, state=Standing.OK, found=found)


def warn(name: str, found: str, consequence: str, fix: str) -> Finding:
    return Finding(name=name, state=Standing.WARN, found=found, consequence=consequence, fix=fix)


def fail(name: str, found: str, consequence: str, fix: str) -> Finding:
    return Finding(name=name, state=Standing.FAIL, found=found, consequence=consequence, fix=fix)


def usable(findings: Iterable[Finding]) -> bool:
    return all(finding.state is not Standing.FAIL for finding in findings)


KERNELS = (
    ("below 5.12", "no native boxes", "upgrade"),
    ("5.12 – 5.13", "boxes work; rootless pids are counted per user", "upgrade to 5.14"),
    ("5.14 – 5.18", "pids per box; no Landlock; as root no persistent boxes, no writable root", "upgrade to 5.19"),
    ("5.19 – 6.5", "Landlock, idmapped layers; tmpfs has no user xattrs", "persistent boxes, or upgrade to 6.6"),
    ("6.6 and newer", "everything", "–"),
)
"""The rows of kernels: the version, what it gives, and what to do."""

DISTRIBUTIONS = (
    ("Debian 12", "6.1, cgroup v2", "root and rootless; rootless limits need a delegated scope"),
    ("Debian 13", "6.12, cgroup v2", "root and rootless"),
    ("Ubuntu 22.04", "5.15, cgroup v2", "root and rootless; no Landlock"),
    ("Ubuntu 24.04 and newer", "6.8, cgroup v2", "root; rootless after AppArmor's restriction is lifted (see doctor)"),
    ("Fedora 40 and newer", "6.8, cgroup v2", "root and rootless"),
    ("RHEL, Rocky, Alma 9", "5.14 with backports, cgroup v2", "root and rootless; doctor tells what was backported"),
    ("Amazon Linux 2023", "6.1, cgroup v2", "root and rootless"),
    ("Alpine 3.20 and newer", "6.6, cgroup by OpenRC", "root and rootless; modprobe tun for network on"),
    ("WSL 2", "5.15 or newer", "root and rootless; cgroup v2 with systemd = true in wsl.conf"),
    ("in a Docker container", "the host's", "--privileged, or seccomp and system paths unconfined"),
)
"""The rows of distributions: the name, kernel and cgroups, and what to expect. `hutch doctor` checks the machine."""
