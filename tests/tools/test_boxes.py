"""Boxes as an agent sees them: its own session, current box, lifecycle, copies between boxes, and lost boxes."""

import asyncio

import pytest

from hutch.keeper.embedded import Hutch
from hutch.tools import AgentPermissions, Decision, Tools
from tests.tools.real_tools import content, done, open_tools, put, refused

pytestmark = pytest.mark.slow


async def test_each_agent_works_in_a_box_of_its_own() -> None:
    """General tools act on the current box, and another agent's calls do not reach it (P12)."""
    async with open_tools() as tools:
        await done(tools, "write", path="mine.txt", content="a")
        await done(tools, "write", path="mine.txt", content="b", agent="other")
        assert (await done(tools, "read", path="mine.txt")).structured["text"] == "a"
        assert (await done(tools, "read", path="mine.txt", agent="other")).structured["text"] == "b"
        first = (await done(tools, "box_query", action="current")).structured["box"]
        second = (await done(tools, "box_query", action="current", agent="other")).structured["box"]
        assert first["id"] != second["id"]
        assert first["held_by"] == "you"
        listed = (await done(tools, "box_query", action="list")).structured["boxes"]
        assert {each["id"]: each["held_by"] for each in listed} == {first["id"]: "you"}
        await refused(tools, "box_lifecycle", "not_found", action="switch", box=second["id"])
        await refused(tools, "box_lifecycle", "not_found", action="destroy", box=second["id"])


async def test_a_box_that_somebody_else_holds_is_busy_and_the_hint_is_one_that_can_be_followed() -> None:
    """A person who holds the agent's box keeps it. The hint suggests no takeover, which is not permitted (P6, P7)."""
    async with open_tools() as tools:
        box = (await done(tools, "exec", command="true")).structured["box"]
        await done(tools, "box_lifecycle", action="release")
        person = await tools.hutch.for_session("person").attach(box)
        busy = await refused(tools, "box_lifecycle", "busy", action="switch", box=box)
        assert "take" not in busy.structured["error"]["hint"] and "create" in busy.structured["error"]["hint"]
        await refused(tools, "box_lifecycle", "refused", action="takeover", box=box)
        await refused(tools, "box_lifecycle", "busy", action="destroy", box=box)
        assert (await person.exec("true")).ok


async def test_two_calls_at_once_make_one_box() -> None:
    async with open_tools() as tools:
        results = await asyncio.gather(*(tools.call("exec", {"command": "true"}) for _ in range(8)))
        assert len({result.structured["box"] for result in results}) == 1


async def test_the_interval_of_renewals_is_that_of_the_lease() -> None:
    """`auto_renew_interval_seconds` is what the lease's length makes of it, however often it was renewed (P6)."""
    async with open_tools(config={"lease_sec": 7200.0}) as tools:
        for _ in range(2):
            box = (await done(tools, "box_lifecycle", action="create")).structured["box"]
            assert (box["auto_renew_interval_seconds"], round(box["lease_expires_in_seconds"], -2)) == (360, 7200)
    async with open_tools(config={"lease_sec": 0.0}) as tools:
        box = (await done(tools, "box_lifecycle", action="create")).structured["box"]
        assert (box["auto_renew_interval_seconds"], box["lease_expires_in_seconds"]) == (None, None)


async def test_a_box_is_made_switched_to_renewed_released_and_destroyed() -> None:
    """P6, P12."""
    async with open_tools() as tools:
        first = (await done(tools, "exec", command="echo one > which")).structured["box"]
        made = (await done(tools, "box_lifecycle", action="create", name="second")).structured["box"]
        assert made["current"]
        assert made["name"] == "second"
        assert 0 < made["lease_expires_in_seconds"] <= 600
        assert made["auto_renew_interval_seconds"] == 30
        await refused(tools, "read", "file_not_found", path="which")
        await done(tools, "box_lifecycle", action="switch", box=first[:8])
        assert (await done(tools, "read", path="which")).structured["text"] == "one\n"
        await done(tools, "box_lifecycle", action="renew")
        await done(tools, "box_lifecycle", action="renew", box="second")
        released = await done(tools, "box_lifecycle", action="release", box="second")
        assert released.structured["box"]["id"] == made["id"]
        info = await tools.hutch.find("second")
        assert info.lease is None
        await refused(tools, "box_lifecycle", "invalid", action="renew", box="second")
        await done(tools, "box_lifecycle", action="destroy", box="second")
        await refused(tools, "box_lifecycle", "gone", action="switch", box="second")
        await done(tools, "box_lifecycle", action="release")
        assert await tools.hutch.current() is None
        assert "no current box" in (await done(tools, "box_query", action="current")).text


