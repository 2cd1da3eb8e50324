"""The same API without `await`, on real boxes."""

import inspect
import os
import signal
from pathlib import Path

import pytest

from hutch import api
from hutch.errors import Conflict, FileMissing, Gone
from hutch.model.questions import AskRequest
from hutch.sync import Box, Files, Hutch, Job, McpServers, Skills, Tools, Volumes
from hutch.tools import AgentPermissions
from tests.mcp.hosting.hosted_servers import plain
from tests.server.serving import serving


@pytest.mark.parametrize(
    ("wrapper", "protocol"),
    [
        (Files, api.Files),
        (Job, api.Job),
        (Box, api.Box),
        (Hutch, api.Hutch),
        (Volumes, api.Volumes),
        (Skills, api.Skills),
        (McpServers, api.McpServers),
    ],
    ids=["files", "job", "box", "hutch", "volumes", "skills", "mcp_servers"],
)
def test_every_public_method_is_there(wrapper: type, protocol: type) -> None:
    wanted = {name for name, member in inspect.getmembers(protocol) if not name.startswith("_") and callable(member)}
    assert wanted <= {name for name in dir(wrapper) if not name.startswith("_")}


def test_a_box_without_await(tmp_path: Path) -> None:
    with Hutch(mount_roots=[str(tmp_path)]) as hutch:
        with hutch.box(memory_mb=128) as box:
            assert box.exec(["echo", "hi"]).stdout == "hi\n"
            box.files.write("a/b.txt", "text")
            assert box.files.read_text("a/b.txt") == "text"
            assert [entry.path for entry in box.files.list("a")] == ["a/b.txt"]
            assert b"".join(box.files.open("a/b.txt")) == b"text"
            with pytest.raises(FileMissing):
                box.files.read("nope")
            stream = box.stream("echo out; echo err >&2")
            assert sorted(stream) == [("stderr", b"err\n"), ("stdout", b"out\n")]
            assert stream.result.ok
            job = box.start("cat")
            job.write("line\n")
            assert job.read(wait=20).text == "line\n"
            job.close_stdin()
            assert job.wait(20).exit_code == 0
            assert box.job(job.id).info().exit_code == 0
            (tmp_path / "tree").mkdir()
            (tmp_path / "tree" / "f").write_text("x")
            box.files.copy_in(tmp_path / "tree", "tree")
            assert box.files.read_text("tree/f") == "x"
            assert [record.id for record in hutch.boxes()] == [box.id]
        with pytest.raises(Gone):
            hutch.attach(box.id)


def test_leaving_a_stream_early_ends_the_command() -> None:
    with Hutch() as hutch, hutch.box() as box:
        for _ in box.stream("yes"):
            break
        assert not box.jobs()


def test_sessions_watches_and_trees_without_await() -> None:
    """All that the protocols have: conversations, sessions, a watch that is in place when it is entered."""
    with Hutch() as hutch:
        with hutch.box_for("{chat}", chat="sync") as box:
            box.rename("named")
            with box.files.watch() as changes:
                box.files.mkdir("d")
                assert next(iter(changes)).path == "d"
            assert box.change(idle_timeout_sec=70) == ()
        assert hutch.find("named").lease is None
        other = hutch.for_session("other")
        assert other.switch(box.id).id == other.current() == box.id
        other.close()
        assert hutch.observe(box.id).info().name == "named"
        assert hutch.volumes.create("sync-volume").name in [each.name for each in hutch.volumes.all()]
        assert hutch.status().available
        hutch.destroy(box.id, force=True)


def test_a_remote_box_without_await() -> None:
    """The remote form, sync."""
    with serving() as server, Hutch(server.announcement["url"], key=server.key("user", "sync")) as hutch:
        with hutch.box() as box:
            assert box.exec("echo hi").stdout == "hi\n"
            stream = box.stream("seq 3")
            assert b"".join(data for _, data in stream) == b"1\n2\n3\n"
            assert stream.result.ok
            with pytest.raises(FileNotFoundError):
                box.files.read("none")
        assert hutch.boxes() == ()


def test_a_forked_child_gets_an_error_at_once() -> None:
    """A fork has no thread that could answer: it gets an error with a remedy instead of waiting for ever (P4)."""
    with Hutch() as hutch, hutch.box() as box:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            reply = b"nothing"
            try:
                signal.alarm(60)  # what hangs ends without a word
                box.exec("true")
            except Conflict as error:
                reply = f"{error.message} ({error.remedy})".encode()
                hutch.close()  # leaves the parent's boxes alone
            finally:
                os.write(writing, reply)
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as answer:
            reply = answer.read().decode()
        os.waitpid(child, 0)
        assert f"this Hutch belongs to process {os.getpid()}" in reply and "after the fork" in reply
        assert box.exec("echo here").stdout == "here\n"


def test_hooks_metrics_and_moves_without_await() -> None:
    """Hooks are ordinary functions that may use the box they are given (P10, P19, S9, S10)."""
    came: list[str] = []
    went: list[str] = []

    def prepare(box: Box) -> None:
        box.files.write("prepared", "yes")
        came.append(box.id)

    with Hutch() as hutch:
        hutch.on_created(prepare)
        hutch.on_destroyed(lambda event: went.append(event.box_id))
        box = hutch.create(wait=False)
        box.ready(20)
        assert box.files.read_text("prepared") == "yes"
        box.move_to("{chat}", chat="sync-moved")
        with hutch.for_session("operator").box_for("{chat}", kind="sync", chat="other") as other:
            assert hutch.administer(other.id).exec("cat prepared").stdout == "yes"
        assert hutch.metrics().kinds["sync"].created == 1
        hutch.destroy(box.id, force=True)
        hutch.destroy(other.id, force=True)
        assert came == [box.id, other.id] == went
        assert (box.spec.profile, hutch.status().profile) == ("default", "default")


def test_tools_without_await() -> None:
    """A model's tools, a person who is asked, and progress, all as ordinary functions."""
    asked: list[str] = []

    def ask(request: AskRequest) -> str:
        asked.append(request.tool)
        return "allow"

    rules = AgentPermissions.from_plain({"tools": {"exec": "ask"}})
    with Hutch() as hutch, Tools(hutch, ask=ask, permissions=rules) as tools:
        assert "exec" in [schema["function"]["name"] for schema in tools.schemas()]
        assert "isolated" in tools.guidance() and tools.status().available
        assert "42" in tools.call("exec", {"command": "echo 42"}).text and asked == ["exec"]
        reports: list[float] = []
        tools.call("exec", {"command": "sleep 1.5"}, progress=lambda seconds, total, text: reports.append(seconds))
        assert reports
        call = {"id": "1", "function": {"name": "exec", "arguments": '{"command": "echo hi"}'}}
        assert "hi" in tools.answer_openai({"tool_calls": [call]})[0]["content"]
        use = {"type": "tool_use", "id": "2", "name": "exec", "input": {"command": "echo ho"}}
        assert "ho" in tools.answer_anthropic({"content": [use]})["content"][0]["content"][0]["text"]


def test_mcp_servers_without_await(tmp_path: Path) -> None:
    """A server in a box, registered, called and removed; it ends with the Hutch that hosts it (B32)."""
    with Hutch(mount_roots=(), state_dir=tmp_path / "state") as hutch:
        servers = hutch.mcp_servers
        servers.add("plain", plain(tmp_path / "project"))
        assert "echo" in [tool.name for tool in servers.tools("plain")]
        assert servers.call("plain", "echo", {"text": "hi"})["content"]
        assert servers.info("plain").state == "ready"
        servers.remove("plain")
        assert servers.all() == ()
