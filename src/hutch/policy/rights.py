"""Rights: what a caller of a server may ask for, whatever profile it names.

An operator writes `[rights.OWNER]`, and `[rights."*"]` for all other owners; a key may have rights of its own, which
only narrow its owner's. A key of role admin, and a program that uses Hutch in its own process, act for the operator
and are not bound (`UNBOUND`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import lru_cache
from typing import Any

from hutch.errors import Invalid, Refused
from hutch.model.limits import Limits
from hutch.model.record import Record
from hutch.model.spec import Adjustment, EffectiveSpec, Spec
from hutch.policy import profiles, values
from hutch.policy.profiles import BUILT_IN, Maxima, Profile, ProfileTable

EVERYBODY = "*"
ROOT = ("root", "0")


class Action(StrEnum):
    """Actions that can be denied to a key of role user."""

    CREATE = "create"
    """Create boxes and volumes, import boxes, register MCP servers."""
    SET_RETENTION = "set_retention"
    """Choose whether a box's files stay, when it is made and afterwards."""
    TAKEOVER = "takeover"
    """Take over or destroy a box that another session holds."""
    DESTROY = "destroy"
    """End boxes and remove volumes and MCP servers."""


class CallerMaxima(Maxima, frozen=True, kw_only=True):
    """The most that callers get, even if a profile gives more by itself; None for no maximum."""

    timeout_sec: float | None = None
    """The longest time of one command, job or terminal. A hosted MCP server runs as long as its box, which `ttl_sec`
    bounds."""


class RightsTable(Record, frozen=True, kw_only=True):
    """`[rights.OWNER]` as written, or the rights of one key; None for what it does not set."""

    profiles: tuple[str, ...] | None = None
    """Profiles that may be named. The first is the default of a caller who may not use the server's default."""
    actions: frozenset[Action] | None = None
    root: bool | None = None
    """Whether boxes and commands may run as the box's root, if the profile does not allow it anyway."""
    allow_private: tuple[str, ...] | None = None
    """Private ranges (CIDR) that boxes may be given beyond those of their profile."""
    pull: bool | None = None
    """Whether images that this caller names are pulled; None leaves it to `server.pulls`."""
    maxima: CallerMaxima = CallerMaxima()


NOTHING_WRITTEN = RightsTable()


class Rights(Record, frozen=True, kw_only=True):
    """A caller's rights with every question answered."""

    owner: str = ""
    key: str = ""
    """The id of the key, if it has rights of its own."""
    profiles: tuple[str, ...] | None = None
    """None: all."""
    actions: frozenset[Action] = frozenset(Action)
    root: bool = True
    allow_private: tuple[str, ...] | None = None
    """None: all."""
    pull: bool = True
    maxima: CallerMaxima = CallerMaxima()

    @property
    def place(self) -> str:
        """The setting in which an operator finds what binds this caller."""
        return f"rights.{self.owner}" + (f" and key {self.key}" if self.key else "")


UNBOUND = Rights()

_current: ContextVar[Rights] = ContextVar("hutch_rights", default=UNBOUND)


@contextmanager
def bound_by(rights: Rights) -> Iterator[None]:
    """Bind everything inside, and every task begun inside, to these rights."""
    token = _current.set(rights)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Rights:
    """Return the rights of the caller whose request is being handled."""
    return _current.get()


# --- effective rights ---------------------------------------------------------------------------------------------


def check_table(table: RightsTable, known: Mapping[str, ProfileTable] | None = None) -> None:
    """Raise Invalid for a wrong table; with `known`, also for a profile that is neither built in nor known."""
    for name in table.profiles or ():
        if known is not None and name not in BUILT_IN and name not in known:
            raise Invalid(
                f"there is no profile {name!r}", remedy=f"profiles are {', '.join([*BUILT_IN, *sorted(known)])}",
                details={"field": "profiles"},
            )  # fmt: skip
    if table.profiles == ():
        raise Invalid(
            "profiles names none, and no box has none", remedy='leave out "create" of actions',
            details={"field": "profiles"},
        )  # fmt: skip
    values.check_private_ranges(table.allow_private or ())
    for field in table.maxima.__struct_fields__:
        if (value := getattr(table.maxima, field)) is not None:
            values.check_number(field, value)
            if not value:  # for a clock 0 means no end at all
                raise Invalid(f"{field} 0 is no maximum", remedy="leave it out", details={"field": f"maxima.{field}"})


