"""Grades: a limit that nothing holds is refused, and `strict` asks for a cgroup or a quota."""

import pytest

from hutch.errors import Refused
from hutch.model.capabilities import Missing
from hutch.model.limits import EnforcedBy
from hutch.model.spec import Retention, Spec
from hutch.policy import grades
from hutch.policy.effective import effective
from hutch.policy.profiles import BUILT_IN
from hutch.policy.values import LIMIT_NAMES
from tests.policy.machines import ABLE, STRONG

DEFAULT = BUILT_IN["default"]
PLAIN = effective(Spec(), DEFAULT, ABLE, provider="native")
STRONGER = ("cpus", "memory_mb", "pids", "disk_mb")


@pytest.mark.parametrize("profile", BUILT_IN.values(), ids=lambda profile: profile.name)
@pytest.mark.parametrize("limit", LIMIT_NAMES)
def test_every_built_in_profile_refuses_a_limit_that_nothing_holds(profile: object, limit: str) -> None:
    weak = ABLE.but(grades=STRONG.but(**{limit: EnforcedBy.NONE}))
    with pytest.raises(Refused, match=f"{limit} is not held .*nothing enforces it") as caught:
        grades.check(PLAIN, profile, weak)  # type: ignore[arg-type]
    assert caught.value.details == {"field": limit, "enforced_by": "none", "provider": "native"}
    assert caught.value.remedy


@pytest.mark.parametrize("limit", STRONGER)
@pytest.mark.parametrize("grade", [EnforcedBy.RLIMIT, EnforcedBy.WATCHDOG])
def test_weaker_grades_are_fine_unless_strict(limit: str, grade: EnforcedBy) -> None:
    weak = ABLE.but(grades=STRONG.but(**{limit: grade}))
    assert grades.check(PLAIN, DEFAULT, weak) == ()
    for strict in ({"strict": True}, {}):
        profile = DEFAULT if strict else DEFAULT.but(strict=True)
        with pytest.raises(Refused, match=f"{limit} is not held .*only a {grade}"):
            grades.check(PLAIN, profile, weak, **strict)


def test_strict_is_satisfied_where_the_kernel_has_nothing_stronger() -> None:
    assert grades.check(PLAIN, DEFAULT, ABLE, strict=True) == ()


def test_the_refusal_quotes_the_provider() -> None:
    """Creation errors quote the obstacle and the exact fix (lesson 34)."""
    weak = ABLE.but(
        grades=STRONG.but(memory_mb=EnforcedBy.NONE),
        missing=(Missing(what="grades.memory_mb", reason="the cgroup is not delegated", remedy="set Delegate=yes"),),
    )
    with pytest.raises(Refused, match="the cgroup is not delegated") as caught:
        grades.check(PLAIN, DEFAULT, weak)
    assert caught.value.remedy.startswith("set Delegate=yes")


def test_strict_explains_why_there_is_no_control_group() -> None:
    """The watchdog holds the limit, so nothing but the group itself is missing (lesson 34)."""
    reply = Missing(what="cgroups", reason="the cgroup is not delegated", remedy="set Delegate=yes")
    weak = ABLE.but(grades=STRONG.but(cpus=EnforcedBy.WATCHDOG), missing=(reply,))
    assert grades.check(PLAIN, DEFAULT, weak) == ()
    with pytest.raises(Refused, match=r"only a watchdog .*the cgroup is not delegated") as caught:
        grades.check(PLAIN, DEFAULT, weak, strict=True)
    assert caught.value.remedy.startswith("set Delegate=yes")


def test_a_profile_may_accept_a_limit_that_nothing_holds_and_the_box_says_so() -> None:
    weak = ABLE.but(grades=STRONG.but(cpus=EnforcedBy.NONE))
    profile = DEFAULT.but(accept_unenforced=frozenset({"cpus"}))
    answer = effective(Spec(), profile, weak, provider="native")
    assert [str(each) for each in answer.adjustments] == ["cpus 1 → not enforced: accepted by profile default"]
    with pytest.raises(Refused):
        effective(Spec(), profile, weak, provider="native", strict=True)


@pytest.mark.parametrize(
    ("spec", "grade"),
    [
        (Spec(read_only_root=True), EnforcedBy.QUOTA),
        (Spec(read_only_root=True, retention=Retention.PERSISTENT), EnforcedBy.WATCHDOG),
        (Spec(read_only_root=False), EnforcedBy.RLIMIT),
        (Spec(read_only_root=False, retention=Retention.PERSISTENT), EnforcedBy.WATCHDOG),
    ],
)
def test_the_grade_of_the_disk_is_that_of_the_very_box(spec: Spec, grade: EnforcedBy) -> None:
    """`strict` asks what holds this box, and of two things that hold its disk the weaker one counts (B17)."""
    able = ABLE.but(disk_if_persistent=EnforcedBy.WATCHDOG, disk_if_writable_root=EnforcedBy.RLIMIT)
    made = effective(spec, DEFAULT, able, provider="native")
    assert able.grades_of(made) == STRONG.but(disk_mb=grade)
    if grade is EnforcedBy.QUOTA:
        assert effective(spec, DEFAULT, able, provider="native", strict=True) == made
        return
    with pytest.raises(Refused, match=f"disk_mb is not held .*only a {grade}") as caught:
        effective(spec, DEFAULT, able, provider="native", strict=True)
    assert caught.value.remedy.startswith("make it a temporary box with a read-only root")
