"""From spec to effective spec: locks, maxima, defaults, and every change reported (B4, B16, B17, B19)."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.errors import Invalid, Refused, Unavailable, Unsupported
from hutch.model.capabilities import Capabilities, Missing
from hutch.model.limits import LimitsAsked
from hutch.model.spec import (
    AutoCheckpoint,
    EffectiveSpec,
    Isolation,
    Mount,
    MountMode,
    NetworkMode,
    Retention,
    Spec,
    TtlAction,
    Workspace,
)
from hutch.policy.effective import clamp_timeout, effective, providers_of
from hutch.policy.profiles import BUILT_IN, LOCKABLE, Maxima, Profile, ProfileTable, resolve, value_of
from hutch.policy.values import BOUNDS, LIMIT_NAMES
from tests.policy.machines import ABLE

DEFAULT = BUILT_IN["default"]


def decide(
    spec: Spec | None = None, profile: Profile = DEFAULT, capabilities: Capabilities = ABLE, **options: Any
) -> EffectiveSpec:
    return effective(spec or Spec(), profile, capabilities, provider="native", **options)


def reply(answer: EffectiveSpec) -> list[str]:
    return [str(each) for each in answer.adjustments]


# --- defaults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_empty_spec_gets_the_profile_and_no_adjustment(name: str) -> None:
    profile = BUILT_IN[name]
    answer = decide(Spec(profile=name), profile)
    assert answer.adjustments == ()
    assert answer.limits == profile.limits
    assert (answer.network, answer.read_only_root, answer.workspace) == (
        profile.network,
        profile.read_only_root,
        profile.workspace,
    )
    workdir = profile.workdir or "/workspace"
    assert (answer.image, answer.user, answer.workdir, answer.name) == ("host", "user", workdir, "")
    assert answer.idle_timeout_sec == profile.idle_timeout_sec


def test_what_is_asked_and_allowed_is_given() -> None:
    spec = Spec(
        image="oci:alpine:3.20", workdir="/srv", user="1234", network=NetworkMode.ON, read_only_root=False,
        env={"A": "1"}, secrets={"B": "2"}, labels={"team": "x"}, ports=(8080,), name="my-box", skills="pipeline-1",
        ttl_sec=60, ttl_action=TtlAction.PAUSE, idle_timeout_sec=0, retention=Retention.PERSISTENT,
        auto_checkpoint=AutoCheckpoint.EXEC, allow_private=("10.1.0.0/16",),
        limits=LimitsAsked(cpus=2, memory_mb=2048, timeout_sec=100),
        mounts=(Mount(source="/srv/data", target="/data"),), workspace=Workspace(source="volume:notes"),
    )  # fmt: skip
    answer = decide(spec)
    assert answer.adjustments == ()
    for field in Spec.__struct_fields__:
        if field not in ("profile", "provider", "limits"):
            assert getattr(answer, field) == getattr(spec, field), field
    assert (answer.limits.cpus, answer.limits.memory_mb, answer.limits.timeout_sec) == (2, 2048, 100)


def test_image_order_is_caller_configuration_profile_provider() -> None:
    """The image is the caller's, the configuration's, the profile's or the provider's, in this order (B19)."""
    profile = DEFAULT.but(image="oci:of-profile")
    assert decide(Spec(image="oci:mine"), profile, default_image="oci:of-config").image == "oci:mine"
    assert decide(Spec(), profile, default_image="oci:of-config").image == "oci:of-config"
    assert decide(Spec(), profile).image == "oci:of-profile"
    assert decide(Spec(), provider_image="oci:of-provider").image == "oci:of-provider"
    assert decide(Spec()).image == "host"


def test_a_locked_image_is_the_profiles() -> None:
    profile = DEFAULT.but(image="oci:safe", locked=frozenset({"image"}))
    answer = decide(Spec(image="oci:mine"), profile, default_image="oci:of-config")
    assert answer.image == "oci:safe"
    assert reply(answer) == ["image oci:mine → oci:safe: locked by profile default"]


def test_the_provider_is_the_callers_unless_locked() -> None:
    assert providers_of(Spec(), DEFAULT, "native") == ("native",)
    assert providers_of(Spec(), DEFAULT.but(provider="docker"), "native") == ("docker",)
    assert providers_of(Spec(provider="e2b"), DEFAULT.but(provider="docker"), "native", ("podman",)) == ("e2b",)
    locked = DEFAULT.but(provider="docker", locked=frozenset({"provider"}))
    assert providers_of(Spec(provider="e2b"), locked, "native", ("docker", "podman")) == ("docker", "podman")
    answer = effective(Spec(provider="e2b"), locked, ABLE, provider="docker")
    assert reply(answer) == ["provider e2b → docker: locked by profile default"]


def test_profile_entries_lie_under_the_callers() -> None:
    profile = DEFAULT.but(env={"A": "1", "B": "1"}, mounts=(Mount(source="/srv/p", target="/p"),))
    answer = decide(Spec(env={"B": "2"}, mounts=(Mount(source="/srv/q", target="/q"),)), profile)
    assert answer.env == {"A": "1", "B": "2"}
    assert [mount.target for mount in answer.mounts] == ["/p", "/q"]


def test_a_box_without_workspace_works_in_the_root() -> None:
    assert decide(Spec(workspace=Workspace(mode=MountMode.NONE))).workdir == "/"


def test_paths_are_accepted_where_text_is_meant() -> None:
    mount = Mount(source=Path("/srv/data"), target="/data")  # type: ignore[arg-type]
    assert decide(Spec(mounts=(mount,))).mounts[0].source == "/srv/data"


# --- locks and maxima -----------------------------------------------------------------------------------------


def test_a_value_over_the_maximum_is_clamped_and_reported() -> None:
    """The clamp is reported (B4)."""
    answer = decide(Spec(limits=LimitsAsked(timeout_sec=600)))
    assert answer.limits.timeout_sec == 120
    assert reply(answer) == ["timeout_sec 600 → 120: maximum of profile default"]


def test_a_locked_field_wins_over_the_caller() -> None:
    """A locked field wins over the caller (B16)."""
    spec = Spec(network=NetworkMode.ON, read_only_root=False, workspace=Workspace())
    answer = decide(spec, BUILT_IN["offline_readonly"])
    assert (answer.network, answer.read_only_root, answer.workspace.mode) == (NetworkMode.OFF, True, MountMode.RO)
    assert sorted(reply(answer)) == [
        "network on → off: locked by profile offline_readonly",
        "read-only system false → true: locked by profile offline_readonly",
        "workspace.mode rw → ro: locked by profile offline_readonly",
    ]


def test_locked_entries_are_dropped_and_only_their_names_reported() -> None:
    profile = DEFAULT.but(locked=frozenset({"env", "secrets", "mounts", "labels"}), env={"A": "1"})
    spec = Spec(
        env={"TOKEN": "hunter2"}, secrets={"KEY": "hunter3"}, mounts=(Mount(source="/srv/x", target="/x"),)
    )  # fmt: skip
    answer = decide(spec, profile)
    assert (answer.env, answer.secrets, answer.mounts) == ({"A": "1"}, {}, ())
    assert sorted(reply(answer)) == [
        "env TOKEN → A: locked by profile default",
        "mounts /srv/x:/x:ro → none: locked by profile default",
        "secrets KEY → none: locked by profile default",
    ]


def test_never_is_over_every_maximum_of_a_clock() -> None:
    profile = DEFAULT.but(maxima=Maxima(idle_timeout_sec=3600, ttl_sec=7200), ttl_sec=7200.0)
    answer = decide(Spec(idle_timeout_sec=0, ttl_sec=0), profile)
    assert (answer.idle_timeout_sec, answer.ttl_sec) == (3600, 7200)
    assert reply(answer) == [
        "idle_timeout_sec never → 3600: maximum of profile default",
        "ttl_sec never → 7200: maximum of profile default",
    ]


def test_a_locked_timeout_is_also_the_longest_a_command_may_ask_for() -> None:
    answer = decide(Spec(), DEFAULT.but(locked=frozenset({"timeout_sec"})))
    assert clamp_timeout(100, answer.limits)[0] == 30


NUMBERS = {
    "cpus": st.floats(0.01, 64),
    "memory_mb": st.integers(8, 1 << 16),
    "pids": st.integers(4, 4096),
    "disk_mb": st.integers(1, 1 << 16),
    "open_files": st.integers(16, 1 << 16),
    "timeout_sec": st.floats(0.001, 10_000),
}


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


SPECS = st.builds(
    Spec,
    limits=st.builds(LimitsAsked, **{name: optional(each) for name, each in NUMBERS.items()}),
    network=optional(st.sampled_from([NetworkMode.OFF, NetworkMode.ON])),
    read_only_root=optional(st.booleans()),
    retention=optional(st.sampled_from(Retention)),
    user=optional(st.sampled_from(["user", "root", "77"])),
    image=optional(st.sampled_from(["host", "oci:a", "oci:b"])),
    workdir=optional(st.sampled_from(["/workspace", "/srv"])),
    idle_timeout_sec=optional(st.floats(0, 10_000)),
    ttl_sec=optional(st.floats(0, 10_000)),
    workspace=optional(
        st.builds(Workspace, source=st.sampled_from(["own", "volume:v", "/srv/w"]), mode=st.sampled_from(MountMode))
    ),
    env=st.dictionaries(st.sampled_from("ABC"), st.text("xyz", max_size=3)),
    labels=st.dictionaries(st.sampled_from("abc"), st.text("xyz", max_size=3)),
    ports=st.sampled_from([(), (80,), (80, 443)]),
)

CHILDREN = st.builds(
    lambda **fields: ProfileTable.from_plain(fields),
    inherits=st.sampled_from(sorted(BUILT_IN)),
    locked=st.lists(st.sampled_from(sorted(LOCKABLE)), max_size=6),
    maxima=st.fixed_dictionaries(
        {},
        optional={name: each for name, each in NUMBERS.items() if name != "timeout_sec"}
        | {"idle_timeout_sec": st.floats(1, 5000), "ttl_sec": st.floats(1, 5000)},
    ),
)
"""Profiles with any locks and any maxima."""


@given(spec=SPECS, child=CHILDREN)
def test_maxima_hold_locks_win_and_every_difference_is_reported(spec: Spec, child: ProfileTable) -> None:
    """Maxima hold, locks win, and every difference is reported (B4, B16)."""
    profile = resolve("child", {"child": child})
    answer = decide(spec, profile)
    changed = {each.field for each in answer.adjustments}
    assert len(changed) == len(answer.adjustments), "one line for each field"

    for name in Maxima.__struct_fields__:
        maximum = getattr(profile.maxima, name)
        given_value = getattr(answer if name in ("idle_timeout_sec", "ttl_sec") else answer.limits, name)
        assert maximum is None or 0 < given_value <= maximum
    longest = answer.limits.max_timeout_sec
    assert not longest or answer.limits.timeout_sec <= longest
    assert not profile.limits.max_timeout_sec or 0 < longest <= profile.limits.max_timeout_sec

    for field in LOCKABLE - {"limits", "workspace", "secrets", "provider", "image", "workdir"}:
        if profile.locks(field):
            assert _value(answer, field) == value_of(profile, field), field

    for field in LOCKABLE - {"limits", "workspace", "env", "labels", "secrets", "mounts"}:
        asked = _asked(spec, field)
        if asked is None:
            assert field not in changed, field
        else:
            assert (asked != _value(answer, field)) == (field in changed), field
    for field in ("env", "labels"):
        lost = any(_value(answer, field).get(name) != value for name, value in getattr(spec, field).items())
        assert lost == (field in changed), field


def _value(answer: EffectiveSpec, field: str) -> Any:
    if field in LIMIT_NAMES:
        return getattr(answer.limits, field)
    group, _, part = field.partition(".")
    return getattr(getattr(answer, group), part) if part else getattr(answer, field)


def _asked(spec: Spec, field: str) -> Any:
    """None: not asked."""
    if field in LIMIT_NAMES:
        return getattr(spec.limits, field)
    group, _, part = field.partition(".")
    value = getattr(spec, group)
    if part:
        return None if value is None else getattr(value, part)
    return None if value == () else value


# --- wrong requests -------------------------------------------------------------------------------------------

BAD_NUMBERS = [
    *((name, bad) for name in LIMIT_NAMES for bad in (0, -1)),
    ("cpus", math.nan), ("cpus", math.inf), ("cpus", 1e9), ("timeout_sec", math.nan), ("timeout_sec", math.inf),
    ("timeout_sec", 1e12), ("memory_mb", 1 << 40), ("memory_mb", 1), ("pids", 1 << 30), ("disk_mb", 1 << 50),
    ("open_files", 1 << 40),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bad"), BAD_NUMBERS)
def test_a_limit_that_makes_no_sense_is_invalid_and_named(name: str, bad: Any) -> None:
    """Also where the profile locks or clamps it: a wrong request is never silently mended."""
    for profile in (DEFAULT, DEFAULT.but(locked=frozenset({name}))):
        with pytest.raises(Invalid, match=name) as caught:
            decide(Spec(limits=LimitsAsked(**{name: bad})), profile)
        assert caught.value.details["field"] == name


@pytest.mark.parametrize("name", ["idle_timeout_sec", "ttl_sec"])
@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, 1e15])
def test_a_clock_that_makes_no_sense_is_invalid(name: str, bad: Any) -> None:
    with pytest.raises(Invalid, match=name):
        decide(Spec(**{name: bad}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env": {"": "x"}}, "env"),
        ({"env": {"A=B": "x"}}, "A=B"),
        ({"env": {"A\0": "x"}}, "NUL"),
        ({"env": {"A": "x\0y"}}, r"env\.A contains a NUL"),
        ({"env": {"A": "\udc80"}}, r"env\.A is not valid Unicode"),
        ({"env": {"A": "x" * 131072}}, r"env\.A is longer"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"A": "1"}, "secrets": {"A": "2"}}, "A is named in env and in secrets"),
        ({"labels": {"a b": "x"}}, "a b"),
        ({"labels": {"hutch.box": "x"}}, "kept for Hutch"),
        ({"labels": {"a": "x\ny"}}, r"labels\.a"),
        ({"labels": {"a": "x" * 300}}, r"labels\.a"),
        ({"labels": {f"a{i}": "" for i in range(65)}}, "more than 64"),
        ({"name": ""}, "name is ''"),
        ({"name": "../x"}, "name"),
        ({"name": "x" * 64}, "name"),
        ({"workdir": "src"}, "absolute"),
        ({"workdir": "/a/../b"}, "'..'"),
        ({"workdir": "/a\0b"}, "NUL"),
        ({"ports": (0,)}, "ports has 0"),
        ({"ports": (65536,)}, "ports has 65536"),
        ({"ports": (80, 80)}, "twice"),
        ({"ports": (True,)}, "ports"),
        ({"user": "alice"}, "user is 'alice'"),
        ({"user": "65536"}, "user"),
        ({"user": "-1"}, "user"),
        ({"user": "٣"}, "user"),
        ({"image": "python:3.12"}, "image is 'python:3.12'"),
        ({"image": ""}, None),
        ({"image": "oci:"}, "needs a reference"),
        ({"image": "host:x"}, "takes no reference"),
        ({"image": "dir:rootfs"}, "absolute"),
        ({"allow_private": ("10.0.0.1/8",)}, "host bits"),
        ({"allow_private": ("nonsense",)}, "nonsense"),
        ({"allow_private": ("0.0.0.0/0",)}, "private range"),
        ({"allow_private": ("8.8.8.0/24",)}, "private range"),
        ({"allow_private": ("127.0.0.0/8",)}, "private range"),
        ({"allow_private": ("::/0",)}, "no IPv6"),
        ({"allow_private": ("10.0.0.0/8", "fd00::/8")}, "no IPv6"),
        ({"workspace": Workspace(source="notes")}, "'own', 'volume:NAME'"),
        ({"workspace": Workspace(source="volume:../x")}, "does not name a volume"),
        ({"limits": LimitsAsked(memory_mb="512")}, "memory_mb"),  # type: ignore[arg-type]
        ({"env": {"A": object()}}, "no place in a spec"),
    ],
)
def test_a_wrong_value_is_invalid(fields: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert decide(Spec(**fields)).image == "host", "an empty image is none"
        return
    with pytest.raises(Invalid, match=message):
        decide(Spec(**fields))


@pytest.mark.parametrize(
    "target",
    ["/", "//", "/proc", "/proc/1", "/sys", "/dev/shm", "/etc", "/etc/passwd", "/usr/bin", "/lib64", "/run",
     "/workspace", "/workspace/", "/tmp", "/var", "data", "", "/data/../etc"],
)  # fmt: skip
def test_a_mount_may_not_cover_the_box_itself(target: str) -> None:
    with pytest.raises(Invalid, match="target"):
        decide(Spec(mounts=(Mount(source="/srv/x", target=target),)))


@pytest.mark.parametrize("targets", [("/a", "/a"), ("/a", "/a/"), ("/a", "/a/b"), ("/a/b/c", "/a")])
def test_mounts_do_not_share_a_place(targets: tuple[str, str]) -> None:
    with pytest.raises(Invalid, match=r"twice|inside each other"):
        decide(Spec(mounts=tuple(Mount(source="/srv/x", target=target) for target in targets)))


def test_neighbours_and_places_in_the_workspace_are_fine() -> None:
    targets = ("/data", "/data2", "/workspace/.skills/x", "/var/lib/x", "/tmp/x")
    answer = decide(Spec(mounts=tuple(Mount(source="/srv/x", target=target) for target in targets)))
    assert tuple(mount.target for mount in answer.mounts) == targets


def test_an_odd_path_is_normalised_and_reported() -> None:
    answer = decide(Spec(workdir="//workspace//src/./", mounts=(Mount(source="/srv/x", target="/data/"),)))
    assert (answer.workdir, answer.mounts[0].target) == ("/workspace/src", "/data")
    assert {each.field for each in answer.adjustments} == {"workdir", "mounts"}


def test_an_error_about_a_secret_does_not_show_it() -> None:
    """An error about a secret does not show it (lesson 37)."""
    for bad in ("hunter2\0", "hunter2" * 30000, "hunter2\udc80"):
        with pytest.raises(Invalid) as caught:
            decide(Spec(secrets={"KEY": bad}))
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in str(caught.value.to_wire())


# --- what the provider can do ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "without", "what"),
    [
        ({"network": NetworkMode.ON}, {"networks": (NetworkMode.OFF,)}, "networks.on"),
        ({"image": "oci:x"}, {"images": ("host",)}, "images.oci"),
        ({"retention": Retention.PERSISTENT}, {"persistent": False}, "persistent"),
        ({"read_only_root": False}, {"writable_root": False}, "writable_root"),
        ({"mounts": (Mount(source="/srv/x", target="/x"),)}, {"mounts": False}, "mounts"),
        ({"workspace": Workspace(source="/srv/x")}, {"mounts": False}, "mounts"),
        ({"ports": (80,)}, {"ports": False}, "ports"),
        ({"user": "root"}, {"users": ("user",)}, "users.root"),
        ({"user": "0"}, {"users": ("user",)}, "users.root"),
        ({"user": "77"}, {"uid_range": False}, "uid_range"),
    ],
)
def test_what_a_provider_cannot_do_is_unsupported_in_its_own_words(
    fields: dict[str, Any], without: dict[str, Any], what: str
) -> None:
    decide(Spec(**fields))
    weak = ABLE.but(**without)
    with pytest.raises(Unsupported) as silent:
        decide(Spec(**fields), capabilities=weak)
    assert silent.value.remedy
    telling = weak.but(missing=(Missing(what=what, reason="the moon is full", remedy="wait a week"),))
    with pytest.raises(Unsupported, match="the moon is full") as caught:
        decide(Spec(**fields), capabilities=telling)
    assert caught.value.remedy == "wait a week"
    assert caught.value.details["provider"] == "native"


def test_an_allow_list_of_hosts_is_not_built() -> None:
    """Fails closed: even a provider that says it has the mode is not asked for it."""
    capabilities = ABLE.but(networks=tuple(NetworkMode))
    with pytest.raises(Unsupported, match="allowlist is not built"):
        decide(Spec(network=NetworkMode.ALLOWLIST), capabilities=capabilities)


def test_a_wall_that_is_too_weak_is_refused() -> None:
    with pytest.raises(Refused, match="isolation namespaces or stronger"):
        decide(capabilities=ABLE.but(isolation=Isolation.NONE))
    strong = DEFAULT.but(min_isolation=Isolation.GVISOR)
    with pytest.raises(Refused, match="isolation gvisor"):
        decide(profile=strong)
    assert decide(profile=strong, capabilities=ABLE.but(isolation=Isolation.VM)).min_isolation is Isolation.GVISOR


def test_a_provider_that_is_not_usable_says_why() -> None:
    dead = ABLE.but(usable=False, reason="no user namespaces", remedy="sysctl this")
    with pytest.raises(Unavailable, match="no user namespaces") as caught:
        decide(capabilities=dead)
    assert caught.value.remedy == "sysctl this"


def test_a_mount_of_mode_none_needs_nothing() -> None:
    spec = Spec(mounts=(Mount(source="/srv/x", target="/x", mode=MountMode.NONE),))
    assert decide(spec, capabilities=ABLE.but(mounts=False)).mounts == spec.mounts


# --- timeouts of single commands ------------------------------------------------------------------------------


def test_a_command_without_timeout_gets_the_default() -> None:
    assert clamp_timeout(None, DEFAULT.limits) == (30, None)


def test_a_timeout_over_the_maximum_is_clamped_and_reported() -> None:
    """A timeout over the maximum is clamped and reported (B4)."""
    seconds, adjustment = clamp_timeout(600, DEFAULT.limits)
    assert seconds == 120
    assert str(adjustment) == "timeout_sec 600 → 120: maximum of the box's profile"


def test_without_a_maximum_any_sensible_timeout_is_given() -> None:
    assert clamp_timeout(100_000, BUILT_IN["mcp"].limits) == (100_000, None)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, 1e12, True, "30"])
def test_a_timeout_that_makes_no_sense_is_invalid(bad: Any) -> None:
    """Invalid values are refused, not silently defaulted (P17)."""
    with pytest.raises(Invalid, match="timeout_sec"):
        clamp_timeout(bad, DEFAULT.limits)


@given(st.none() | st.floats(*BOUNDS["timeout_sec"]))
def test_no_timeout_is_ever_over_the_maximum(asked: float | None) -> None:
    seconds, adjustment = clamp_timeout(asked, DEFAULT.limits)
    assert 0 < seconds <= DEFAULT.limits.max_timeout_sec
    assert (adjustment is not None) == (asked is not None and asked != seconds)
