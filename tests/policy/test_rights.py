"""Rights of owners and keys: what holds without a word, what a table changes, what a key keeps, what is cut."""

import pytest

from hutch.errors import Invalid, Refused
from hutch.model.limits import Limits
from hutch.model.spec import Spec
from hutch.policy.change import Change
from hutch.policy.effective import effective
from hutch.policy.profiles import BUILT_IN, Maxima, ProfileTable
from hutch.policy.rights import (
    UNBOUND,
    Action,
    CallerMaxima,
    Rights,
    RightsTable,
    admitted,
    both,
    check_table,
    default_of,
    narrowed,
    of_owner,
    require,
    within,
)
from tests.policy.machines import ABLE

LOCKED = {
    "company": ProfileTable(locked=frozenset({"network"})),
    "team": ProfileTable(inherits="company"),
    "loose": ProfileTable(inherits="app"),
}


def of(owner: str = "acme", default: str = "default", **tables: RightsTable) -> Rights:
    written = {"*" if name == "all" else name: table for name, table in tables.items()}
    return of_owner(owner, written, default, LOCKED)


def test_without_a_word_every_profile_is_open_but_neither_root_nor_private_ranges_are() -> None:
    """What holds when the operator has said nothing is convenient, and safe (lesson 45)."""
    rights = of()
    assert (rights.profiles, rights.actions, rights.maxima) == (None, frozenset(Action), CallerMaxima())
    assert (rights.root, rights.allow_private) == (False, ())
    for profile in BUILT_IN:
        assert admitted(Spec(profile=profile), rights, "default", LOCKED).profile == profile
    for asked in (Spec(user="root"), Spec(user="0"), Spec(allow_private=("10.0.0.0/8",))):
        with pytest.raises(Refused) as refused:
            admitted(asked, rights, "default", LOCKED)
        assert "rights.acme" in refused.value.remedy
        assert admitted(asked, UNBOUND, "default", LOCKED) is asked, "the operator is bound by nothing"
    assert admitted(Spec(user="1001"), rights, "default", LOCKED).user == "1001"


def test_nobody_leaves_a_locked_default_by_naming_another_profile() -> None:
    """Only the locked profile and its heirs, which inherit the locks, are open (B16) (lesson 45)."""
    rights = of(default="company")
    assert rights.profiles == ("company", "team")
    for profile in ("default", "app", "loose", "no-such"):
        with pytest.raises(Refused, match="company, team"):
            admitted(Spec(profile=profile), rights, "company", LOCKED)
    bounded = {"bounded": ProfileTable(maxima=Maxima(memory_mb=1024)), **LOCKED}
    assert of_owner("acme", {}, "bounded", bounded).profiles == ("bounded",), "maxima bind like locks"
    listed = of(default="company", all=RightsTable(profiles=("company", "app")))
    assert admitted(Spec(profile="app"), listed, "company", LOCKED).profile == "app", "the operator's list is his word"


def test_an_owner_s_table_goes_before_everybody_s_field_by_field() -> None:
    everybody = RightsTable(profiles=("code",), root=True, maxima=CallerMaxima(memory_mb=100, pids=50))
    rights = of(all=everybody, acme=RightsTable(root=False, maxima=CallerMaxima(memory_mb=400)))
    assert (rights.profiles, rights.root) == (("code",), False)
    assert (rights.maxima.memory_mb, rights.maxima.pids) == (400, 50)
    assert default_of(rights, "default") == "code", "who may not have the server's default gets the first"
    assert admitted(Spec(), rights, "default", LOCKED).profile == "code"
    assert of(owner="other", all=everybody).root is True


