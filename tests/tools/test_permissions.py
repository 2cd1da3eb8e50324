"""Who may do what: rules by tool, command and path; somebody who is asked; a receipt for every decision."""

import asyncio
from typing import Any

import pytest

from hutch import Hutch
from hutch.config import Config
from hutch.errors import ConfigError, Invalid, NotFound
from hutch.keeper.questions import Questions
from hutch.policy.permissions import (
    Access,
    AgentPermissions,
    CommandRule,
    Decision,
    PathRule,
    Ruling,
    check,
    on_command,
    on_path,
    on_tool,
)
from hutch.tools import Answer, AskRequest, Tools
from tests.tools.real_tools import done, open_tools, put, refused

ALLOW, ASK, DENY = Decision.ALLOW, Decision.ASK, Decision.DENY


def _command(command: str | list[str], *rules: CommandRule, tool: Decision = ALLOW) -> Decision:
    return on_command(AgentPermissions(commands=rules), Ruling(tool, ""), command).decision


def test_the_tool_and_its_action_are_ruled_on() -> None:
    permissions = AgentPermissions(
        default=ASK, tools={"read": ALLOW, "box_lifecycle": ALLOW, "box_lifecycle.destroy": DENY}
    )
    assert on_tool(permissions, "exec").decision is ASK
    assert on_tool(permissions, "read").decision is ALLOW
    assert on_tool(permissions, "box_lifecycle", "create").decision is ALLOW
    assert on_tool(permissions, "box_lifecycle", "destroy").decision is DENY
    closed = AgentPermissions(tools={"job": DENY, "job.list": ALLOW})
    assert on_tool(closed, "job", "list").decision is DENY


@pytest.mark.parametrize(
    ("command", "caught"),
    [
        ("git push origin", True),
        (["git", "push"], True),
        ("cd repo && git push", True),
        ("true; git  push", True),
        ("(git push)", True),
        ("A=b git push", True),
        ("ls\ngit push", True),
        ("git pull", False),
        ("echo git push", False),
        (["echo", "git", "push"], False),
    ],
)
def test_a_prefix_is_found_in_every_part_of_a_shell_line(command: str | list[str], caught: bool) -> None:
    rule = CommandRule(prefix="git push", decision=DENY)
    assert _command(command, rule) is (DENY if caught else ALLOW)


def test_programs_globs_and_expressions_match() -> None:
    assert _command("/usr/bin/curl x", CommandRule(program="curl", decision=DENY)) is DENY
    assert _command("apt-get update", CommandRule(program="apt*", decision=ASK)) is ASK
    assert _command("git push --force x", CommandRule(glob="*--force*", decision=DENY)) is DENY
    assert _command("wget http://x", CommandRule(regex=r"https?://", decision=DENY)) is DENY
    assert _command("curl x", CommandRule(program="cur", decision=DENY)) is ALLOW


@pytest.mark.parametrize(
    "command",
    ["git status; rm -rf .", "git status && x", "git status $(x)", "git status `x`", "git status | x", "git status > x",
     "X=1 git status", "git status 'open", "git status\nx", "git status $X"],
)  # fmt: skip
def test_allow_loosens_nothing_for_more_than_one_plain_command(command: str) -> None:
    """An `allow` rule that could be talked around would be worse than none."""
    rule = CommandRule(prefix="git status", decision=ALLOW)
    assert _command("git status -s", rule, tool=ASK) is ALLOW
    assert _command(["git", "status", "; rm"], rule, tool=ASK) is ALLOW
    assert _command(command, rule, tool=ASK) is ASK


def test_paths_match_by_pattern_and_access() -> None:
    permissions = AgentPermissions(
        paths=(
            PathRule(match="/workspace/secret/**", decision=DENY),
            PathRule(match="**/.env", decision=ASK, access=Access.READ),
            PathRule(match="/workspace/*.lock", decision=DENY, access=Access.WRITE),
        )
    )

    def ruled(path: str, access: Access) -> Decision:
        return on_path(permissions, Ruling(ALLOW, ""), path, access).decision

    assert ruled("/workspace/secret", Access.READ) is DENY
    assert ruled("/workspace/secret/a/b", Access.WRITE) is DENY
    assert ruled("/workspace/secrets", Access.READ) is ALLOW
    assert ruled("/workspace/a/.env", Access.READ) is ASK
    assert ruled("/workspace/a/.env", Access.WRITE) is ALLOW
    assert ruled("/workspace/a.lock", Access.WRITE) is DENY
    assert ruled("/workspace/a/b.lock", Access.WRITE) is ALLOW


def test_rules_that_can_never_work_are_refused() -> None:
    for permissions in (
        AgentPermissions(commands=(CommandRule(decision=DENY),)),
        AgentPermissions(commands=(CommandRule(decision=DENY, glob="a", prefix="b"),)),
        AgentPermissions(commands=(CommandRule(decision=DENY, regex="("),)),
        AgentPermissions(paths=(PathRule(match="relative", decision=DENY),)),
    ):
        with pytest.raises(ConfigError):
            check("x", permissions)


