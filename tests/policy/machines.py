"""Capabilities of machines that the tests of policy put specs to."""

from hutch.model.capabilities import Capabilities
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import NetworkMode

STRONG = Grades(
    cpus=EnforcedBy.CGROUP,
    memory_mb=EnforcedBy.CGROUP,
    pids=EnforcedBy.CGROUP,
    disk_mb=EnforcedBy.QUOTA,
    open_files=EnforcedBy.RLIMIT,
)

ABLE = Capabilities(
    provider="native",
    guest=True,
    users=("user", "root"),
    uid_range=True,
    writable_root=True,
    persistent=True,
    networks=(NetworkMode.OFF, NetworkMode.ON),
    images=("host", "dir", "tar", "oci"),
    mounts=True,
    ports=True,
    layers=True,
    grades=STRONG,
)
"""Can do everything."""
