"""Grades: a limit that nothing holds is refused, and `strict` asks for a cgroup or a quota."""

import pytest

from hutch.errors import Refused
from hutch.model.capabilities import Missing
from hutch.model.limits import EnforcedBy
from hutch.model.spec import Spec
from hutch.policy import grades
from hutch.policy.effective import effective
from hutch.policy.profiles import BUILT_IN
from hutch.policy.values import LIMIT_NAMES
from tests.policy.machines import ABLE, STRONG

DEFAULT = BUILT_IN["default"]
STRONGER = ("cpus", "memory_mb", "pids", "disk_mb")


@pytest.mark.parametrize("profile", BUILT_IN.values(), ids=lambda profile: profile.name)
@pytest.mark.parametrize("limit", LIMIT_NAMES)
def test_every_built_in_profile_refuses_a_limit_that_nothing_holds(profile: object, limit: str) -> None:
    weak = ABLE.but(grades=STRONG.but(**{limit: EnforcedBy.NONE}))
    with pytest.raises(Refused, match=f"{limit} is not held .*nothing enforces it") as caught:
        grades.check(profile, weak)  # type: ignore[arg-type]
    assert caught.value.details == {"field": limit, "enforced_by": "none", "provider": "native"}
    assert caught.value.remedy


@pytest.mark.parametrize("limit", STRONGER)
@pytest.mark.parametrize("grade", [EnforcedBy.RLIMIT, EnforcedBy.WATCHDOG])
def test_weaker_grades_are_fine_unless_strict(limit: str, grade: EnforcedBy) -> None:
    weak = ABLE.but(grades=STRONG.but(**{limit: grade}))
    assert grades.check(DEFAULT, weak) == ()
    for strict in ({"strict": True}, {}):
        profile = DEFAULT if strict else DEFAULT.but(strict=True)
        with pytest.raises(Refused, match=f"{limit} is not held .*only a {grade}"):
            grades.check(profile, weak, **strict)


def test_strict_is_satisfied_where_the_kernel_has_nothing_stronger() -> None:
    assert grades.check(DEFAULT, ABLE, strict=True) == ()


def test_the_refusal_quotes_the_provider() -> None:
    """Lesson 34: creation errors quote the obstacle and the exact fix."""
    weak = ABLE.but(
        grades=STRONG.but(memory_mb=EnforcedBy.NONE),
        missing=(Missing(what="grades.memory_mb", reason="the cgroup is not delegated", remedy="set Delegate=yes"),),
    )
    with pytest.raises(Refused, match="the cgroup is not delegated") as caught:
        grades.check(DEFAULT, weak)
    assert caught.value.remedy.startswith("set Delegate=yes")


def test_a_profile_may_accept_a_limit_that_nothing_holds_and_the_box_says_so() -> None:
    weak = ABLE.but(grades=STRONG.but(cpus=EnforcedBy.NONE))
    profile = DEFAULT.but(accept_unenforced=frozenset({"cpus"}))
    answer = effective(Spec(), profile, weak, provider="native")
    assert [str(each) for each in answer.adjustments] == ["cpus 1 → not enforced: accepted by profile default"]
    with pytest.raises(Refused):
        effective(Spec(), profile, weak, provider="native", strict=True)