def of_owner(
    owner: str, tables: Mapping[str, RightsTable], default: str, user_defined: Mapping[str, ProfileTable], *,
    pull: bool = False,
) -> Rights:  # fmt: skip
    """Return the rights of an owner's keys of role user.

    A field that the owner's table leaves out comes from `"*"`; `pull` counts if neither sets it. Without a list every
    profile may be named. But if the default profile has locks or maxima, only it and those that inherit it may be
    named, because a caller could escape them by another.
    """
    written = _filled(tables.get(owner, NOTHING_WRITTEN), tables.get(EVERYBODY, NOTHING_WRITTEN))
    named = written.profiles
    if named is None:
        named = _heirs(default, user_defined)
    return Rights(
        owner=owner, profiles=named, actions=frozenset(Action) if written.actions is None else written.actions,
        root=bool(written.root), allow_private=written.allow_private or (),
        pull=pull if written.pull is None else written.pull, maxima=written.maxima,
    )  # fmt: skip


def narrowed(rights: Rights, key: str, table: RightsTable) -> Rights:
    """Return an owner's rights, narrowed by those of one of its keys."""
    return rights if table == NOTHING_WRITTEN else _narrowed(rights, key, table)


@lru_cache(maxsize=1024)
def _narrowed(rights: Rights, key: str, table: RightsTable) -> Rights:
    """This is cached, because a server needs it with every request of the key."""
    only = Rights(
        key=key, profiles=table.profiles, actions=frozenset(Action) if table.actions is None else table.actions,
        root=table.root is not False, allow_private=table.allow_private, pull=table.pull is not False,
        maxima=table.maxima,
    )  # fmt: skip
    return both(rights, only)


def both(rights: Rights, other: Rights) -> Rights:
    """Return what both allow."""
    maxima = {
        field: min(filter(None, (getattr(rights.maxima, field), getattr(other.maxima, field))), default=None)
        for field in rights.maxima.__struct_fields__
    }
    return rights.but(
        key=other.key or rights.key, profiles=_in_both(rights.profiles, other.profiles),
        actions=rights.actions & other.actions, root=rights.root and other.root,
        allow_private=_ranges_in_both(rights.allow_private, other.allow_private), pull=rights.pull and other.pull,
        maxima=CallerMaxima(**maxima),
    )  # fmt: skip


def _filled(own: RightsTable, others: RightsTable) -> RightsTable:
    named: dict[str, Any] = {
        field: getattr(others if getattr(own, field) is None else own, field)
        for field in ("profiles", "actions", "root", "allow_private", "pull")
    }
    maxima = {
        field: getattr(others.maxima if getattr(own.maxima, field) is None else own.maxima, field)
        for field in own.maxima.__struct_fields__
    }
    return RightsTable(**named, maxima=CallerMaxima(**maxima))


def _heirs(default: str, user_defined: Mapping[str, ProfileTable]) -> tuple[str, ...] | None:
    """List the default profile and those that inherit it; None if it has no locks or maxima to escape."""
    chosen = profiles.resolve(default, user_defined)
    if not chosen.locked and chosen.maxima == Maxima():
        return None
    heirs = (name for name in user_defined if name != default and _inherits(name, default, user_defined))
    return (default, *sorted(heirs))


def _inherits(name: str, parent: str, user_defined: Mapping[str, ProfileTable]) -> bool:
    while name in user_defined:
        name = user_defined[name].inherits
        if name == parent:
            return True
    return False


