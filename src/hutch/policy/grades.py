"""Grades: what enforces each limit on this machine, and whether a profile accepts that.

Every profile refuses a limit that nothing enforces, unless it names it in `accept_unenforced`. `strict` asks for a
cgroup or a quota wherever the kernel has one: only an rlimit counts open files, and only a clock measures time.
"""

from hutch.errors import Refused
from hutch.model.capabilities import Capabilities
from hutch.model.limits import EnforcedBy
from hutch.model.spec import EffectiveSpec
from hutch.policy.profiles import Profile
from hutch.policy.requirements import missing
from hutch.policy.values import LIMIT_NAMES

_STRONG = (EnforcedBy.CGROUP, EnforcedBy.QUOTA)
_BY_CGROUP = ("cpus", "memory_mb", "pids")
_STRONGEST = {"open_files": EnforcedBy.RLIMIT, "timeout_sec": EnforcedBy.WATCHDOG}


def check(
    spec: EffectiveSpec, profile: Profile, capabilities: Capabilities, *, strict: bool = False
) -> tuple[str, ...]:
    """Return the limits that go unenforced because the profile accepts it. Raises Refused if a limit is too weak."""
    strict = strict or profile.strict
    held = capabilities.grades_of(spec)
    unenforced: list[str] = []
    for limit in LIMIT_NAMES:
        grade: EnforcedBy = getattr(held, limit)
        if grade is EnforcedBy.NONE:
            if strict or limit not in profile.accept_unenforced:
                raise _refusal(limit, grade, profile, capabilities, "nothing enforces it here")
            unenforced.append(limit)
            continue
        if strict and grade not in _STRONG and grade is not _STRONGEST.get(limit):
            raise _refusal(limit, grade, profile, capabilities, f"only a {grade} enforces it here, and strict is set")
    return tuple(unenforced)


def _refusal(limit: str, grade: EnforcedBy, profile: Profile, capabilities: Capabilities, why: str) -> Refused:
    gap = missing(capabilities, "grades", limit)
    if gap is None and limit in _BY_CGROUP:
        gap = missing(capabilities, "cgroups")
    reason = f": {gap.reason}" if gap else ""
    way_out = (
        f'or use a profile with accept_unenforced = ["{limit}"]'
        if grade is EnforcedBy.NONE
        else "or do without strict = true"
    )
    if getattr(capabilities.grades, limit) is not grade:
        remedy = "make it a temporary box with a read-only root, which a size bounds"
    else:
        usual = f"give provider {capabilities.provider} a cgroup (see hutch doctor)"
        remedy = gap.remedy if gap and gap.remedy else usual
    return Refused(
        f"profile {profile.name} refuses a box whose {limit} is not held on provider {capabilities.provider}: "
        f"{why}{reason}",
        remedy=f"{remedy}, {way_out}",
        details={"field": limit, "enforced_by": str(grade), "provider": capabilities.provider},
    )
