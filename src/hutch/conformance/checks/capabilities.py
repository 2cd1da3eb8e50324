"""Honest capabilities: what is claimed is so, what is not has a reason, and asking changes nothing."""

from hutch.conformance.claims import holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import ConfigError
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import NetworkMode
from hutch.providers.base import CONTRACT


@check("capabilities")
async def check_same_answer(bench: Workbench) -> None:
    """Probing again, by another provider object too, gives the same answer."""
    same(await bench.provider.probe(), bench.capabilities, "the second probe")
    async with bench.another() as other:
        same((await other.probe()).but(facts={}), bench.capabilities.but(facts={}), "the probe of another object")


@check("capabilities")
async def check_identity(bench: Workbench) -> None:
    """The capabilities carry the provider's own name and the version of this contract."""
    found = (bench.capabilities.provider, bench.capabilities.contract, bench.provider.contract)
    same(found, (bench.provider.name, CONTRACT, CONTRACT), "provider and contract")


@check("capabilities")
async def check_probe_leaves_nothing(bench: Workbench) -> None:
    """A probe may make a box to find out, and leaves none behind."""
    before = {record.box_id for record in await bench.provider.list()}
    async with bench.another() as other:
        await other.probe()
        after = {record.box_id for record in await other.list()}
    same(after - before, set(), "boxes that the probe left")


@check("capabilities")
async def check_reasons(bench: Workbench) -> None:
    """Whatever the provider cannot do carries a reason: unclaimed capabilities, and limits that nothing enforces."""
    claimed = bench.capabilities
    explained = {missing.what for missing in claimed.missing if missing.reason.strip()}
    unclaimed = {name for name in ("durable_jobs", "pty", "watch", "writable_root", "persistent", "mounts", "ports")
                 if not getattr(claimed, name)}  # fmt: skip
    unclaimed |= {"pause"} if claimed.pause == "none" else set()
    unclaimed |= set() if NetworkMode.ON in claimed.networks else {"networks.on"}
    unclaimed |= set() if "root" in claimed.users else {"users.root"}
    unclaimed |= {f"grades.{name}" for name in Grades.__struct_fields__
                  if getattr(claimed.grades, name) is EnforcedBy.NONE}  # fmt: skip
    silent = {name for name in unclaimed if not explained & {name, name.partition(".")[0], name.partition(".")[2]}}
    same(silent, set(), "capabilities that are missing without a reason")
    same([missing.what for missing in claimed.missing if not missing.reason.strip()], [], "reasons that are empty")


@check("capabilities")
async def check_no_contradiction(bench: Workbench) -> None:
    """Nothing is claimed and missing at once, and network off is always there: it is the safe default."""
    claimed = bench.capabilities
    holds(NetworkMode.OFF in claimed.networks, "network off is not claimed")
    holds("user" in claimed.users, "the ordinary user is not claimed")
    said = {missing.what for missing in claimed.missing}
    flags = ("guest", "durable_jobs", "pty", "watch", "uid_range", "writable_root", "persistent", "mounts", "ports")
    has = {name for name in flags if getattr(claimed, name)}
    has |= {"pause"} if claimed.pause != "none" else set()
    has |= {f"{name}.{value}" for name in ("networks", "users", "images") for value in getattr(claimed, name)}
    has |= {f"grades.{name}" for name in Grades.__struct_fields__
            if getattr(claimed.grades, name) is not EnforcedBy.NONE}  # fmt: skip
    same(has & said, set(), "claimed and missing at once")


@check("capabilities")
async def check_unknown_setting(bench: Workbench) -> None:
    """A setting that the provider does not know is a ConfigError that names it."""
    async with bench.another() as other:
        with raises(ConfigError, what="configuring an unknown key") as caught:
            other.configure({"no_such_setting": 1})
        holds("no_such_setting" in str(caught.error), "the error does not name the key")