async def test_what_ends_a_box_wants_it_named() -> None:
    async with open_tools() as tools:
        await done(tools, "exec", command="true")
        for action in ("destroy", "switch", "takeover"):
            result = await refused(tools, "box_lifecycle", "invalid", action=action)
            assert result.structured["error"]["details"]["field"] == "box"
        await refused(tools, "box_lifecycle", "invalid", action="set_retention")


async def test_a_takeover_ends_the_other_agent_s_lease_and_it_continues_elsewhere() -> None:
    """The box that was taken is not a crash for its earlier holder; the result says so (P6, P7)."""
    async with open_tools(permissions=AgentPermissions(takeover=Decision.ALLOW)) as tools:
        box = (await done(tools, "exec", command="echo mine > f")).structured["box"]
        taken = await done(tools, "box_lifecycle", action="takeover", box=box, agent="other")
        assert taken.structured["box"]["held_by"] == "you"
        assert (await done(tools, "read", path="f", agent="other")).structured["text"] == "mine\n"
        after = await done(tools, "exec", command="ls")
        assert after.structured["box"] != box
        assert after.structured["stdout"] == ""
        assert any(box in note for note in after.notes), after.notes
        assert box in after.text
        again = await done(tools, "exec", command="true")
        assert again.structured["box"] == after.structured["box"]
        assert again.notes == ()


async def test_a_box_that_is_gone_is_replaced_and_the_loss_is_said() -> None:
    """Nothing falls back to anywhere else (P7, B21)."""
    async with open_tools() as tools:
        box = (await done(tools, "exec", command="echo mine > f")).structured["box"]
        await tools.hutch.for_session("somebody").destroy(box, force=True)
        after = await done(tools, "exec", command="ls")
        assert after.structured["box"] != box
        assert "lost" in after.text or "not those of the other one" in after.text
        await refused(tools, "read", "file_not_found", path="f")


async def test_the_retention_of_a_box_is_set_where_that_can_be_done() -> None:
    async with open_tools() as tools:
        made = await done(tools, "box_lifecycle", action="create", retention="persistent")
        assert made.structured["box"]["retention"] == "persistent"
        result = await tools.call("box_lifecycle", {"action": "set_retention", "retention": "temporary"})
        assert not result.is_error or result.code == "unsupported", result.text
        made = await done(tools, "box_lifecycle", action="create", retention="temporary")
        await done(tools, "write", path="f", content="kept")
        kept = await done(tools, "box_lifecycle", action="set_retention", retention="persistent")
        assert (kept.structured["box"]["id"], kept.structured["box"]["retention"]) == (
            made.structured["box"]["id"], "persistent",
        )  # fmt: skip
        assert "kept" in (await done(tools, "read", path="f")).text


async def test_a_profile_can_be_chosen_only_from_those_the_operator_allows() -> None:
    """Fields that decide isolation are not the model's (B5)."""
    async with open_tools() as tools:
        await refused(tools, "box_lifecycle", "refused", action="create", profile="network_basic")
    async with open_tools(profiles=("code",)) as tools:
        made = await done(tools, "box_lifecycle", action="create", profile="code")
        assert made.structured["box"]["profile"] == "code"
        await refused(tools, "box_lifecycle", "refused", action="create", profile="network_basic")
        await refused(tools, "box_lifecycle", "invalid", action="create", network="on")


