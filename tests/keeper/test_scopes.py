"""How a conversation finds its box."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch import Hutch
from hutch.errors import Invalid
from hutch.keeper.access.scopes import READY_MADE, scope

VALUES = {
    "launcher_type": "group", "launcher_id": "7", "sender_id": "3", "conversation_id": "c1", "query_id": "q9",
    "pipeline_id": "p", "project_id": "x", "kind": "app", "user": "u", "task": "t",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(READY_MADE))
def test_every_ready_made_scope_is_one_setting(name: str) -> None:
    """Each of the scenarios is the name of a scope (B9)."""
    assert scope(name, VALUES, owner="o") == scope(READY_MADE[name], VALUES, owner="o")


def test_group_chats_share_or_separate_as_named() -> None:
    """A shared group assistant and a group isolated per user differ only in the scope's name (B9)."""
    other = VALUES | {"sender_id": "4"}
    assert scope("chat", VALUES, owner="o").key == scope("chat", other, owner="o").key
    assert scope("user_in_chat", VALUES, owner="o").key != scope("user_in_chat", other, owner="o").key


@pytest.mark.parametrize("missing", [{}, {"user": None}, {"user": ""}])
def test_a_missing_variable_is_an_error_not_a_shared_box(missing: dict[str, object]) -> None:
    """No identity, no sharing (lesson 33)."""
    with pytest.raises(Invalid, match="needs user"):
        scope("{chat}_{user}", {"chat": 1} | missing, owner="o")


@pytest.mark.parametrize("template", ["", "plain", "{}", "{0}", "{a.b}", "{a[0]}", "{a", "}{"])
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(Invalid):
        scope(template, {"a": 1}, owner="o")


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_different_values_give_different_keys(a: str, b: str, c: str, d: str) -> None:
    """The rendered text may be equal, the key is not (lesson 30)."""
    first = scope("{x}_{y}", {"x": a, "y": b}, owner="o")
    second = scope("{x}_{y}", {"x": c, "y": d}, owner="o")
    assert (first.key == second.key) == ((a, b) == (c, d))


def test_owners_and_kinds_give_different_keys() -> None:
    """The tenant is part of the key (B15)."""
    keys = {scope("user", VALUES, owner=owner, kind=kind).key for owner in "ab" for kind in ("", "app", "desktop")}
    assert len(keys) == 6


def test_a_task_is_named_or_the_conversation_or_new() -> None:
    """`{kind}:{user}:{task}`; and anonymous users are not merged, they are refused (S2)."""
    user = {"kind": "app", "user": "u"}
    named = scope("task", user | {"task": "t", "conversation_id": "c"}, owner="o")
    talk = scope("task", user | {"conversation_id": "c"}, owner="o")
    assert named == scope("task", user | {"task": "t"}, owner="o")
    assert talk == scope("task", user | {"task": "c"}, owner="o")
    assert talk != named
    assert scope("task", user, owner="o") != scope("task", user, owner="o")
    with pytest.raises(Invalid, match="needs user"):
        scope("task", {"kind": "app", "task": "t"}, owner="o")


async def test_the_settings_of_a_bot_platform(tmp_path: Path) -> None:
    """Image, host workspace and limits stand in a profile, the default one; a pipeline that names no scope has a box
    for each chat, and a template of its own may distinguish conversations (B43)."""
    host = tmp_path / "bots"
    host.mkdir()
    host.chmod(0o777)
    config = tmp_path / "hutch.toml"
    config.write_text(
        f'profile = "bots"\nmount_roots = ["{tmp_path}"]\n[profiles.bots]\nimage = "host"\n'
        f'limits = {{ memory_mb = 96, pids = 50 }}\nworkspace = {{ source = "{host}" }}\n'
    )
    talk = "{launcher_type}_{launcher_id}_{conversation_id}"
    values: dict[str, object] = {"launcher_type": "group", "launcher_id": "7"}
    async with Hutch(config=config) as hutch:
        async with hutch.box_for("chat", **values, conversation_id="a") as chat:
            assert (await chat.exec("echo here >file")).ok and (host / "file").read_text() == "here\n"
            spec = chat.spec
            assert (spec.image, spec.limits.memory_mb, spec.limits.pids) == ("host", 96, 50)
        async with hutch.box_for("chat", **values, conversation_id="b") as same:
            assert same.id == chat.id
        async with hutch.box_for(talk, **values, conversation_id="a") as first:
            async with hutch.box_for(talk, **values, conversation_id="b") as second:
                assert len({chat.id, first.id, second.id}) == 3
                await second.destroy()
            await first.destroy()
        await hutch.destroy(chat.id)