def test_the_configuration_names_place_and_key(tmp_path: object) -> None:
    import pathlib

    directory = pathlib.Path(str(tmp_path))
    file = directory / "hutch.toml"
    file.write_text(
        '[permissions."*"]\ndefault = "ask"\n[permissions.coder.tools]\nexec = "allow"\n'
        '[[permissions.coder.commands]]\nprefix = "git push"\ndecision = "deny"\n'
    )
    config = Config.load(file, environ={"HOME": str(directory)}, cwd=directory)
    assert config.permissions["*"].default is ASK
    assert config.permissions["coder"].commands[0].prefix == "git push"
    for wrong in ('[permissions.x]\ndefult = "ask"\n', '[[permissions.x.commands]]\ndecision = "deny"\n',
                  '[permissions.x]\ndefault = "maybe"\n'):  # fmt: skip
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=r"hutch\.toml"):
            Config.load(file, environ={"HOME": str(directory)}, cwd=directory)


async def test_a_denied_tool_vanishes_and_is_refused() -> None:
    permissions = AgentPermissions(tools={"exec": DENY, "box_lifecycle.destroy": DENY})
    async with open_tools(permissions=permissions) as tools:
        names = {each["name"]: each for each in await tools.schemas("anthropic")}
        assert "exec" not in names
        assert "destroy" not in names["box_lifecycle"]["input_schema"]["properties"]["action"]["enum"]
        assert (await tools.status()).hidden["exec"] == "denied by permissions"
        assert "new shell" not in await tools.guidance()
        result = await refused(tools, "exec", "refused", command="true")
        assert "not permitted" in result.text
        assert await tools.hutch.boxes() == ()  # no box was made for a call that is refused anyway
        await done(tools, "write", path="a", content="b")
        box = (await done(tools, "box_query", action="current")).structured["box"]["id"]
        await refused(tools, "box_lifecycle", "refused", action="destroy", box=box)


async def test_ask_goes_to_the_application_and_always_is_remembered() -> None:
    asked: list[AskRequest] = []
    answers = [Answer.DENY, "allow", Answer.ALWAYS]

    async def ask(request: AskRequest) -> Answer | str:
        asked.append(request)
        return answers.pop(0)

    async with open_tools(permissions=AgentPermissions(tools={"exec": ASK}), ask=ask) as tools:
        said_no = await refused(tools, "exec", "refused", command="echo x")
        assert "user said no" in said_no.text
        for _ in range(4):
            assert (await done(tools, "exec", command="echo x")).structured["stdout"] == "x\n"
        assert len(asked) == 3
        assert (asked[0].agent, asked[0].tool, asked[0].what) == ("main", "exec", "echo x")
        assert "echo x" in asked[0].question
        assert answers == []
        result = await refused(tools, "exec", "refused", command="echo y")  # another command is another question
        assert "no answer" in result.text


async def test_without_a_person_to_ask_it_is_denied_with_the_reason() -> None:
    async with open_tools(permissions=AgentPermissions(default=ASK)) as tools:
        result = await refused(tools, "read", "refused", path="x")
        assert "nobody can be asked" in result.text


async def test_path_rules_hold_through_symlinks_searches_and_copies() -> None:
    permissions = AgentPermissions(
        tools={"exec": DENY, "job": DENY},
        paths=(
            PathRule(match="/workspace/secret/**", decision=DENY, reason="keep out"),
            PathRule(match="/workspace/ro/**", decision=DENY, access=Access.WRITE),
        ),
    )
    async with open_tools(permissions={"main": permissions}) as tools:
        await put(tools, "secret/key.txt", b"hidden needle\n")
        await put(tools, "ro/a.txt", b"open needle\n")
        box, _ = await tools.agent().box()
        await box.exec("ln -s secret/key.txt link; ln -s secret dir; ln -s /workspace/link chain; ln -s loop loop")
        for path in ("secret/key.txt", "link", "dir/key.txt", "chain", "ro/../secret/key.txt", "dir/../secret/key.txt",
                     "/workspace/./secret//key.txt", "/proc/self/cwd/secret/key.txt"):  # fmt: skip
            result = await tools.call("read", {"path": path})
            assert result.is_error, path
            assert "hidden" not in str(result), path
        assert "keep out" in (await refused(tools, "read", "refused", path="link")).text
        await refused(tools, "send_file", "refused", path="link")
        await refused(tools, "box_operation", "refused", action="copy_file", source_path="chain", target_path="x")
        await refused(tools, "write", "refused", path="dir/new", content="x")
        await refused(tools, "write", "refused", path="ro/a.txt", content="x")
        assert (await done(tools, "read", path="ro/a.txt")).structured["text"] == "open needle\n"
        await refused(tools, "edit", "refused", path="ro/a.txt", old="open", new="x")
        found = await done(tools, "grep", pattern="needle")
        assert [hit["path"] for hit in found.structured["hits"]] == ["ro/a.txt"]
        assert "hidden by the permissions" in found.text
        names = (await done(tools, "glob", pattern="**/*.txt")).structured["paths"]
        assert "secret/key.txt" not in names
        await refused(tools, "grep", "refused", pattern="x", path="secret")
        await done(tools, "box_lifecycle", action="create", name="two")
        other = (await done(tools, "box_query", action="list")).structured["boxes"][0]["id"]
        # May be read there, and must not be written here, though the path is the same.
        await refused(tools, "box_operation", "refused", action="copy_file", source_box=other, source_path="ro/a.txt")
        await done(tools, "box_lifecycle", action="switch", box=other)
        result = await tools.call("read", {"path": "loop"})
        assert result.is_error