def _in_both(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if first is None or second is None:
        return second if first is None else first
    return tuple(name for name in first if name in second)


def _ranges_in_both(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if first is None or second is None:
        return second if first is None else first
    inner = [each for each in first if _within(each, second)] + [each for each in second if _within(each, first)]
    return tuple(dict.fromkeys(inner))


def _within(text: str, ranges: tuple[str, ...]) -> bool:
    from ipaddress import ip_network

    network = ip_network(text)
    wider = (ip_network(each) for each in ranges)
    return any(each.version == network.version and network.subnet_of(each) for each in wider)  # type: ignore[arg-type]


# --- requests within rights ---------------------------------------------------------------------------------------


def require(rights: Rights, action: Action) -> None:
    """Raise Refused unless the caller may do this."""
    if action not in rights.actions:
        raise Refused(
            f"this key may not {action}", details={"action": str(action), "setting": f"rights.{rights.owner}.actions"},
            remedy=f"the server's operator can allow it: actions of {rights.place}",
        )  # fmt: skip


def admitted(spec: Spec, rights: Rights, default: str, user_defined: Mapping[str, ProfileTable]) -> Spec:
    """Return the spec with the profile that this caller gets.

    Raises Refused if it names a profile that is not open to it, or asks for root or a private range that neither its
    rights nor the profile give.
    """
    if rights is UNBOUND:
        return spec
    name = spec.profile or default_of(rights, default)
    if rights.profiles is not None and name not in rights.profiles:
        raise Refused(
            f"profile {name} is not open to this key, only {', '.join(rights.profiles) or 'none'}",
            details={"field": "profile", "setting": f"rights.{rights.owner}.profiles"},
            remedy=f"name one of these, or have the server's operator add it to profiles of {rights.place}",
        )
    profile = profiles.resolve(name, user_defined)
    check_user(spec.user, profile.user, rights)
    _check_private(spec.allow_private, profile, rights)
    return spec.but(profile=name)


def check_user(user: str | None, given: str, rights: Rights) -> None:
    """Raise Refused if a box or a command is to run as root, and neither the rights allow it nor `given`, the user of
    the profile or the box, is root anyway."""
    if user in ROOT and not rights.root and given not in ROOT:
        raise Refused(
            "this key may not run anything as the box's root",
            details={"field": "user", "setting": f"rights.{rights.owner}.root"},
            remedy=f"leave out `user`, or have the server's operator set root = true in {rights.place}",
        )


def _check_private(asked: tuple[str, ...], profile: Profile, rights: Rights) -> None:
    if not asked or rights.allow_private is None:
        return
    values.check_private_ranges(asked)
    allowed = (*rights.allow_private, *profile.allow_private)
    for text in asked:
        if not _within(text, allowed):
            raise Refused(
                f"this key may not have the private range {text}" + (f", only {', '.join(allowed)}" if allowed else ""),
                details={"field": "allow_private", "setting": f"rights.{rights.owner}.allow_private"},
                remedy=f"the server's operator can allow it: allow_private of {rights.place}",
            )


def check_pull(image: str, rights: Rights) -> None:
    """Raise Refused if this caller may not have images pulled."""
    if not rights.pull:
        raise Refused(
            f"this key may not have images pulled, and {image[:200]!r} is not here",
            details={"field": "image", "setting": f"rights.{rights.owner}.pull"},
            remedy=f"ask an admin to pull it, or have the server's operator set pull = true in {rights.place}",
        )


def within(spec: EffectiveSpec, profile: Profile, rights: Rights) -> EffectiveSpec:
    """Reduce an effective spec to what this caller may have; adjustments say what was reduced and why."""
    if rights is UNBOUND:
        return spec
    cuts: list[Adjustment] = []
    limits = cut_limits(spec.limits, rights, cuts)
    changes: dict[str, Any] = {}
    for clock in ("idle_timeout_sec", "ttl_sec"):
        changes[clock] = cut_clock(clock, getattr(spec, clock), rights, cuts)
    if Action.SET_RETENTION not in rights.actions and spec.retention is not profile.retention:
        cuts.append(_cut("retention", spec.retention, profile.retention, f"{rights.place} may not set_retention"))
        changes["retention"] = profile.retention
    if spec.user in ROOT and not rights.root and profile.user not in ROOT:  # the user that the image names
        cuts.append(_cut("user", spec.user, profile.user, f"no root by {rights.place}"))
        changes["user"] = profile.user
    if not cuts:
        return spec
    return spec.but(limits=limits, adjustments=(*spec.adjustments, *cuts), **changes)


def check_copy(
    spec: EffectiveSpec, rights: Rights, default: str, user_defined: Mapping[str, ProfileTable]
) -> None:  # fmt: skip
    """Raise Refused unless this caller may have one more box like this one, which somebody with other rights made."""
    if rights is UNBOUND:
        return
    asked = Spec(profile=spec.profile, user=spec.user, allow_private=spec.allow_private)
    admitted(asked, rights, default, user_defined)
    bounded = within(spec, profiles.resolve(spec.profile, user_defined), rights)
    if bounded is spec:
        return
    cuts = [each for each in bounded.adjustments if each not in spec.adjustments]
    raise Refused(
        f"this key may not have a box like this: {', '.join(f'{each.field} {each.asked}' for each in cuts)}",
        details={"field": cuts[0].field, "setting": f"rights.{rights.owner}"},
        remedy="create a box of its own and copy the files, or have the server's operator raise the maxima or give "
        f"the actions of {rights.place}",
    )


def cut_limits(limits: Limits, rights: Rights, cuts: list[Adjustment]) -> Limits:
    """Reduce limits to the maxima of these rights; what is reduced is added to `cuts`."""
    given: dict[str, Any] = {}
    for field in values.LIMIT_NAMES:
        maximum = getattr(rights.maxima, field)
        if maximum is not None and getattr(limits, field) > maximum:
            cuts.append(_cut(field, getattr(limits, field), maximum, f"maximum of {rights.place}"))
            given[field] = maximum
    longest = rights.maxima.timeout_sec
    if longest is not None and not 0 < limits.max_timeout_sec <= longest:
        given["max_timeout_sec"] = longest
    return limits.but(**given) if given else limits


def cut_clock(field: str, seconds: float, rights: Rights, cuts: list[Adjustment]) -> float:
    """Reduce a time after which a box ends to its maximum; 0 means never, which is over every maximum."""
    maximum: float | None = getattr(rights.maxima, field)
    if maximum is None or 0 < seconds <= maximum:
        return seconds
    cuts.append(_cut(field, seconds or "never", maximum, f"maximum of {rights.place}"))
    return maximum


def cut_timeout(seconds: float | None, rights: Rights) -> tuple[float | None, Adjustment | None]:
    """Reduce the timeout of a command or a job of this caller, in any box. None means no end, which is over every
    maximum."""
    maximum = rights.maxima.timeout_sec
    if maximum is None or (seconds is not None and seconds <= maximum):
        return seconds, None
    return maximum, _cut("timeout_sec", "none" if seconds is None else seconds, maximum, f"maximum of {rights.place}")


def visible(names: tuple[str, ...], rights: Rights) -> tuple[str, ...]:
    """Return those of the profiles that the caller may name."""
    return names if rights.profiles is None else tuple(name for name in names if name in rights.profiles)


def default_of(rights: Rights, default: str) -> str:
    """Return the profile of a caller who names none."""
    return default if not rights.profiles or default in rights.profiles else rights.profiles[0]


def _cut(field: str, asked: object, given: object, reason: str) -> Adjustment:
    return Adjustment(field=field, asked=values.text_of(asked), given=values.text_of(given), reason=reason)
