"""The newest E2B SDK runs commands in boxes: output, ends, input, signals, terminals (S13)."""

import time
from concurrent.futures import ThreadPoolExecutor

import e2b
import pytest
from e2b import CommandExitException, PtySize

from tests.e2e.e2b_sdk import E2B


def test_output_exit_code_and_streams(sandbox: e2b.Sandbox) -> None:
    """(S13) A command's streams arrive apart, as it writes them; a failure is the SDK's own exception."""
    pieces: list[str] = []
    result = sandbox.commands.run("echo out; echo err >&2", on_stdout=pieces.append)
    assert (result.stdout, result.stderr, pieces) == ("out\n", "err\n", ["out\n"])
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("exit 3")
    assert failed.value.exit_code == 3


def test_home_user_environment_and_directory(sandbox: e2b.Sandbox) -> None:
    """(S13) Commands run as `user` in /home/user; `~`, cwd and envs are followed; a wrong cwd is an argument error."""
    assert sandbox.commands.run("whoami; pwd").stdout == "user\n/home/user\n"
    sandbox.commands.run("mkdir -p below")
    result = sandbox.commands.run("pwd; echo $A", cwd="below", envs={"A": "b c"})
    assert result.stdout == "/home/user/below\nb c\n"
    with pytest.raises(e2b.InvalidArgumentException):
        sandbox.commands.run("true", cwd="/no/such/place")


def test_tools_that_every_template_has(sandbox: e2b.Sandbox) -> None:
    """(S13) The base template has what programs on the SDK expect."""
    sandbox.commands.run("for name in python3 git curl bash; do command -v $name || exit 1; done")


def test_a_timeout_kills_the_command_and_spares_the_sandbox(sandbox: e2b.Sandbox) -> None:
    """(S13, Lesson 16) At its deadline a command is killed; the sandbox keeps running."""
    with pytest.raises(e2b.TimeoutException):
        sandbox.commands.run("echo $$ > late.pid; exec sleep 100", timeout=1)
    state = "kill -0 $(cat late.pid) 2>/dev/null && echo alive || echo dead"
    deadline = time.monotonic() + 20
    while sandbox.commands.run(state).stdout != "dead\n":
        assert time.monotonic() < deadline


def test_background_processes_are_listed_fed_connected_and_killed(sandbox: e2b.Sandbox) -> None:
    """(S13, Lesson 22) A process in the background keeps running without its starter."""
    handle = sandbox.commands.run("while read line; do echo got $line; done", background=True, stdin=True)
    assert handle.pid in [each.pid for each in sandbox.commands.list()]
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "one\n")
    assert next(iter(again))[0] == "got one\n"
    assert sandbox.commands.kill(handle.pid)
    with pytest.raises(CommandExitException):
        again.wait()
    assert not sandbox.commands.kill(handle.pid)


def test_input_can_be_closed(sandbox: e2b.Sandbox) -> None:
    """(S13) A filter ends when its input does."""
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "all\n")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "all\n"


def test_terminals_have_a_size(sandbox: e2b.Sandbox) -> None:
    """(S13) A PTY is a terminal of the asked size, can be resized, and ends with its shell."""
    terminal = sandbox.pty.create(PtySize(rows=33, cols=99))
    sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    seen = b""
    for _, _, data in terminal:
        seen += data or b""
        if b"33 99" in seen:
            break
    sandbox.pty.resize(terminal.pid, PtySize(rows=44, cols=111))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    for _, _, data in terminal:
        seen += data or b""
    assert b"44 111" in seen


def test_much_output_arrives_whole(sandbox: e2b.Sandbox) -> None:
    """(S13, Lesson 17) Megabytes of output arrive complete and in order."""
    result = sandbox.commands.run("seq 400000")
    assert result.stdout.splitlines() == [str(n) for n in range(1, 400001)]


def test_root_on_request(sandbox: e2b.Sandbox, rootless: bool) -> None:
    """(S13) `user="root"` is the sandbox's root where the machine's Hutch can give one; else it is refused in words."""
    if rootless:
        with pytest.raises(e2b.SandboxException):
            sandbox.commands.run("id -u", user="root")
        return
    assert sandbox.commands.run("id -u; pwd", user="root").stdout == "0\n/root\n"


def test_input_can_be_streamed(sandbox: e2b.Sandbox) -> None:
    """(S13) Pieces of input arrive as they are sent, in one call."""
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.stream_input(handle.pid, (piece for piece in ("one\n", "two\n")))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\ntwo\n"


@pytest.mark.parametrize(
    "body",
    [b"", b"\x00", b"\x00\x00\x00\x00\x05{", b"\x00\xff\xff\xff\xff{}", b"\x01\x00\x00\x00\x02{}",
     b"\x00\x00\x00\x00\x02[]", b"\x00\x00\x00\x00\x02{}", b"{}"],
)  # fmt: skip
def test_malformed_messages_are_refused_and_the_sandbox_keeps_running(
    hutch_e2b: E2B, sandbox: e2b.Sandbox, body: bytes
) -> None:
    """(S13, Lesson 47) Half an envelope, a huge one, a compressed one, one of another shape: refused in words."""
    client = hutch_e2b.server.tcp().saying(
        e2b_sandbox_id=sandbox.sandbox_id,
        x_access_token=sandbox._envd_access_token,  # type: ignore[arg-type]
        content_type="application/connect+json",
    )
    answer = client.call("POST", "/process.Process/Start", body)
    assert answer.status in (400, 413)
    assert answer.json()["message"]
    assert sandbox.commands.run("echo on").stdout == "on\n"


def test_a_sandbox_can_be_killed_by_several_at_once(hutch_e2b: E2B) -> None:
    """(S13, Lesson 3) Concurrent kills while commands run all succeed or find nothing; the command gets an error."""
    sandbox = e2b.Sandbox.create(**hutch_e2b.options)
    handle = sandbox.commands.run("sleep 100", background=True)
    with ThreadPoolExecutor(4) as pool:
        killed = list(pool.map(lambda _: e2b.Sandbox.kill(sandbox.sandbox_id, **hutch_e2b.options), range(4)))
    assert any(killed)
    with pytest.raises(e2b.TimeoutException):
        handle.wait()
    assert not sandbox.is_running()
