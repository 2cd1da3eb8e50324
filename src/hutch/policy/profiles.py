"""Profiles: named defaults, locks and maxima for a spec; nine built in, more by configuration, with inheritance.

A profile of the configuration inherits another one (`default` unless it says so) and changes what it names. It may add
locks, but neither remove one nor change a field that its parent locked. A built-in name cannot be redefined, so that
`default` means the same everywhere.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from hutch.errors import ConfigError, Invalid, NotFound
from hutch.model.ids import is_name
from hutch.model.limits import Limits, LimitsAsked
from hutch.model.record import Record
from hutch.model.spec import Isolation, Mount, MountMode, NetworkMode, Retention, Workspace
from hutch.policy import values

LOCKABLE = frozenset(
    {
        "provider", "image", "workspace", "workspace.source", "workspace.mode", "workdir", "user", "mounts", "env",
        "secrets", "network", "allow_private", "limits", *values.LIMIT_NAMES, "read_only_root", "retention",
        "idle_timeout_sec", "ttl_sec", "labels", "ports",
    }
)  # fmt: skip
"""Fields that a profile can lock; `limits` and `workspace` lock all their parts."""


class Maxima(Record, frozen=True, kw_only=True):
    """The most a caller may ask for; None for no maximum. The maximum of a timeout is `limits.max_timeout_sec`."""

    cpus: float | None = None
    memory_mb: int | None = None
    pids: int | None = None
    disk_mb: int | None = None
    open_files: int | None = None
    idle_timeout_sec: float | None = None
    ttl_sec: float | None = None


class Profile(Record, frozen=True, kw_only=True):
    """A profile with all that it inherits."""

    name: str
    description: str
    limits: Limits
    network: NetworkMode = NetworkMode.OFF
    read_only_root: bool = True
    idle_timeout_sec: float = 1800.0
    ttl_sec: float = 0.0
    workspace: Workspace = Workspace()
    provider: str | None = None
    """None for the provider of the configuration."""
    fallback: tuple[str, ...] | None = None
    """Providers that may stand in for it, in this order; None for those of the configuration."""
    image: str | None = None
    """The configuration's default image wins over it; None for the provider's own."""
    workdir: str | None = None
    """None for /workspace, or / in a box without a workspace."""
    user: str = "user"
    mounts: tuple[Mount, ...] = ()
    """Mounts of every box, before the caller's; the allow-list covers them too."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables of every box; the caller's win."""
    allow_private: tuple[str, ...] = ()
    retention: Retention = Retention.TEMPORARY
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    ports: tuple[int, ...] = ()
    locked: frozenset[str] = frozenset()
    """Fields (LOCKABLE) in which the profile wins over the caller. A locked `timeout_sec` is also the maximum."""
    maxima: Maxima = Maxima()
    min_isolation: Isolation = Isolation.NAMESPACES
    strict: bool = False
    """Whether a cgroup or a quota must enforce the limits."""
    accept_unenforced: frozenset[str] = frozenset()
    """Limits that may go unenforced on machines that cannot enforce them; no built-in profile accepts any."""
    inherits: str | None = None

    def locks(self, field: str) -> bool:
        group = "limits" if field in values.LIMIT_NAMES else field.partition(".")[0]
        return field in self.locked or group in self.locked


class WorkspaceTable(Record, frozen=True, kw_only=True):
    source: str | None = None
    mode: MountMode | None = None


class LimitsTable(LimitsAsked, frozen=True, kw_only=True):
    max_timeout_sec: float | None = None


class ProfileTable(Record, frozen=True, kw_only=True):
    """`[profiles.NAME]` as written; None for the parent's value."""

    inherits: str = "default"
    description: str | None = None
    limits: LimitsTable = LimitsTable()
    network: NetworkMode | None = None
    read_only_root: bool | None = None
    idle_timeout_sec: float | None = None
    ttl_sec: float | None = None
    workspace: WorkspaceTable = WorkspaceTable()
    provider: str | None = None
    fallback: tuple[str, ...] | None = None
    image: str | None = None
    workdir: str | None = None
    user: str | None = None
    mounts: tuple[Mount, ...] | None = None
    env: dict[str, str] | None = None
    """Added to the parent's."""
    allow_private: tuple[str, ...] | None = None
    retention: Retention | None = None
    labels: dict[str, str] | None = None
    """Added to the parent's."""
    ports: tuple[int, ...] | None = None
    locked: frozenset[str] = frozenset()
    """Added to the parent's."""
    maxima: Maxima = Maxima()
    min_isolation: Isolation | None = None
    strict: bool | None = None
    accept_unenforced: frozenset[str] | None = None


def _limits(
    cpus: float, memory_mb: int, pids: int, disk_mb: int, timeout_sec: float, max_timeout_sec: float, open_files: int
) -> Limits:
    return Limits(
        cpus=cpus, memory_mb=memory_mb, pids=pids, disk_mb=disk_mb, open_files=open_files, timeout_sec=timeout_sec,
        max_timeout_sec=max_timeout_sec,
    )  # fmt: skip


