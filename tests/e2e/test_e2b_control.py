"""The newest E2B SDK drives sandboxes on boxes: their life, their clocks, and who may use them (S13)."""

import os
import signal
from pathlib import Path

import e2b
import pytest

from tests.e2e.e2b_sdk import E2B
from tests.server.serving import until


def test_a_sandbox_is_a_box(hutch_e2b: E2B) -> None:
    """(S13) What the SDK creates is a box of the key's owner, with its metadata as labels."""
    with hutch_e2b.sandbox(metadata={"job": "seven"}, envs={"COLOR": "blue"}) as sandbox:
        boxes = hutch_e2b.server.unix(hutch_admin="yes").good("GET", "/v1/boxes")["boxes"]
        found = next(box for box in boxes if box["id"] == sandbox.sandbox_id)
        assert found["owner"] == "e2b"
        assert found["spec"]["labels"]["job"] == "seven"
        assert sandbox.commands.run("echo $COLOR").stdout == "blue\n"
        info = sandbox.get_info()
        assert (info.template_id, info.metadata) == ("base", {"job": "seven"})


def test_it_ends_once(hutch_e2b: E2B) -> None:
    """(S13) A killed sandbox is gone for every call, and killing it again is no error."""
    sandbox = e2b.Sandbox.create(**hutch_e2b.options)
    assert sandbox.is_running()
    assert sandbox.kill()
    assert not sandbox.is_running()
    assert not sandbox.kill()
    with pytest.raises(e2b.SandboxNotFoundException):
        sandbox.get_info()
    with pytest.raises(e2b.SandboxException):
        sandbox.commands.run("true")


def test_connect_finds_it_again_and_never_shortens_its_life(hutch_e2b: E2B) -> None:
    """(S13) `connect` extends the end of a running sandbox, and leaves a later one alone."""
    with hutch_e2b.sandbox(timeout=600) as sandbox:
        sandbox.files.write("note", "still here")
        before = sandbox.get_info().end_at
        again = e2b.Sandbox.connect(sandbox.sandbox_id, timeout=5, **hutch_e2b.options)
        assert again.files.read("note") == "still here"
        assert again.get_info().end_at == before
        again.set_timeout(1200)
        assert again.get_info().end_at > before


def test_unknown_templates_and_bad_timeouts_are_refused(hutch_e2b: E2B) -> None:
    """(S13) The SDK's own error classes say what was wrong."""
    with pytest.raises(e2b.SandboxException, match="template 'nonesuch' not found"):
        e2b.Sandbox.create("nonesuch", **hutch_e2b.options)
    with pytest.raises(e2b.SandboxException, match="400"):
        e2b.Sandbox.create(timeout=86400 * 365, **hutch_e2b.options)


def test_options_that_nothing_enforces_are_refused(hutch_e2b: E2B) -> None:
    """(S13) A network rule is refused, not ignored."""
    with pytest.raises(e2b.SandboxException, match=r"501.*network"):
        e2b.Sandbox.create(network={"deny_out": ["8.8.8.8"]}, **hutch_e2b.options)


def test_a_wrong_key_opens_nothing(hutch_e2b: E2B) -> None:
    """(S13) A wrong key is the SDK's authentication error."""
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create(**{**hutch_e2b.options, "api_key": "e2b_" + "0" * 40})


def test_other_owners_see_nothing(hutch_e2b: E2B, sandbox: e2b.Sandbox) -> None:
    """(S13) Another owner's key neither lists, finds nor ends a sandbox, and its token opens no other sandbox."""
    other = E2B(hutch_e2b.server, owner="stranger")
    assert e2b.Sandbox.list(**other.options).next_items() == []
    with pytest.raises(e2b.NotFoundException):
        e2b.Sandbox.connect(sandbox.sandbox_id, **other.options)
    assert not e2b.Sandbox.kill(sandbox.sandbox_id, **other.options)
    with other.sandbox() as theirs:
        client = hutch_e2b.server.tcp().saying(
            e2b_sandbox_id=sandbox.sandbox_id,
            x_access_token=theirs._envd_access_token,  # type: ignore[arg-type]
        )
        answer = client.call("GET", "/files?path=/etc/passwd")
    assert answer.status == 401


def test_the_list_is_paged_and_filtered(hutch_e2b: E2B) -> None:
    """(S13) Metadata, states and pages select sandboxes, newest first."""
    made = [e2b.Sandbox.create(metadata={"batch": "a b&c", "n": str(n)}, **hutch_e2b.options) for n in range(3)]
    try:
        query = e2b.SandboxQuery(metadata={"batch": "a b&c"})
        pages = e2b.Sandbox.list(query=query, limit=2, **hutch_e2b.options)
        first = pages.next_items()
        assert [each.sandbox_id for each in first] == [made[2].sandbox_id, made[1].sandbox_id]
        assert pages.has_next
        assert [each.sandbox_id for each in pages.next_items()] == [made[0].sandbox_id]
        assert not pages.has_next
    finally:
        for each in made:
            each.kill()


