"""Tools reach only what is their session's, the same in every form of Hutch (see conftest.py)."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hutch import Hutch
from hutch.tools import AgentPermissions, Answer, AskRequest, Decision, ToolResult, Tools
from tests.both.forms import Open


async def call(tools: Tools, tool: str, **arguments: Any) -> ToolResult:
    return await tools.call(tool, arguments)


@asynccontextmanager
async def chats(open_hutch: Open, **granted: Decision) -> AsyncIterator[tuple[Hutch, Tools, Tools]]:
    """Two conversations of one owner: the tools of `a`, and those of `b`, which has these rights over other boxes."""
    async with open_hutch() as hutch:
        mark = os.urandom(4).hex()
        a = Tools(hutch.for_session(f"chat-a-{mark}"))
        b = Tools(hutch.for_session(f"chat-b-{mark}"), permissions=AgentPermissions(**granted))
        try:
            yield hutch, a, b
        finally:
            await a.close()
            await b.close()
            for info in await hutch.boxes():
                if mark in info.spec.labels.get("tools-session", "") or info.name == mark:
                    await hutch.destroy(info.id, force=True)


async def test_a_conversation_does_not_reach_the_box_of_another(open_hutch: Open) -> None:
    """Neither id, name nor the beginning of an id leads to a box of another session, held or released; nothing of it is
    listed, copied or destroyed, and no hint suggests to take it over (P6, B5) (lesson 7) (lesson 31)."""
    async with chats(open_hutch) as (hutch, a, b):
        name = os.urandom(4).hex()
        made = await call(a, "box_lifecycle", action="create", name=name)
        box = made.structured["box"]["id"]
        assert not (await call(a, "write", path="secret.txt", content="4711")).is_error
        await call(b, "write", path="own.txt", content="b")
        for held in (True, False):
            if not held:
                await call(a, "box_lifecycle", action="release")
                assert (await hutch.find(box)).lease is None
            listed = await call(b, "box_query", action="list")
            assert box not in listed.text and len(listed.structured["boxes"]) == 1
            for spelling in (box, box[:6], name):
                for action in ("switch", "takeover", "destroy", "release", "renew"):
                    refused = await call(b, "box_lifecycle", action=action, box=spelling)
                    assert refused.code == "not_found", refused.text
                    assert box not in refused.text.replace(spelling, "") and "take" not in refused.text
                for copy in (
                    {"source_box": spelling, "source_path": "secret.txt"},
                    {"source_path": "own.txt", "target_box": spelling, "target_path": "planted"},
                ):
                    refused = await call(b, "box_operation", action="copy_file", **copy)
                    assert refused.code == "not_found", refused.text
        taken = await call(b, "box_lifecycle", action="create", name=name)
        assert taken.code == "conflict" and box not in taken.text
        schema = next(each for each in await b.schemas("anthropic") if each["name"] == "box_lifecycle")
        assert "takeover" not in str(schema)
        assert (await hutch.find(box)).state == "running"
        assert not (await call(a, "box_lifecycle", action="switch", box=name)).is_error
        assert (await call(a, "read", path="secret.txt")).structured["text"] == "4711"
        assert (await call(a, "read", path="planted")).code == "file_not_found"


async def test_what_the_owner_grants_is_said_to_be_another_s(open_hutch: Open) -> None:
    """With the rights an agent lists, takes over and destroys; a takeover says whose files those are (P6)."""
    every = dict.fromkeys(("list_others", "takeover", "destroy_others"), Decision.ALLOW)
    async with chats(open_hutch, **every) as (_, a, b):
        await call(a, "write", path="secret.txt", content="4711")
        box = (await call(a, "box_query", action="current")).structured["box"]["id"]
        listed = await call(b, "box_query", action="list")
        assert {each["id"]: each["held_by"] for each in listed.structured["boxes"]}[box] == "another session"
        busy = await call(b, "box_lifecycle", action="switch", box=box)
        assert busy.code == "busy" and "takeover" in busy.structured["error"]["hint"]
        copied = await call(b, "box_operation", action="copy_file", source_box=box, source_path="secret.txt")
        assert any("another conversation's" in note for note in copied.notes), copied.text
        taken = await call(b, "box_lifecycle", action="takeover", box=box)
        assert a.hutch.session in taken.text and "another conversation's" in taken.text
        assert (await call(b, "read", path="secret.txt")).structured["text"] == "4711"
        assert "takeover" in str(await b.schemas("openai"))
        assert not (await call(b, "box_lifecycle", action="destroy", box=box)).is_error


async def test_each_right_is_granted_by_itself(open_hutch: Open) -> None:
    """Who may take over may not destroy; who may list may not enter; `ask` asks somebody, about that box (P6, P15)."""
    async with chats(open_hutch, takeover=Decision.ASK, list_others=Decision.ALLOW) as (_, a, b):
        box = (await call(a, "exec", command="true")).structured["box"]
        await call(a, "box_lifecycle", action="release")
        alone = await call(b, "box_lifecycle", action="switch", box=box)
        assert alone.code == "refused" and "nobody can be asked" in alone.text
        asked: list[AskRequest] = []

        async def ask(request: AskRequest) -> Answer:
            asked.append(request)
            return Answer.ALLOW

        b.ask = ask
        assert not (await call(b, "box_lifecycle", action="switch", box=box)).is_error
        assert [(each.action, box in each.what) for each in asked] == [("switch", True)]
        kept = await call(b, "box_lifecycle", action="destroy", box=box)
        assert kept.code == "refused" and "destroy_others" in kept.text
        kept = await call(b, "box_lifecycle", action="set_retention", retention="persistent")
        assert kept.code == "refused", kept.text


async def test_a_given_box_is_used_and_not_destroyed(open_hutch: Open) -> None:
    """`Tools(boxes=...)`, the session's current box and the owner's default box are there for it; a box that its
    session has not made is not its to destroy (P3, P12)."""
    async with open_hutch() as hutch:
        name, session = os.urandom(4).hex(), f"chat-{os.urandom(4).hex()}"
        box = await hutch.create(name=name)
        await box.files.write("f", "given")
        await box.release()
        try:
            assert (await call(Tools(hutch.for_session(session)), "box_lifecycle", action="switch", box=name)).is_error
            for how in ("boxes", "current", "default"):
                view = hutch.for_session(f"{session}-{how}")
                tools = Tools(view, boxes=[name] if how == "boxes" else [])
                if how == "current":
                    await (await view.switch(box.id)).release()
                if how == "default":
                    await hutch.set_default(box.id)
                listed = (await call(tools, "box_query", action="list")).structured["boxes"]
                assert [each["id"] for each in listed] == [box.id], how
                if how == "boxes":
                    assert not (await call(tools, "box_lifecycle", action="switch", box=name)).is_error
                read = await call(tools, "read", path="f")
                assert read.structured["text"] == "given" and (how == "boxes" or "was given to you" in read.text)
                refused = await call(tools, "box_lifecycle", action="destroy", box=name)
                assert refused.code == "refused", refused.text
                await tools.close()
        finally:
            await hutch.destroy(box.id, force=True)


async def test_a_session_finds_its_own_boxes_again(open_hutch: Open) -> None:
    """Who comes back under the same name has all the boxes it made, the current one and the others (B9)."""
    async with chats(open_hutch) as (hutch, a, _):
        first = (await call(a, "exec", command="true")).structured["box"]
        second = (await call(a, "box_lifecycle", action="create")).structured["box"]["id"]
        await a.close()
        again = Tools(hutch.for_session(a.hutch.session))
        listed = (await call(again, "box_query", action="list")).structured["boxes"]
        assert [(each["id"], each["current"]) for each in listed] == [(first, False), (second, True)]
        assert not (await call(again, "box_lifecycle", action="switch", box=first)).is_error
        await again.close()


async def test_the_box_before_is_current_again(open_hutch: Open) -> None:
    """After the second box was destroyed the session works in its first one, also when it came back since (P6, P7)."""
    async with chats(open_hutch) as (hutch, a, _):
        first = (await call(a, "exec", command="echo one > which")).structured["box"]
        for returned in (False, True):
            second = (await call(a, "box_lifecycle", action="create")).structured["box"]["id"]
            tools = a
            if returned:
                await a.close()
                tools = Tools(hutch.for_session(a.hutch.session))
            ended = await call(tools, "box_lifecycle", action="destroy", box=second)
            assert not ended.is_error and f"{first} is current again" in ended.text, ended.text
            found = await call(tools, "exec", command="cat which")
            assert (found.structured["box"], found.structured["stdout"]) == (first, "one\n"), found.text
            await tools.close()


async def test_renewing_makes_no_box(open_hutch: Open) -> None:
    """Without a box in hand there is nothing to renew, and none is made to say so (P6)."""
    async with chats(open_hutch) as (_, a, _b):
        await call(a, "exec", command="true")
        await call(a, "box_lifecycle", action="release")
        refused = await call(a, "box_lifecycle", action="renew")
        assert refused.code == "invalid" and "hold no box" in refused.text, refused.text
        kept = await call(a, "box_lifecycle", action="set_retention", retention="persistent")
        assert kept.code == "invalid", kept.text
        assert len((await call(a, "box_query", action="list")).structured["boxes"]) == 1
