"""Profiles: the built-in table, inheritance, locks and maxima (B16)."""

import pytest

from hutch.errors import ConfigError, NotFound
from hutch.model.limits import Limits
from hutch.model.spec import Isolation, MountMode, NetworkMode
from hutch.policy.profiles import BUILT_IN, Profile, ProfileTable, resolve

# The table of the design: network, cpus, memory, pids, disk, read-only root, workspace, timeout, maximum, idle.
TABLE = {
    "default": ("off", 1, 512, 128, 1024, True, "rw", 30, 120, 1800),
    "offline_readonly": ("off", 0.5, 256, 64, 256, True, "ro", 30, 60, 600),
    "network_basic": ("on", 1, 512, 128, 1024, True, "rw", 30, 120, 1800),
    "network_extended": ("on", 2, 1024, 256, 4096, False, "rw", 60, 300, 1800),
    "code": ("off", 2, 1024, 256, 4096, False, "rw", 60, 300, 600),
    "app": ("on", 2, 1024, 256, 4096, False, "rw", 60, 300, 1800),
    "desktop": ("on", 2, 2048, 512, 4096, False, "rw", 60, 900, 900),
    "e2b": ("on", 2, 1024, 512, 4096, False, "rw", 300, 0, 0),
    "mcp": ("on", 1, 1536, 256, 4096, False, "ro", 120, 0, 0),
}


def table(**fields: object) -> ProfileTable:
    return ProfileTable.from_plain(fields)


@pytest.mark.parametrize("name", TABLE)
def test_built_in_profiles_have_the_values_of_the_design(name: str) -> None:
    """Built in profiles have the values of the design (B16, B17)."""
    profile = resolve(name, {})
    limits = profile.limits
    assert (
        profile.network, limits.cpus, limits.memory_mb, limits.pids, limits.disk_mb, profile.read_only_root,
        profile.workspace.mode, limits.timeout_sec, limits.max_timeout_sec, profile.idle_timeout_sec,
    ) == TABLE[name]  # fmt: skip
    assert profile.description
    assert profile.min_isolation is Isolation.NAMESPACES
    assert not profile.accept_unenforced


def test_there_are_no_other_built_in_profiles_and_only_one_has_locks() -> None:
    assert set(BUILT_IN) == set(TABLE)
    assert {name: set(each.locked) for name, each in BUILT_IN.items() if each.locked} == {
        "offline_readonly": {"network", "read_only_root", "workspace.mode"}
    }


def test_every_profile_survives_json() -> None:
    for profile in BUILT_IN.values():
        assert Profile.from_json(profile.to_json()) == profile


def test_a_child_changes_what_it_names_and_inherits_the_rest() -> None:
    """User-defined profiles (B16)."""
    profile = resolve(
        "big",
        {
            "big": table(inherits="wide", limits={"memory_mb": 4096}, locked=["network"], env={"B": "2"}),
            "wide": table(inherits="code", network="on", env={"A": "1"}, labels={"team": "x"}),
        },
    )
    assert profile.name == "big"
    assert profile.inherits == "wide"
    assert profile.network is NetworkMode.ON
    assert profile.limits == BUILT_IN["code"].limits.but(memory_mb=4096)
    assert profile.env == {"A": "1", "B": "2"}
    assert profile.labels == {"team": "x"}
    assert profile.locks("network")
    assert profile.idle_timeout_sec == BUILT_IN["code"].idle_timeout_sec


def test_a_profile_inherits_default_unless_it_says_so() -> None:
    assert resolve("mine", {"mine": table()}).but(name="default", inherits=None) == BUILT_IN["default"]


def test_locking_a_group_locks_its_parts() -> None:
    profile = resolve("mine", {"mine": table(locked=["limits", "workspace"])})
    assert all(profile.locks(field) for field in ("cpus", "timeout_sec", "workspace.mode", "workspace.source"))
    assert not profile.locks("network")