def test_pause_keeps_memory_and_connect_resumes(hutch_e2b: E2B) -> None:
    """(S13) A paused sandbox answers nothing, is listed as paused, and continues where it was."""
    with hutch_e2b.sandbox() as sandbox:
        job = sandbox.commands.run("sleep 1000", background=True)
        assert sandbox.pause()
        assert not sandbox.is_running()
        assert not sandbox.pause()
        with pytest.raises(e2b.SandboxException):
            sandbox.commands.run("true")
        query = e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED])
        assert sandbox.sandbox_id in [
            each.sandbox_id for each in e2b.Sandbox.list(query=query, **hutch_e2b.options).next_items()
        ]
        again = sandbox.connect()
        assert again.is_running()
        assert job.pid in [each.pid for each in again.commands.list()]


def test_a_pause_without_memory_keeps_the_files(hutch_e2b: E2B) -> None:
    """(S13) `keep_memory=False` ends the processes and keeps the files; so does a timeout that says so."""
    with hutch_e2b.sandbox(timeout=600) as sandbox:
        sandbox.files.write("note", "kept")
        sandbox.commands.run("sleep 600", background=True)
        assert sandbox.pause(keep_memory=False)
        sandbox.connect()
        assert sandbox.files.read("note") == "kept"
        assert sandbox.commands.list() == []
        assert "sleep" not in sandbox.commands.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    lifecycle = e2b.SandboxLifecycle(on_timeout={"action": "pause", "keep_memory": False})
    with hutch_e2b.sandbox(timeout=2, lifecycle=lifecycle) as sandbox:
        sandbox.commands.run("sleep 600", background=True)
        until(lambda: sandbox.get_info().state == e2b.SandboxState.PAUSED, 60)
        sandbox.connect()
        assert sandbox.commands.list() == []


def test_a_strict_pause_wants_an_answer(hutch_e2b: E2B) -> None:
    """(S13) A pause that asks for a healthy guest is refused while the sandbox does not answer, and the sandbox keeps
    running."""
    with hutch_e2b.sandbox() as sandbox:
        sandbox.commands.run("exec -a strict-pause sleep 600", background=True)
        guest = first_process_of(b"strict-pause")
        os.kill(guest, signal.SIGSTOP)
        try:
            with pytest.raises(e2b.ServiceBusyException, match="does not answer"):
                sandbox.pause(strict=True)
        finally:
            os.kill(guest, signal.SIGCONT)
        assert sandbox.get_info().state is e2b.SandboxState.RUNNING
        assert sandbox.pause(strict=True)


def first_process_of(mark: bytes) -> int:
    """The first process of the box in which a process of this name runs, by its number outside."""
    pid = 0

    def found() -> bool:
        nonlocal pid
        pid = next((int(each.name) for each in Path("/proc").glob("[0-9]*") if _has_argument(each, mark)), 0)
        return pid != 0

    until(found)
    while (fields := _status(pid))["NSpid"][-1] != "1":
        pid = int(fields["PPid"][0])
    return pid


def _has_argument(process: Path, mark: bytes) -> bool:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")[0] == mark
    except OSError:  # It has ended meanwhile.
        return False


def _status(pid: int) -> dict[str, list[str]]:
    lines = (line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.split() for name, value in lines}


def test_an_earlier_resume_says_what_the_timeout_does(hutch_e2b: E2B) -> None:
    """(S13) Earlier releases say at a resumption whether the sandbox pauses at its timeout."""
    with hutch_e2b.sandbox() as sandbox:
        client = hutch_e2b.server.tcp().saying(x_api_key=hutch_e2b.key, content_type="application/json")
        for pauses, then in ((True, "pause"), (False, "kill")):
            assert sandbox.pause()
            body = {"timeout": 600, "autoPause": pauses}
            assert client.call("POST", f"/sandboxes/{sandbox.sandbox_id}/resume", body).status == 201
            assert (sandbox.get_info().lifecycle or {}).get("on_timeout") == then


def test_a_sandbox_pauses_at_its_timeout_and_resumes_when_it_is_used(hutch_e2b: E2B) -> None:
    """(S13) `on_timeout: pause` freezes a sandbox instead of killing it; `auto_resume` lets any request wake it."""
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    with hutch_e2b.sandbox(timeout=60, lifecycle=lifecycle) as sandbox:
        sandbox.set_timeout(0)
        until(lambda: sandbox.get_info().state is e2b.SandboxState.PAUSED)
        assert sandbox.commands.run("echo awake").stdout == "awake\n"
        assert sandbox.get_info().state is e2b.SandboxState.RUNNING


def test_a_sandbox_is_killed_at_its_timeout(hutch_e2b: E2B) -> None:
    """(S13, Lesson 13) The box ends at the sandbox's end, and the SDK learns that it is gone."""
    with hutch_e2b.sandbox(timeout=60) as sandbox:
        sandbox.set_timeout(0)
        until(lambda: not sandbox.is_running())
        with pytest.raises(e2b.SandboxNotFoundException):
            sandbox.get_info()


def test_metrics(sandbox: e2b.Sandbox) -> None:
    """(S13) A sandbox reports what it uses of what it has."""
    metric = sandbox.get_metrics()[0]
    assert 0 < metric.mem_used < metric.mem_total
    assert metric.disk_total > 0
    assert metric.cpu_used_pct >= 0


def test_aliases_of_templates(hutch_e2b: E2B) -> None:
    """(S13) The templates of the SDKs exist; others do not."""
    assert e2b.Template.exists("base", **_api(hutch_e2b))
    assert not e2b.Template.exists("nonesuch", **_api(hutch_e2b))


def _api(hutch_e2b: E2B) -> dict[str, str]:
    return {name: value for name, value in hutch_e2b.options.items() if name != "sandbox_url"}