def test_a_key_s_own_rights_only_narrow() -> None:
    """Members of one owner may be allowed less than he is, never more (P15)."""
    rights = of(acme=RightsTable(profiles=("code", "app"), allow_private=("10.0.0.0/8",), maxima=CallerMaxima(pids=50)))
    wide = RightsTable(profiles=("app", "desktop"), root=True, allow_private=("10.1.0.0/16", "192.168.0.0/16"),
                       maxima=CallerMaxima(pids=90, memory_mb=70), actions=frozenset({Action.CREATE}))  # fmt: skip
    key = narrowed(rights, "k1", wide)
    assert (key.profiles, key.root, key.allow_private) == (("app",), False, ("10.1.0.0/16",))
    assert (key.maxima.pids, key.maxima.memory_mb) == (50, 70)
    assert key.place == "rights.acme and key k1"
    require(key, Action.CREATE)
    with pytest.raises(Refused, match="may not destroy") as refused:
        require(key, Action.DESTROY)
    assert refused.value.details["setting"] == "rights.acme.actions"
    assert narrowed(rights, "k1", RightsTable()) is rights
    assert both(key, UNBOUND) == key
    none = narrowed(rights, "k2", RightsTable(profiles=("desktop",)))
    with pytest.raises(Refused, match="only none"):
        admitted(Spec(), none, "default", LOCKED)


def test_adjustments_say_what_was_cut_and_by_what() -> None:
    """Also what a profile gives by itself, and a clock that never ends."""
    rights = of(acme=RightsTable(
        actions=frozenset({Action.CREATE}), maxima=CallerMaxima(memory_mb=100, timeout_sec=20, ttl_sec=60, pids=4000),
    ))  # fmt: skip
    profile = BUILT_IN["default"]
    asked = effective(Spec(retention="persistent"), profile, ABLE, provider="native")  # type: ignore[arg-type]
    given = within(asked, profile, rights)
    assert (given.limits.memory_mb, given.limits.timeout_sec, given.limits.max_timeout_sec) == (100, 20, 20)
    assert (given.ttl_sec, given.retention, given.limits.pids) == (60, "temporary", 128)
    notes = {each.field: str(each) for each in given.adjustments}
    assert notes["memory_mb"] == "memory_mb 512 → 100: maximum of rights.acme"
    assert notes["ttl_sec"] == "ttl_sec never → 60: maximum of rights.acme"
    assert notes["retention"] == "retention persistent → temporary: rights.acme may not set_retention"
    assert within(given, profile, rights) is given
    assert within(asked, profile, UNBOUND) is asked
    rooted = within(asked.but(user="root"), profile, rights)
    assert rooted.user == "user", "an image's own user is no way to root"
    assert within(rooted.but(user="root"), profile.but(user="root"), rights).user == "root", "the profile's word counts"


def test_a_live_box_changes_within_the_same_bounds() -> None:
    """PATCH is no way around locks, maxima and rights; what is not touched stays (B14, B16)."""
    profile = BUILT_IN["default"].but(locked=frozenset({"pids"}), maxima=Maxima(memory_mb=600, idle_timeout_sec=900))
    rights = of(acme=RightsTable(maxima=CallerMaxima(memory_mb=550, cpus=0.5)))
    change = Change(profile, rights)
    now = profile.limits
    asked = now.but(memory_mb=9000, pids=999, max_timeout_sec=0.0, timeout_sec=500.0)
    given = change.limits(now, asked)
    assert given == now.but(memory_mb=550, max_timeout_sec=120, timeout_sec=120)
    assert given.cpus == 1, "a limit that nobody asked to change is left alone"
    assert change.clock("idle_timeout_sec", 60, 0) == 900
    reasons = {each.field: each.reason for each in change.adjustments}
    assert reasons == {
        "memory_mb": "maximum of rights.acme", "pids": "locked by profile default", "idle_timeout_sec":
        "maximum of profile default", "timeout_sec": "maximum of profile default",
        "max_timeout_sec": "maximum of profile default",
    }  # fmt: skip
    with pytest.raises(Invalid):
        Change(profile, UNBOUND).limits(now, now.but(memory_mb=-1))
    assert Change(profile, UNBOUND).limits(now, now) == Limits(**now.to_plain())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (RightsTable(profiles=("no-such",)), "no-such"),
        (RightsTable(profiles=()), "profiles"),
        (RightsTable(allow_private=("8.8.8.0/24",)), "8.8.8.0/24"),
        (RightsTable(maxima=CallerMaxima(memory_mb=1)), "memory_mb"),
        (RightsTable(maxima=CallerMaxima(ttl_sec=0)), "ttl_sec"),
    ],
)
def test_nonsense_is_said_when_it_is_written(table: RightsTable, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        check_table(table, LOCKED)
