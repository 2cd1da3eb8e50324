"""Rights: what a caller of a server may ask for, whatever profile it names. Pure, but for the caller of this moment.

An operator writes `[rights.OWNER]`, and `[rights."*"]` for every owner who is not named; a key may have rights of its
own, which only narrow its owner's. A key of role admin, and a program that uses Hutch in its own process, act for the
operator: nothing here binds them (`UNBOUND`).
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
    """What a key of role user may be kept from, one by one (P15)."""

    CREATE = "create"
    """Make boxes and volumes, import boxes, register MCP servers."""
    SET_RETENTION = "set_retention"
    """Choose whether a box's files stay, when it is made and afterwards."""
    TAKEOVER = "takeover"
    """Take a box that another session holds, or destroy it all the same."""
    DESTROY = "destroy"
    """End boxes and remove volumes and MCP servers."""


class CallerMaxima(Maxima, frozen=True, kw_only=True):
    """The most that callers get, also where a profile has more by itself; None: no maximum."""

    timeout_sec: float | None = None
    """Of one command, job or terminal. A hosted MCP server runs as long as its box, which `ttl_sec` bounds."""


class RightsTable(Record, frozen=True, kw_only=True):
    """`[rights.OWNER]` as it is written, or what a key has of its own; None: as it is without this table."""

    profiles: tuple[str, ...] | None = None
    """Which profiles may be named. The first is the default of a caller who may not have the server's own."""
    actions: frozenset[Action] | None = None
    root: bool | None = None
    """Whether boxes and commands may run as the box's root, where the profile does not say so already."""
    allow_private: tuple[str, ...] | None = None
    """Private ranges (CIDR) that boxes may be given beyond those of their profile."""
    pull: bool | None = None
    """Whether images are fetched that this caller names; None: as `server.pulls` says."""
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
        """Where an operator finds what binds this caller."""
        return f"rights.{self.owner}" + (f" and key {self.key}" if self.key else "")


UNBOUND = Rights()

_current: ContextVar[Rights] = ContextVar("hutch_rights", default=UNBOUND)


@contextmanager
def bound_by(rights: Rights) -> Iterator[None]:
    """Everything inside, and every task begun inside, is done within these rights."""
    token = _current.set(rights)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Rights:
    """The rights of the caller for whom something is done now."""
    return _current.get()


# --- from what is written to what holds -------------------------------------------------------------------------


def check_table(table: RightsTable, known: Mapping[str, ProfileTable] | None = None) -> None:
    """Invalid if it makes no sense; with `known`, also if it names a profile that is neither built in nor there."""
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
            if not value:  # of a clock, where 0 is no end at all
                raise Invalid(f"{field} 0 is no maximum", remedy="leave it out", details={"field": f"maxima.{field}"})


def of_owner(
    owner: str, tables: Mapping[str, RightsTable], default: str, user_defined: Mapping[str, ProfileTable], *,
    pull: bool = False,
) -> Rights:  # fmt: skip
    """The rights of an owner's keys of role user. A field that its table leaves out is that of `"*"`, and `pull` what
    holds where neither says whether images are fetched.

    Without any list, every profile may be named; but if the operator has set locks or maxima in the default profile,
    only that one and those that inherit it, because a caller would escape them by naming another."""
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
    """What is left of an owner's rights for a key with rights of its own."""
    return rights if table == NOTHING_WRITTEN else _narrowed(rights, key, table)


@lru_cache(maxsize=1024)
def _narrowed(rights: Rights, key: str, table: RightsTable) -> Rights:
    """A server asks it with every request of the key."""
    only = Rights(
        key=key, profiles=table.profiles, actions=frozenset(Action) if table.actions is None else table.actions,
        root=table.root is not False, allow_private=table.allow_private, pull=table.pull is not False,
        maxima=table.maxima,
    )  # fmt: skip
    return both(rights, only)


def both(rights: Rights, other: Rights) -> Rights:
    """What the first and the second allow."""
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
    """The default profile and those that inherit its locks and maxima; None: it has none to escape from."""
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


# --- from what is asked to what is given ------------------------------------------------------------------------


def require(rights: Rights, action: Action) -> None:
    """Refused unless the caller may do this."""
    if action not in rights.actions:
        raise Refused(
            f"this key may not {action}", details={"action": str(action), "setting": f"rights.{rights.owner}.actions"},
            remedy=f"the server's operator can allow it: actions of {rights.place}",
        )  # fmt: skip


def admitted(spec: Spec, rights: Rights, default: str, user_defined: Mapping[str, ProfileTable]) -> Spec:
    """The spec with the profile that this caller gets. Refused if it names one that is not open to it, or asks for
    root or a private range that neither its rights nor the profile give."""
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
    """Refused if a box or a command is to run as root and neither the rights say so nor `given`, the user that the
    profile or the box has anyway."""
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
    """Refused if this image would have to be fetched and this caller may not make the machine do that."""
    if not rights.pull:
        raise Refused(
            f"this key may not have images pulled, and {image[:200]!r} is not here",
            details={"field": "image", "setting": f"rights.{rights.owner}.pull"},
            remedy=f"ask an admin to pull it, or have the server's operator set pull = true in {rights.place}",
        )


def within(spec: EffectiveSpec, profile: Profile, rights: Rights) -> EffectiveSpec:
    """The effective spec, cut to what this caller may have; the adjustments say what was cut, and by what."""
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
    if spec.user in ROOT and not rights.root and profile.user not in ROOT:  # as its image says
        cuts.append(_cut("user", spec.user, profile.user, f"no root by {rights.place}"))
        changes["user"] = profile.user
    if not cuts:
        return spec
    return spec.but(limits=limits, adjustments=(*spec.adjustments, *cuts), **changes)


def cut_limits(limits: Limits, rights: Rights, cuts: list[Adjustment]) -> Limits:
    """The limits within the maxima of these rights; what is cut is added to `cuts`."""
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
    """A time after which a box ends, within its maximum; 0 means never, which is over every maximum."""
    maximum: float | None = getattr(rights.maxima, field)
    if maximum is None or 0 < seconds <= maximum:
        return seconds
    cuts.append(_cut(field, seconds or "never", maximum, f"maximum of {rights.place}"))
    return maximum


def cut_timeout(seconds: float | None, rights: Rights) -> tuple[float | None, Adjustment | None]:
    """How long a command or a job of this caller may run, in whosever box; None: without an end, which is over every
    maximum."""
    maximum = rights.maxima.timeout_sec
    if maximum is None or (seconds is not None and seconds <= maximum):
        return seconds, None
    return maximum, _cut("timeout_sec", "none" if seconds is None else seconds, maximum, f"maximum of {rights.place}")


def visible(names: tuple[str, ...], rights: Rights) -> tuple[str, ...]:
    """Of these profiles, those that the caller may name."""
    return names if rights.profiles is None else tuple(name for name in names if name in rights.profiles)


def default_of(rights: Rights, default: str) -> str:
    """The profile of a caller who names none."""
    return default if not rights.profiles or default in rights.profiles else rights.profiles[0]


def _cut(field: str, asked: object, given: object, reason: str) -> Adjustment:
    return Adjustment(field=field, asked=values.text_of(asked), given=values.text_of(given), reason=reason)
