"""Schemas for every interface from one definition, who sees which tool, and what the system prompt says."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hutch import front
from hutch.errors import Invalid
from hutch.keeper.embedded import Hutch
from hutch.tools import AgentPermissions, ProviderKit, Tool, ToolResult, Tools
from hutch.tools.call import Call
from hutch.tools.toolbox import TOOLS
from tests.tools.real_tools import done, open_tools, refused

NAMES = [
    "exec", "python", "job", "read", "write", "edit", "glob", "grep", "send_file", "box_query", "box_lifecycle",
    "box_operation", "list_skills", "activate_skill",
]  # fmt: skip

ISOLATION = {
    "session", "mounts", "mount", "network", "image", "provider", "user", "workspace", "host_path", "limits", "cpus",
    "memory_mb", "pids", "disk_mb", "open_files", "secrets", "read_only_root", "min_isolation", "labels", "ports",
    "allow_private", "profile", "owner", "agent",
}  # fmt: skip


def _properties(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {name for each in schema for name in _properties(each)}
    if not isinstance(schema, dict):
        return set()
    return set(schema.get("properties", {})) | {name for each in schema.values() for name in _properties(each)}


async def test_one_definition_gives_every_interface_its_schema() -> None:
    """B5."""
    async with open_tools() as tools:
        openai = await tools.schemas("openai")
        assert [each["function"]["name"] for each in openai] == NAMES
        anthropic = await tools.schemas("anthropic")
        mcp = await tools.schemas("mcp")
        responses = await tools.schemas("openai-responses")
        for one, two, three, four in zip(openai, anthropic, mcp, responses, strict=True):
            schema = one["function"]["parameters"]
            assert schema == two["input_schema"] == three["inputSchema"] == four["parameters"]
            assert schema["type"] == "object"
            assert "$ref" not in json.dumps(schema)
            assert "null" not in json.dumps(schema)
            assert one["function"]["description"] == two["description"] == three["description"]
            assert all("description" in field for field in schema["properties"].values()), one
        assert {each["name"] for each in mcp if each["annotations"]["readOnlyHint"]} == {
            "read", "glob", "grep", "box_query", "list_skills",
        }  # fmt: skip
        with pytest.raises(Invalid, match="gemini"):
            await tools.schemas("gemini")


async def test_every_tool_says_what_it_answers() -> None:
    """Output schemas come from the same definition, need no references, take an error, and refuse what does not fit."""
    async with open_tools() as tools:
        for each in await tools.schemas("mcp"):
            schema = each["outputSchema"]
            assert schema["type"] == "object" and "$ref" not in json.dumps(schema), each["name"]
            Draft202012Validator.check_schema(schema)
            valid = Draft202012Validator(schema)
            error = {"code": "refused", "message": "m", "hint": "", "retryable": False, "details": {}}
            assert valid.is_valid({"error": error}), each["name"]
            assert not valid.is_valid({"error": {"code": 1}}), each["name"]
            assert not valid.is_valid({"box": 7, "skills": 7, "size": "large", "name": 7}), each["name"]
        assert not any(
            "output" in json.dumps(each) and "outputSchema" in each for each in await tools.schemas("openai")
        )


async def test_what_decides_isolation_is_in_no_schema() -> None:
    """Nor does any tool take it (B5)."""
    async with open_tools() as tools:
        for schema in await tools.schemas("anthropic"):
            assert not ISOLATION & _properties(schema), schema["name"]
            for field in sorted(ISOLATION - {"profile"}):
                result = await tools.call(schema["name"], {field: "x"})
                assert result.is_error
                assert result.code == "invalid", (schema["name"], field)


async def test_examples_are_valid_calls() -> None:
    from hutch.tools.arguments import decode_arguments

    for tool in TOOLS:
        decode_arguments(tool, tool.example)
        assert len(tool.description) > 40


async def test_the_profiles_an_operator_allows_are_a_choice() -> None:
    async with open_tools(profiles=("code", "default")) as tools:
        schema = next(each for each in await tools.schemas("mcp") if each["name"] == "box_lifecycle")
        assert schema["inputSchema"]["properties"]["profile"]["enum"] == ["code", "default"]


async def test_an_unknown_tool_is_answered_with_those_there_are() -> None:
    async with open_tools() as tools:
        result = await refused(tools, "bash", "not_found")
        assert "exec, python, job, read" in result.structured["error"]["hint"]


async def test_tools_vanish_with_the_reason_when_hutch_is_switched_off() -> None:
    """B5, B20, B21."""
    async with open_tools(config={"enabled": False}) as tools:
        for flavour in ("openai", "anthropic", "mcp"):
            assert await tools.schemas(flavour) == []
        assert await tools.guidance() == ""
        status = await tools.status()
        assert not status.available
        assert status.state == "disabled"
        assert "enabled = false" in status.reason
        assert status.tools == ()
        assert "enabled" in status.hidden["exec"]
        await refused(tools, "exec", "disabled", command="true")


async def test_tools_vanish_when_no_engine_is_usable() -> None:
    """The status distinguishes a failed engine from a disabled Hutch (B5, B21)."""
    async with open_tools(config={"provider": "nowhere"}) as tools:
        assert await tools.schemas("openai") == []
        status = await tools.status()
        assert status.state == "unavailable"
        assert "nowhere" in status.reason
        result = await tools.call("exec", {"command": "true"})
        assert result.is_error
        assert result.code != "internal"


async def test_a_provider_s_tools_appear_only_for_its_boxes() -> None:
    """Marked by origin, with the provider's own guidance (P13, P2)."""

    async def click(call: Call, given: dict[str, Any]) -> ToolResult:
        box = await call.box()
        return ToolResult(text=f"clicked in {box.id} at {given['x']}")

    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tool = Tool(name="click", description="Click.", arguments=None, handler=click, parameters=schema)
    kits = {"native": ProviderKit(tools=(tool,), prompt="Native boxes have no mouse."), "other": ProviderKit()}
    async with open_tools(provider_tools=kits) as tools:
        assert "click" not in [each["name"] for each in await tools.schemas("mcp")]
        await refused(tools, "click", "not_found", x=1)
        assert "mouse" not in await tools.guidance()
        await done(tools, "exec", command="true")
        shown = {each["name"]: each for each in await tools.schemas("mcp")}
        assert shown["click"]["inputSchema"] == schema
        assert (await tools.status()).origins == {"click": "provider:native"}
        assert "at 3" in (await done(tools, "click", x=3)).text
        assert "no mouse" in await tools.guidance()