_SMALL = _limits(1, 512, 128, 1024, 30, 120, open_files=1024)
_LARGE = _limits(2, 1024, 256, 4096, 60, 300, open_files=4096)

BUILT_IN: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="default", description="Commands and files, no network, read-only system", limits=_SMALL),
        Profile(
            name="offline_readonly",
            description="Look, do not touch: no network, nothing to write but /tmp",
            limits=_limits(0.5, 256, 64, 256, 30, 60, open_files=1024),
            workspace=Workspace(mode=MountMode.RO),
            idle_timeout_sec=600.0,
            locked=frozenset({"network", "read_only_root", "workspace.mode"}),
        ),
        Profile(
            name="network_basic",
            description="As default, with network",
            limits=_SMALL,
            network=NetworkMode.ON,
        ),
        Profile(
            name="network_extended",
            description="Network, a writable system and more of everything: installing and building",
            limits=_LARGE,
            network=NetworkMode.ON,
            read_only_root=False,
        ),
        Profile(
            name="code",
            description="Run code that a model wrote: writable system, no network",
            limits=_LARGE,
            read_only_root=False,
            idle_timeout_sec=600.0,
        ),
        Profile(
            name="app",
            description="Develop and serve an application",
            limits=_LARGE,
            network=NetworkMode.ON,
            read_only_root=False,
        ),
        Profile(
            name="desktop",
            description="A desktop with a browser",
            limits=_limits(2, 2048, 512, 4096, 60, 900, open_files=4096),
            network=NetworkMode.ON,
            read_only_root=False,
            idle_timeout_sec=900.0,
        ),
        Profile(
            name="e2b",
            description="A sandbox for clients of E2B, which say themselves when it and its commands end",
            limits=_limits(2, 1024, 512, 4096, 300, 0, open_files=4096),
            network=NetworkMode.ON,
            read_only_root=False,
            workdir="/home/user",
            idle_timeout_sec=0.0,
        ),
        Profile(
            name="mcp",
            description="Host an MCP server: starts within 120 s and stays",
            limits=_limits(1, 1536, 256, 4096, 120, 0, open_files=4096),
            network=NetworkMode.ON,
            read_only_root=False,
            workspace=Workspace(mode=MountMode.RO),
            idle_timeout_sec=0.0,
        ),
    )
}


def resolve(name: str, user_defined: Mapping[str, ProfileTable]) -> Profile:
    """Return a profile with all that it inherits. Raises NotFound, and ConfigError for a wrong definition."""
    if name not in BUILT_IN and name not in user_defined:
        known = ", ".join([*BUILT_IN, *sorted(user_defined)])
        raise NotFound(f"no profile is called {name!r}", remedy=f"profiles are {known}", details={"profile": name})
    chain = _chain(name, user_defined)
    profile = BUILT_IN[chain[-1]]
    for child in reversed(chain[:-1]):
        try:
            profile = _inherit(profile, child, user_defined[child])
        except Invalid as error:
            raise ConfigError(
                f"profile {child}: {error.message}", remedy=error.remedy, details=error.details | {"profile": child}
            ) from error
    return profile


def _chain(name: str, user_defined: Mapping[str, ProfileTable]) -> list[str]:
    """List the profiles from this one to the built-in one that it inherits from."""
    chain = [name]
    while chain[-1] in user_defined:
        child = chain[-1]
        if child in BUILT_IN:
            raise ConfigError(
                f"profile {child} is built in and cannot be redefined",
                remedy=f'give yours another name and write inherits = "{child}"',
                details={"profile": child},
            )
        if not is_name(child):
            raise ConfigError(
                f"{child!r} cannot be the name of a profile: letters, digits and _ . - only, 63 at most",
                details={"profile": child},
            )
        parent = user_defined[child].inherits
        shown = " → ".join([*chain, parent])
        if parent in chain:
            raise ConfigError(
                f"profile {name} inherits itself: {shown}", details={"profile": child, "field": "inherits"}
            )
        if parent not in BUILT_IN and parent not in user_defined:
            raise ConfigError(
                f"profile {child} inherits {parent!r}, which does not exist: {shown}",
                remedy=f"profiles are {', '.join([*BUILT_IN, *sorted(user_defined)])}",
                details={"profile": child, "field": "inherits"},
            )
        chain.append(parent)
    return chain


def _inherit(parent: Profile, name: str, table: ProfileTable) -> Profile:
    _check_sets(table)
    _check_numbers(table)
    child = parent.but(
        name=name,
        inherits=parent.name,
        description=parent.description if table.description is None else table.description,
        limits=_inherit_limits(parent, table),
        workspace=parent.workspace.but(**_named(table.workspace)),
        env=parent.env | (table.env or {}),
        labels=parent.labels | (table.labels or {}),
        locked=parent.locked | table.locked,
        maxima=parent.maxima.but(**_named(table.maxima)),
        **{field: value for field in _PLAIN if (value := getattr(table, field)) is not None},
    )
    _check_locks(parent, child)
    return _within_maxima(_checked(child), table)


