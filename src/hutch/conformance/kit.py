"""Runs the checks against a provider: each passes, fails, or finds that what is not claimed is cleanly refused."""

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum

from hutch.conformance.claims import Broken
from hutch.conformance.registry import Check, chosen, lacking, refusal_of
from hutch.conformance.workbench import Workbench
from hutch.errors import HutchError, Unavailable
from hutch.model.record import Record
from hutch.providers.base import Provider


class Outcome(StrEnum):
    PASSED = "passed"
    REFUSED = "refused"
    """The provider does not claim the capability, and refused as it should."""
    FAILED = "failed"


class Finding(Record, frozen=True, kw_only=True):
    """The finding of one check."""

    name: str
    theme: str
    sentence: str
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


class Report(Record, frozen=True, kw_only=True):
    """The findings of a run, in the order of the run."""

    provider: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.outcome is Outcome.FAILED)

    @property
    def ok(self) -> bool:
        return not self.failed

    def count(self, outcome: Outcome) -> int:
        return sum(each.outcome is outcome for each in self.findings)


async def run(
    make: Callable[[], Provider],
    select: tuple[str, ...] = (),
    *,
    image: str = "",
    patience: float = 30.0,
    progress: Callable[[Finding], None] | None = None,
) -> Report:
    """Run every selected check, one after the other, on one provider object. `make` returns as many as are needed."""
    selected = chosen(select)
    provider = make()
    try:
        bench = await prepare(make, provider, image=image, patience=patience)
        findings: list[Finding] = []
        for each in selected:
            findings.append(await judge(each, bench))
            if progress:
                progress(findings[-1])
        return Report(provider=provider.name, findings=tuple(findings))
    finally:
        await provider.close()


async def prepare(
    make: Callable[[], Provider],
    provider: Provider,
    *,
    image: str = "",
    patience: float = 30.0,
    one_plain_box: bool = False,
) -> Workbench:
    """Return a workbench for a provider that works here. Raises Unavailable with its own reason if it does not."""
    capabilities = await provider.probe()
    if not capabilities.usable:
        raise Unavailable(
            f"provider {provider.name} cannot be used here: {capabilities.reason or 'it does not say why'}",
            retryable=False,
            remedy=capabilities.remedy or None,
        )
    return Workbench(make, provider, capabilities, image=image, patience=patience, one_plain_box=one_plain_box)


async def judge(check: Check, bench: Workbench) -> Finding:
    """Return one check's finding. An error of any kind is a finding too."""
    started = time.monotonic()
    outcome, message = Outcome.FAILED, ""
    try:
        async with asyncio.timeout(bench.patience * 2):
            outcome = await perform(check, bench)
    except (Broken, HutchError) as error:
        message = f"{type(error).__name__}: {error}" if isinstance(error, HutchError) else str(error)
    except TimeoutError:
        message = f"it did not come to an end within {bench.patience * 2:.0f} s"
    except Exception as error:  # a provider may raise only HutchErrors, so whatever else it raises is its failure
        message = f"raised {type(error).__name__}, which is no HutchError: {error}"
    return Finding(
        name=check.name,
        theme=check.theme,
        sentence=check.sentence,
        outcome=outcome,
        message=message,
        seconds=round(time.monotonic() - started, 3),
    )


async def perform(check: Check, bench: Workbench) -> Outcome:
    """Run the check, or the refusal in its place, and raise what went wrong."""
    try:
        lacks = lacking(bench.capabilities, check.needs)
        if not lacks:
            await check.body(bench)
            return Outcome.PASSED
        explain(bench, lacks)
        refused = refusal_of(lacks)
        if refused is not None:
            await refused(bench)
        return Outcome.REFUSED
    finally:
        bench.clear()


def explain(bench: Workbench, need: str) -> None:
    """Fail unless the provider gives a reason for what it cannot do."""
    field, _, value = need.partition(".")
    for missing in bench.capabilities.missing:
        if missing.what in (need, field, value) and missing.reason:
            return
    raise Broken(f"the provider does not claim {need}, and its capabilities do not say why (Capabilities.missing)")