async def test_guidance_states_paths_limits_persistence_and_network() -> None:
    """B6, P2."""
    async with open_tools(spec={"memory_mb": 300}) as tools:
        before = await tools.guidance()
        assert "/workspace" in before
        assert "every exec is a new shell" in before
        assert await tools.hutch.boxes() == ()  # asking makes no box
        await done(tools, "exec", command="true")
        text = await tools.guidance()
        assert "300 MB memory" in text
        assert "no network" in text
        assert "read-only" in text
        assert "/workspace/inbox" in text


async def test_guidance_is_complete_before_there_is_a_box() -> None:
    """Network, limits, writable places, how long a command may run and how to run longer, the tools, and what the
    actions of grouped tools do: all from the effective spec, also before the first call (B6, P20, lesson 50)."""
    quick = {"inherits": "network_basic", "limits": {"timeout_sec": 20, "max_timeout_sec": 50}}
    rules = AgentPermissions.from_plain({"tools": {"box_lifecycle.destroy": "deny", "grep": "deny"}})
    config = {"profiles": {"quick": quick}, "profile": "quick"}
    async with open_tools(config=config, spec={"memory_mb": 300}, permissions=rules) as tools:
        before = await tools.guidance()
        assert await tools.hutch.boxes() == ()
        for part in (
            "300 MB memory", "20 s unless you give a timeout, at most 50 s", 'job(action="start")', "internet access",
            "You can write in /workspace, /tmp; everything else is read-only", "Tools: exec, ",
            "- job: start: run a command in the background", "- box_lifecycle: create: a new box",
            "Nothing you do in it",
        ):  # fmt: skip
            assert part in before, part
        assert "destroy: end a box" not in before and "grep" not in before.partition("Tools: ")[2].partition("\n")[0]
        await done(tools, "exec", command="true")
        assert await tools.guidance() == before