def test_locks_are_inherited_and_a_locked_field_stays_as_it_is() -> None:
    assert resolve("mine", {"mine": table(inherits="offline_readonly")}).locks("network")
    with pytest.raises(ConfigError, match="network is locked by profile offline_readonly"):
        resolve("mine", {"mine": table(inherits="offline_readonly", network="on")})
    with pytest.raises(ConfigError, match=r"workspace\.mode is locked"):
        resolve("mine", {"mine": table(inherits="offline_readonly", workspace={"mode": "rw"})})
    # Saying the same again is no change.
    same = resolve("mine", {"mine": table(inherits="offline_readonly", network="off")})
    assert same.workspace.mode is MountMode.RO


def test_a_cycle_is_an_error_that_names_the_chain() -> None:
    tables = {"a": table(inherits="b"), "b": table(inherits="c"), "c": table(inherits="a")}
    with pytest.raises(ConfigError, match="a → b → c → a"):
        resolve("a", tables)
    with pytest.raises(ConfigError, match="me → me"):
        resolve("me", {"me": table(inherits="me")})


def test_an_unknown_parent_is_an_error_that_names_the_chain() -> None:
    with pytest.raises(ConfigError, match="a → b → nobody"):
        resolve("a", {"a": table(inherits="b"), "b": table(inherits="nobody")})


def test_an_unknown_profile_is_not_found_and_the_remedy_lists_what_there_is() -> None:
    with pytest.raises(NotFound) as caught:
        resolve("defualt", {"mine": table()})
    assert "mine" in caught.value.remedy
    assert "offline_readonly" in caught.value.remedy


def test_a_built_in_profile_cannot_be_redefined() -> None:
    with pytest.raises(ConfigError, match="built in and cannot be redefined") as caught:
        resolve("code", {"code": table(network="on")})
    assert 'inherits = "code"' in caught.value.remedy
    with pytest.raises(ConfigError, match="built in"):
        resolve("mine", {"mine": table(inherits="code"), "code": table(inherits="default")})


def test_a_lower_maximum_takes_an_inherited_default_with_it() -> None:
    profile = resolve(
        "mine",
        {
            "mine": table(
                limits={"max_timeout_sec": 10}, maxima={"memory_mb": 128, "idle_timeout_sec": 60, "ttl_sec": 9}
            )
        },
    )
    assert profile.limits.timeout_sec == 10
    assert profile.limits.memory_mb == 128
    assert profile.idle_timeout_sec == 60
    assert profile.ttl_sec == 9, "no end at all is over every maximum"


@pytest.mark.parametrize(
    "fields",
    [
        {"limits": {"timeout_sec": 600}},
        {"limits": {"memory_mb": 600}, "maxima": {"memory_mb": 500}},
        {"idle_timeout_sec": 0, "maxima": {"idle_timeout_sec": 500}},
    ],
)
def test_a_default_over_its_own_maximum_is_an_error(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="over its maximum"):
        resolve("mine", {"mine": table(**fields)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"locked": ["netwrok"]}, "'netwrok' cannot be locked"),
        ({"accept_unenforced": ["ram"]}, "'ram' is no limit"),
        ({"accept_unenforced": ["cpus"], "strict": True}, "exclude each other"),
        ({"limits": {"memory_mb": -1}}, "memory_mb is -1"),
        ({"maxima": {"cpus": 0}}, "cpus is 0"),
        ({"limits": {"timeout_sec": float("nan")}}, "timeout_sec is nan"),
        ({"idle_timeout_sec": -3}, "idle_timeout_sec is -3"),
        ({"user": "alice"}, "user is 'alice'"),
        ({"ports": [0]}, "ports has 0"),
        ({"env": {"A=B": "x"}}, "'A=B'"),
        ({"labels": {"": "x"}}, "labels"),
        ({"allow_private": ["0.0.0.0/0"]}, "does not lie within a private range"),
        ({"mounts": [{"source": "/srv/x", "target": "/etc"}]}, "'/etc'"),
        ({"workdir": "src"}, "workdir is 'src'"),
    ],
)
def test_a_wrong_value_shows_when_the_profile_is_resolved(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"profile mine: .*{message}"):
        resolve("mine", {"mine": table(**fields)})


def test_a_profile_needs_a_proper_name() -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a profile"):
        resolve("a b", {"a b": table()})


def test_limits_know_all_their_fields() -> None:
    assert set(Limits.__struct_fields__) == {
        "cpus", "memory_mb", "pids", "disk_mb", "open_files", "timeout_sec", "max_timeout_sec",
    }  # fmt: skip