async def test_a_decision_before_there_is_a_box_is_in_the_daybook() -> None:
    """Every decision is a receipt, also of an agent that never gets as far as a box; verify covers it."""
    permissions = AgentPermissions(tools={"exec": DENY, "box_lifecycle": ASK, "box_query": ALLOW})

    async def ask(request: AskRequest) -> Answer:
        return Answer.DENY

    async with open_tools(permissions=permissions, ask=ask, config={"store": "memory"}) as tools:
        await refused(tools, "exec", "refused", command="curl -H 'Authorization: Bearer hush-hush-hush'")
        await refused(tools, "box_lifecycle", "refused", action="create")
        await done(tools, "box_query", action="list")
        assert await tools.hutch.boxes() == ()
        [daybook] = await tools.hutch.receipts.chains()
        assert daybook.box.startswith("daybook-")
        receipts = await tools.hutch.receipts.list(daybook.box)
        assert [(each.op, each.details["decision"], each.details["by"]) for each in receipts] == [
            ("tool.exec", "deny", "rule"),
            ("tool.box_lifecycle", "deny", "answer"),
            ("tool.box_query", "allow", "rule"),
        ]
        assert receipts[0].who.session == tools.hutch.session
        assert "hush" not in str(receipts)
        [check] = await tools.hutch.receipts.verify()
        assert (check.box, check.ok, check.count) == (daybook.box, True, 3)


async def test_every_decision_is_a_receipt() -> None:
    async def ask(request: AskRequest) -> Answer:
        return Answer.ALLOW if "fine" in request.what else Answer.DENY

    permissions = AgentPermissions(tools={"exec": ASK}, paths=(PathRule(match="/etc/**", decision=DENY),))
    async with open_tools(permissions=permissions, ask=ask) as tools:
        box = (await done(tools, "exec", command="echo fine")).structured["box"]
        await refused(tools, "exec", "refused", command="echo bad")
        await done(tools, "write", path="a", content="b")
        await refused(tools, "read", "refused", path="/etc/passwd")
        receipts = [each for each in await tools.hutch.receipts.list(box) if each.op.startswith("tool.")]
        answer = [(each.op, each.details["decision"], each.details["by"], each.details["what"]) for each in receipts]
        assert answer == [
            ("tool.exec", "allow", "answer", "echo fine"),
            ("tool.exec", "deny", "answer", "echo bad"),
            ("tool.write", "allow", "rule", "/workspace/a"),
            ("tool.read", "deny", "rule", "/etc/passwd"),
        ]


async def test_a_dashboard_can_answer() -> None:
    """Questions wait where a dashboard sees them; the first answer counts, and no answer in time is a no."""
    questions = Questions(wait_sec=30)
    async with open_tools(permissions=AgentPermissions(tools={"exec": ASK}), ask=questions.ask) as tools:
        call = asyncio.create_task(tools.call("exec", {"command": "echo x"}))
        while not questions.waiting("main"):
            await questions.changed()
        (question,) = questions.waiting()
        assert question.text == "May agent main use exec: echo x?"
        assert questions.waiting("other") == ()
        questions.answer(question.id, "always")
        assert (await call).structured["stdout"] == "x\n"
        assert questions.waiting() == ()
        with pytest.raises(NotFound):
            questions.answer(question.id, "deny")
        await done(tools, "exec", command="echo x")
    hasty = Questions(wait_sec=0.01)
    async with open_tools(permissions=AgentPermissions(tools={"exec": ASK}), ask=hasty.ask) as tools:
        late = await refused(tools, "exec", "refused", command="echo x")
        assert "no answer came" in late.text


async def test_the_operator_s_rules_hold_without_being_passed_on() -> None:
    table = {"*": {"tools": {"exec": "deny"}}}
    async with open_tools(config={"permissions": table}) as tools:
        await refused(tools, "exec", "refused", command="true")
    async with Hutch(permissions=table) as hutch:
        for view in (hutch, hutch.for_session("chat-7")):
            await refused(Tools(view), "exec", "refused", command="true")


async def test_a_rule_in_plain_text_holds() -> None:
    """A program may write `"deny"` where a record has an enum: it is the same rule, and a misspelt one is an error."""
    written: Any = {"default": "allow", "tools": {"exec": "deny"}, "takeover": "deny"}
    async with open_tools(permissions=AgentPermissions(**written)) as tools:
        await refused(tools, "exec", "refused", command="true")
        assert "exec" not in {each["name"] for each in await tools.schemas("anthropic")}
    with pytest.raises(Invalid):
        Tools(Hutch(enabled=False), permissions=AgentPermissions(**{**written, "default": "denied"}))