async def test_a_timeout_that_cannot_be_given_is_reported_before_it_runs_out() -> None:
    """The schema has the box's own bound, a longer one is refused at once, and the remedy is possible (B4)."""
    quick = {"inherits": "default", "limits": {"timeout_sec": 1, "max_timeout_sec": 2}}
    async with open_tools(config={"profiles": {"quick": quick}, "profile": "quick"}) as tools:
        (schema,) = [each for each in await tools.schemas("anthropic") if each["name"] == "exec"]
        timeout = schema["input_schema"]["properties"]["timeout"]
        assert timeout["maximum"] == 2 and "1 s unless you give a timeout, at most 2 s" in timeout["description"]
        answer = await refused(tools, "exec", "invalid", command="sleep 100", timeout=3)
        assert "at most 2 s" in answer.text and 'job(action="start")' in answer.text
        ended = await done(tools, "exec", command="sleep 100", timeout=2)
        assert "start it as a job" in ended.text and "longer timeout" not in ended.text
        shorter = await done(tools, "exec", command="sleep 100", timeout=1)
        assert "give it a longer timeout" in shorter.text
        job = (await done(tools, "job", action="start", command="sleep 3; echo through")).structured["job"]
        assert "through" in (await done(tools, "job", action="wait", job=job, wait=60)).text


async def test_every_enum_has_a_type() -> None:
    """Some interfaces refuse a schema whose enum says no type, in input and output alike."""

    def enums(schema: Any) -> list[Any]:
        if isinstance(schema, list):
            return [found for each in schema for found in enums(each)]
        if not isinstance(schema, dict):
            return []
        return [schema] * ("enum" in schema) + [found for each in schema.values() for found in enums(each)]

    async with open_tools(profiles=("code",)) as tools:
        found = enums(await tools.schemas("mcp"))
        assert len(found) > 5 and all(each.get("type") == "string" for each in found), found


async def test_guidance_names_what_of_the_machine_can_be_changed(tmp_path: Path) -> None:
    """It follows from the box's effective spec, and is true before there is a box, too (B6, lesson 50)."""
    never = "Nothing you do in it reaches the machine"
    project, data = tmp_path / "project", tmp_path / "data"
    for place in (project, data):
        place.mkdir()
        place.chmod(0o777)
    shown = {"workspace": str(project), "mounts": [f"{data}:/data:ro"]}
    async with open_tools(spec=shown, config={"mount_roots": (str(tmp_path),)}) as tools:
        for box in (False, True):
            if box:
                await done(tools, "write", path="made.txt", content="here")
                assert (project / "made.txt").read_text() == "here"
            text = await tools.guidance()
            assert f"/workspace is {project} of the machine itself" in text and never not in text
            assert f"/data shows {data} of the machine itself, read-only" in text
        assert str(project) in (await done(tools, "box_query", action="current")).text
    profile = {"at-home": {"workspace": {"source": str(project), "mode": "ro"}}}
    config = {"mount_roots": (str(tmp_path),), "profiles": profile, "profile": "at-home"}
    async with open_tools(config=config) as tools:
        assert f"/workspace shows {project}" in await tools.guidance(), "what the profile adds is known before"
        await done(tools, "exec", command="true")
        text = await tools.guidance()
        assert f"/workspace shows {project}" in text and "/workspace is read-only: write to /tmp" in text
    async with open_tools() as tools:
        await done(tools, "exec", command="true")
        assert never in await tools.guidance()


async def test_the_tools_of_one_process_serve_agents_after_a_restart() -> None:
    """An agent with a name of its own finds its box again: the session's current box is in the store."""
    async with Hutch() as hutch:
        first = Tools(hutch.for_session("chat-7"))
        box = (await done(first, "exec", command="echo kept > f")).structured["box"]
        await first.close()
        second = Tools(hutch.for_session("chat-7"))
        again = await done(second, "read", path="f")
        assert again.structured["box"] == box
        await second.close()
        await hutch.destroy(box)


async def test_a_hutch_that_is_switched_off_has_tools_that_say_so() -> None:
    """They can be made like any others; there is nothing to call, and a call says why (B5, B20)."""
    async with front.Hutch(enabled=False) as hutch:
        tools = Tools(hutch)
        assert await tools.schemas() == [] and await tools.guidance() == ""
        status = await tools.status()
        assert (status.available, status.state) == (False, "disabled")
        assert set(status.hidden.values()) == {status.reason}
        for name in ("exec", "box_query", "activate_skill"):
            result = await tools.call(name, {"command": "true"} if name == "exec" else {"action": "list", "name": "x"})
            assert result.is_error, result.text
        assert (await tools.call("exec", {"command": "true"})).code == "disabled"
        await tools.close()
