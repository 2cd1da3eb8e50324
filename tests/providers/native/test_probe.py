"""What the native engine says of a machine: one truth for grades, for what is missing, and for doctor."""

import pytest

from hutch.doctor import checks
from hutch.doctor.facts import Facts
from hutch.errors import Unsupported
from hutch.linux import landlock
from hutch.linux.cgroup_detect import CgroupSupport
from hutch.model.capabilities import Pause
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import Retention
from hutch.providers.native import orders, probe
from hutch.providers.native.network.availability import Availability

ALL = CgroupSupport("v2", memory=True, pids=True, cpu=True, freezer=True, reason="")
NOTHING = CgroupSupport("none", memory=False, pids=False, cpu=False, freezer=False, reason="nothing is delegated")
BLIND = "/proc hides the guest"


def machine(groups: CgroupSupport = ALL, *, blind: str = "", abi: int = 6) -> probe.Machine:
    network = Availability(usable=True, how="pasta")
    return probe.Machine(has_id_ranges=True, cgroups=groups, network=network, blind=blind, landlock=abi)


def said(of: probe.Machine) -> set[str]:
    return {missing.what for missing in probe.missing(of)}


def test_a_machine_with_everything_misses_nothing() -> None:
    assert said(machine()) == set()


def test_what_a_watchdog_or_signals_provide_is_not_missing() -> None:
    """Without control groups the limits are held by weaker means, and only the groups are missing (B17)."""
    found = probe.capabilities(machine(NOTHING))
    assert (found.grades.cpus, found.grades.memory_mb, found.pause) == ("watchdog", "watchdog", Pause.SIGNALS)
    assert {(each.what, each.reason) for each in found.missing} == {("cgroups", "nothing is delegated")}
    assert all(each.remedy for each in found.missing)


def test_what_nothing_holds_is_missing_with_both_reasons() -> None:
    found = probe.capabilities(machine(NOTHING, blind=BLIND))
    assert (found.grades.cpus, found.grades.memory_mb, found.pause) == ("none", "none", Pause.NONE)
    assert found.disk_if_persistent is EnforcedBy.NONE, "only the watchdog looks at a directory"
    unheld = {each.what: each.reason for each in found.missing if each.what != "cgroups"}
    assert set(unheld) == {"grades.cpus", "grades.memory_mb", "pause"}
    assert all("nothing is delegated" in reason and BLIND in reason for reason in unheld.values())


def test_layers_that_cannot_be_mapped_hold_nothing_of_a_box() -> None:
    """Linux 5.12 to 5.18, as root."""
    found = probe.capabilities(machine()._replace(mapped_layers=False))
    assert not found.persistent and not found.writable_root
    assert {each.what for each in found.missing} == {"persistent", "writable_root"}
    spec = orders.canary_spec()
    orders.check_layers(spec, mapped=False)
    for refused in (spec.but(read_only_root=False), spec.but(retention=Retention.PERSISTENT)):
        orders.check_layers(refused, mapped=True)
        with pytest.raises(Unsupported, match=r"5\.19"):
            orders.check_layers(refused, mapped=False)


def test_where_groups_count_no_sockets_a_watchdog_holds_memory() -> None:
    """The grade of memory is true on each kind of control group: buffers of sockets are memory too."""
    uncounted = machine(ALL._replace(mode="v1", sockets=False))
    assert probe.grades(machine()).memory_mb is EnforcedBy.CGROUP
    assert probe.grades(uncounted).memory_mb is EnforcedBy.WATCHDOG
    assert probe.grades(uncounted._replace(blind=BLIND)).memory_mb is EnforcedBy.NONE
    (answer,) = probe.missing(uncounted)
    assert answer.what == "cgroups" and "sockets" in answer.reason and "cgroup v2" in answer.remedy


@pytest.mark.parametrize("blind", ["", BLIND])
@pytest.mark.parametrize("absent", [(), ("memory",), ("cpu", "freezer"), ("pids",), ("memory", "pids", "cpu")])
def test_nothing_is_claimed_and_missing_at_once(absent: tuple[str, ...], blind: str) -> None:
    found = probe.capabilities(machine(ALL._replace(**dict.fromkeys(absent, False)), blind=blind))
    answer = {each.what for each in found.missing}
    for name in Grades.__struct_fields__:
        assert (f"grades.{name}" in answer) == (getattr(found.grades, name) is EnforcedBy.NONE), name
    assert ("pause" in answer) == (found.pause is Pause.NONE)
    assert ("cgroups" in answer) == bool(absent)


@pytest.mark.parametrize("abi", range(8))
def test_landlock_is_missing_exactly_where_no_box_enters_a_domain(abi: int) -> None:
    """Boxes, `hutch providers` and `hutch doctor` agree from which version on it is used, and on the remedy."""
    enforced = landlock.Domain(abi).enforced
    answer = [each for each in probe.missing(machine(abi=abi)) if each.what == "landlock"]
    (finding,) = checks.landlock(Facts(landlock=abi))
    assert (not answer, finding.fix == "") == (enforced, enforced)
    if answer:
        assert answer[0].remedy == finding.fix == landlock.REMEDY
        assert "5.19" in finding.fix