_PLAIN = (
    "network", "read_only_root", "idle_timeout_sec", "ttl_sec", "provider", "fallback", "image", "workdir", "user",
    "mounts", "allow_private", "retention", "ports", "min_isolation", "strict", "accept_unenforced",
)  # fmt: skip


def _named(table: Record) -> dict[str, Any]:
    """Return the fields that were written."""
    fields = ((field, getattr(table, field)) for field in table.__struct_fields__)
    return {field: value for field, value in fields if value is not None}


def _inherit_limits(parent: Profile, table: ProfileTable) -> Limits:
    """Lower an inherited default to a maximum that the child lowers; its own default must be within the maximum."""
    named = _named(table.limits)
    limits = parent.limits.but(**named)
    if not limits.max_timeout_sec or limits.timeout_sec <= limits.max_timeout_sec:
        return limits
    if "timeout_sec" not in named:
        return limits.but(timeout_sec=limits.max_timeout_sec)
    raise Invalid(
        f"timeout_sec {values.text_of(limits.timeout_sec)} is over its maximum "
        f"{values.text_of(limits.max_timeout_sec)}",
        remedy="raise limits.max_timeout_sec too",
        details={"field": "limits.timeout_sec"},
    )


def _within_maxima(profile: Profile, table: ProfileTable) -> Profile:
    """Do the same for the other maxima."""
    limits: dict[str, Any] = {}
    clocks: dict[str, Any] = {}
    for field, maximum in _named(profile.maxima).items():
        clock = field in ("idle_timeout_sec", "ttl_sec")
        value = getattr(profile if clock else profile.limits, field)
        # For a clock 0 means "never", which is longer than any maximum.
        if value <= maximum and not (clock and value == 0):
            continue
        if getattr(table if clock else table.limits, field) is not None:
            path = field if clock else f"limits.{field}"
            raise Invalid(
                f"{field} {values.text_of(value)} is over its maximum {values.text_of(maximum)}",
                remedy=f"raise maxima.{field} too",
                details={"field": path},
            )
        (clocks if clock else limits)[field] = maximum
    return profile.but(limits=profile.limits.but(**limits), **clocks)


def _check_sets(table: ProfileTable) -> None:
    """Check the names in sets; the decoder only checks that they are strings."""
    if unknown := sorted(table.locked - LOCKABLE):
        raise Invalid(
            f"{unknown[0]!r} cannot be locked",
            remedy=f"fields are {', '.join(sorted(LOCKABLE))}",
            details={"field": "locked"},
        )
    if unknown := sorted((table.accept_unenforced or frozenset()) - set(values.LIMIT_NAMES)):
        raise Invalid(
            f"{unknown[0]!r} is no limit",
            remedy=f"limits are {', '.join(values.LIMIT_NAMES)}",
            details={"field": "accept_unenforced"},
        )


def _check_numbers(table: ProfileTable) -> None:
    """Check numbers before they are compared: NaN is neither over nor under a maximum."""
    for group in (table.limits, table.maxima):
        for field, value in _named(group).items():
            values.check_number(field, value)
    for field in ("idle_timeout_sec", "ttl_sec"):
        if (value := getattr(table, field)) is not None:
            values.check_number(field, value)


def _check_locks(parent: Profile, child: Profile) -> None:
    for field in sorted(LOCKABLE - {"secrets", "limits", "workspace"}):
        if parent.locks(field) and value_of(parent, field) != value_of(child, field):
            raise Invalid(
                f"{field} is locked by profile {parent.name}, so a profile that inherits it cannot change it",
                remedy="inherit another profile",
                details={"field": f"limits.{field}" if field in values.LIMIT_NAMES else field},
            )


def value_of(profile: Profile, field: str) -> object:
    """Return a default by the name under which it can be locked."""
    if field in values.LIMIT_NAMES:
        return getattr(profile.limits, field)
    group, _, part = field.partition(".")
    return getattr(getattr(profile, group), part) if part else getattr(profile, field)


def _checked(profile: Profile) -> Profile:
    """Apply the rules of a caller's spec, so that a mistake shows when the configuration is read."""
    values.check_user(profile.user)
    values.check_ports(profile.ports)
    values.check_environment("env", profile.env)
    values.check_labels(profile.labels)
    values.check_private_ranges(profile.allow_private)
    values.plain_mounts(profile.mounts)
    if profile.workdir is not None:
        values.plain_path("workdir", profile.workdir)
    if profile.strict and profile.accept_unenforced:
        raise Invalid("strict and accept_unenforced exclude each other", details={"field": "accept_unenforced"})
    return profile