async def test_a_file_is_copied_between_boxes_and_nothing_is_left_behind() -> None:
    """Streamed, no temporary file in either box or on the host, no lease that was not there before (P14)."""
    async with open_tools(permissions=AgentPermissions(takeover=Decision.ALLOW)) as tools:
        data = bytes(range(256)) * 20_000  # 5 MB
        first = (await done(tools, "exec", command="true")).structured["box"]
        await put(tools, "data.bin", data)
        await done(tools, "exec", command="chmod 750 data.bin; ls -A > before")
        second = (await done(tools, "box_lifecycle", action="create")).structured["box"]["id"]
        await done(tools, "box_lifecycle", action="release")
        await done(tools, "box_lifecycle", action="switch", box=first)
        assert (await tools.hutch.find(second)).lease is None
        copied = await done(
            tools,
            "box_operation",
            action="copy_file",
            source_path="data.bin",
            target_box=second,
            target_path="in/copy.bin",
        )
        assert copied.structured["size"] == len(data)
        assert (await tools.hutch.find(second)).lease is None
        left = await done(tools, "exec", command="rm before; ls -A | grep -v '^.skills'")
        assert left.structured["stdout"] == "data.bin\n"
        await done(tools, "box_lifecycle", action="switch", box=second)
        assert await content(tools, "in/copy.bin") == data
        listed = await done(
            tools, "exec", command="ls -A | grep -v '^.skills'; ls -A in; stat -c %a in/copy.bin; ls -A /tmp"
        )
        assert listed.structured["stdout"] == "in\ncopy.bin\n750\n"
        # From a box that another agent holds: only looked at, so its lease stays as it was.
        held = (await tools.hutch.find(first)).lease
        await done(
            tools, "box_operation", action="copy_file", source_box=first, source_path="data.bin",
            target_path="back.bin", agent="third",
        )  # fmt: skip
        now = (await tools.hutch.find(first)).lease
        assert (held and held.holder) == (now and now.holder)
        busy = await refused(
            tools, "box_operation", "busy", action="copy_file", source_path="back.bin", target_box=second, agent="third"
        )
        assert busy.structured["error"]["retryable"]
        await refused(tools, "box_operation", "file_not_found", action="copy_file", source_path="no", target_box=first)
        await refused(tools, "box_operation", "is_directory", action="copy_file", source_path="in", target_box=first)
        await refused(tools, "box_operation", "invalid", action="copy_file", source_path="in/copy.bin")


async def test_a_box_without_a_screen_says_so() -> None:
    async with open_tools() as tools:
        result = await refused(tools, "box_operation", "unsupported", action="screenshot")
        assert "no screen" in result.text


async def test_nothing_of_the_host_is_revealed() -> None:
    """Host paths, other sessions' names and secrets are in no answer about boxes (B5)."""
    async with open_tools(spec={"secrets": {"TOKEN": "hidden-4711"}}) as tools:
        await done(tools, "exec", command="true", agent="named-agent")
        for action in ("list", "current", "providers"):
            text = str(await done(tools, "box_query", action=action))
            assert "hidden-4711" not in text
            assert "named-agent" not in text
            assert str(tools.hutch.config.state_dir) not in text  # type: ignore[attr-defined]


async def test_an_agent_that_falls_silent_lets_go_of_its_box_and_finds_it_again() -> None:
    """Leases are not held for ever by agents that have gone: the box's own clocks count again."""
    async with open_tools(hold_sec=0.2) as tools:
        box = (await done(tools, "exec", command="echo still > f")).structured["box"]
        while (await tools.hutch.find(box)).lease is not None:
            await asyncio.sleep(0.02)
        again = await done(tools, "read", path="f")
        assert again.structured["box"] == box
        assert again.notes == ()


async def test_closing_the_tools_leaves_no_lease() -> None:
    async with Hutch() as hutch:
        tools = Tools(hutch)
        await done(tools, "exec", command="true")
        await done(tools, "box_lifecycle", action="create")
        await tools.close()
        for info in await hutch.boxes():
            assert info.lease is None
            await hutch.destroy(info.id)


async def test_a_model_goes_back_to_a_checkpoint() -> None:
    async with open_tools() as tools:
        await put(tools, "a.txt", b"one\n")
        made = await done(tools, "box_operation", action="checkpoint", checkpoint="before")
        assert made.structured["left_out"] == []
        await put(tools, "a.txt", b"two\n")
        diff = await done(tools, "box_operation", action="diff")
        assert "-one\n+two\n" in diff.text
        assert [change["path"] for change in diff.structured["changes"]] == ["/workspace/a.txt"]
        await done(tools, "box_operation", action="rollback", checkpoint="before")
        assert await content(tools, "a.txt") == b"one\n"
        await refused(tools, "box_operation", "not_found", action="rollback", checkpoint="none")
        await refused(tools, "box_operation", "invalid", action="rollback")
        await refused(tools, "box_operation", "conflict", action="undo")
