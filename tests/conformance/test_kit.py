"""The kit itself: what it makes of providers that refuse, only pretend to, hang, or raise what they may not."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from hutch.conformance.kit import Finding, Outcome, Report, run
from hutch.conformance.registry import checks, has, refusal_of
from hutch.errors import Invalid, Unavailable, Unsupported
from hutch.model.capabilities import Capabilities, Missing, Pause
from hutch.model.spec import Isolation, Order, Retention
from hutch.providers.base import Command, InstanceRecord, Provider
from hutch.providers.handles import Process
from tests.conformance.mutants.mutant import Mutant, MutantInstance
from tests.conformance.test_native import native

NEEDS = {
    need: check.name
    for check in checks()
    for need in check.needs.split()
    if need != "isolation" and not need.startswith("grades.")
}


def without(found: Capabilities, need: str, reason: str = "not here") -> Capabilities:
    """The same capabilities without one, and with the reason."""
    field, _, value = need.partition(".")
    claimed = getattr(found, field)
    less = tuple(each for each in claimed if each != value) if isinstance(claimed, tuple) else False
    missing = (*found.missing, Missing(what=need, reason=reason)) if reason else found.missing
    return found.but(**{field: Pause.NONE if field == "pause" else less}, missing=missing)


class Modest(Mutant):
    """Does what it says it cannot do."""

    need = ""
    reason = "not here"

    async def probe(self) -> Capabilities:
        return without(await super().probe(), self.need, self.reason)


def of(kind: type[Mutant], **changes: object) -> Callable[[], Provider]:
    return lambda: type("Changed", (kind,), changes)(native(), [])


def found(make: Callable[[], Provider], *select: str, patience: float = 20.0) -> Report:
    return asyncio.run(run(make, select, patience=patience))


async def probed() -> Capabilities:
    provider = native()
    try:
        return await provider.probe()
    finally:
        await provider.close()


@pytest.mark.parametrize("need", [need for need in NEEDS if refusal_of(need) and need != "networks.on"])
def test_a_capability_that_is_disclaimed_and_works_all_the_same_is_a_failure(need: str) -> None:
    """A provider without a capability has to refuse it; where native lacks it too, it does."""
    report = found(of(Modest, need=need), NEEDS[need])
    wanted = Outcome.FAILED if has(asyncio.run(probed()), need) else Outcome.REFUSED
    assert [finding.outcome for finding in report.findings] == [wanted], report.findings


def test_a_capability_that_is_missing_without_a_reason_is_a_failure() -> None:
    report = found(of(Modest, need="durable_jobs", reason=""), "jobs.outlive_provider")
    assert "do not say why" in report.findings[0].message


class HasNoTerminals(Modest):
    """Refuses as it should."""

    need = "pty"

    class Box(MutantInstance):
        async def start(self, command: Command) -> Process:
            if command.pty:
                raise Unsupported("no terminals here")
            return await super().start(command)


class KeepsNothing(Modest):
    need = "persistent"

    def order(self, order: Order) -> Order:
        if order.spec.retention is Retention.PERSISTENT:
            raise Unsupported("nothing is kept here")
        return order


@pytest.mark.parametrize(("kind", "name"), [(HasNoTerminals, "terminal.echo"), (KeepsNothing, "life.stop_and_restore")])
def test_a_clean_refusal_is_distinguished_from_success(kind: type[Modest], name: str) -> None:
    report = found(of(kind), name)
    assert [finding.outcome for finding in report.findings] == [Outcome.REFUSED], report.findings
    assert report.ok


class Hangs(Mutant):
    class Box(MutantInstance):
        async def check(self) -> None:
            await asyncio.Event().wait()


class RaisesBuiltins(Mutant):
    class Box(MutantInstance):
        async def check(self) -> None:
            raise KeyError("guest")


def test_a_provider_that_hangs_is_given_up() -> None:
    report = found(of(Hangs), "life.create", "capabilities.identity", patience=0.5)
    assert {finding.name: finding.outcome for finding in report.findings} == {
        "capabilities.identity": Outcome.PASSED,
        "life.create": Outcome.FAILED,
    }


def test_an_error_that_is_no_hutch_error_is_a_failure_and_the_run_continues() -> None:
    report = found(of(RaisesBuiltins), "life.create", "life.record")
    assert [finding.outcome for finding in report.findings] == [Outcome.FAILED, Outcome.PASSED]
    assert "KeyError, which is no HutchError" in report.findings[0].message


class Unusable(Mutant):
    async def probe(self) -> Capabilities:
        return Capabilities(provider="native", usable=False, reason="no kernel", isolation=Isolation.NONE)


def test_an_unusable_provider_is_reported_with_its_reason() -> None:
    with pytest.raises(Unavailable, match="no kernel"):
        found(of(Unusable))


def test_an_unknown_check_is_refused_with_the_nearest() -> None:
    with pytest.raises(Invalid, match=r"exec\.timeout"):
        found(native, "exec.timeot")


def test_a_need_names_a_field_of_the_capabilities() -> None:
    """A misspelled need would turn its checks into refusals for ever."""
    nothing = Capabilities(provider="none", isolation=Isolation.NONE, networks=(), users=())
    for check in checks():
        assert has(nothing, check.needs) is (not check.needs or check.needs == "grades.timeout_sec")


def test_what_boxes_are_left_after_a_run() -> None:
    async def left() -> tuple[InstanceRecord, ...]:
        await run(native, ("life.list", "life.bad_image"))
        provider = native()
        try:
            return await provider.list()
        finally:
            await provider.close()

    assert asyncio.run(left()) == ()


def test_the_command_shows_findings_and_fails_if_one_does() -> None:
    """`hutch conformance PROVIDER`: a row for each check, JSON, exit code."""
    command = [sys.executable, "-m", "hutch.cli.main", "conformance", "native", "--check", "life.record"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (shown.returncode, "life.record" in shown.stdout, "1 passed" in shown.stdout) == (0, True, True), shown
    reply = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    answer = json.loads(reply.stdout)
    assert answer.pop("ok") is True
    assert Finding.from_plain(answer["findings"][0]).outcome is Outcome.PASSED
    wrong = subprocess.run([*command[:-1], "no.such"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode != 0 and "no.such" in wrong.stderr
