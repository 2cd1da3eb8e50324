"""Programs of kernel calls: the descriptor numbers that a writer expects are those that the kernel gives."""

import marshal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hutch.linux import kernel, landlock, seccomp
from hutch.linux.syscall_numbers import NUMBERS
from hutch.providers.native.rootfs import root
from hutch.providers.native.spawn import child_steps, kernel_limits
from hutch.providers.native.spawn import program as programs
from hutch.providers.native.spawn.program import ProgramWriter, perform

STREAMS = (0, 1, 2)


def alone(code: str, *arguments: str) -> str:
    """What `code` prints in a process that has its standard streams open and nothing else."""
    prelude = """
        import marshal, os, sys
        from hutch.providers.native.spawn.program import Inbox, ProgramWriter, perform, send
        os.closerange(3, 64)
        def performed(writer):
            for _, steps in marshal.loads(writer.to_bytes())[0]:
                perform(steps)
    """
    program = textwrap.dedent(prelude) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_descriptor_has_the_expected_number(tmp_path: Path) -> None:
    """Also where an earlier one was closed: the kernel fills the gap first."""
    code = """
        top = sys.argv[1]
        writer = ProgramWriter((0, 1, 2))
        writer.part("open")
        first, second = (writer.open(f"{top}/{name}", os.O_CREAT | os.O_WRONLY, 0o644) for name in "ab")
        writer.close(first)
        third = writer.open(f"{top}/c", os.O_CREAT | os.O_WRONLY, 0o644)
        writer.call("write", third, b"here", 4, answer=4)
        performed(writer)
        print(first, second, third, os.readlink(f"/proc/self/fd/{second}"), open(f"{top}/c").read())
    """
    assert alone(code, str(tmp_path)) == f"3 4 3 {tmp_path}/b here"


def test_an_unexpected_number_ends_the_program() -> None:
    """Something is open that the writer did not know of: going on would mean the wrong file."""
    code = """
        os.open("/", os.O_RDONLY)
        writer = ProgramWriter((0, 1, 2))
        writer.part("open")
        writer.open("/etc", os.O_RDONLY)
        writer.mkdir("/nowhere/ever", 0o755)
        try:
            performed(writer)
        except OSError as error:
            print(error)
    """
    said = alone(code)
    assert "the answer was 4 where 3 was expected" in said
    assert "openat(-100, b'/etc'" in said


def test_a_refused_call_says_which(tmp_path: Path) -> None:
    writer = ProgramWriter(STREAMS)
    writer.part("make")
    writer.mkdir(str(tmp_path), 0o755)
    ((_, steps),) = writer._parts
    with pytest.raises(FileExistsError, match="mkdirat"):
        perform(tuple(steps))


def test_descriptors_come_with_each_program() -> None:
    """Three, then one, then none, then three again: what the kernel noted of one message does not bound the next."""
    code = """
        import socket
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # 3 and 4
        inbox, expected = Inbox(), 5
        for many in (3, 1, 0, 3):
            send(ours, marshal.dumps(many), [0] * many)
            assert inbox.receive(theirs.fileno()) and marshal.loads(inbox.content) == many
            expected += many
        found = sorted(int(name) for name in os.listdir("/proc/self/fd"))
        assert found[: expected + 1] == list(range(expected + 1)), found  # and the listing's own
        assert not any(os.get_inheritable(fd) for fd in range(3, expected))
        ours.close()
        print(inbox.receive(theirs.fileno()))
    """
    assert alone(code) == "0"


def test_a_program_that_is_too_large_is_refused() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with pytest.raises(OSError, match="too large"):
            programs.send(ours, bytes(programs.MAX_PROGRAM_BYTES + 1))
        with pytest.raises(OSError, match="too large"):
            programs.send(ours, b"x", [0] * (programs.MAX_DESCRIPTORS + 1))


def test_as_many_descriptors_as_the_kernel_sends_at_once() -> None:
    code = """
        import socket
        from hutch.providers.native.spawn.program import MAX_DESCRIPTORS
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        send(ours, b"x", [0] * MAX_DESCRIPTORS)
        inbox = Inbox()
        before = len(os.listdir("/proc/self/fd"))
        inbox.receive(theirs.fileno())
        print(len(os.listdir("/proc/self/fd")) - before == MAX_DESCRIPTORS)
    """
    assert alone(code) == "True"


@pytest.mark.parametrize("machine", NUMBERS)
@pytest.mark.parametrize("has_id_ranges", [True, False], ids=["root", "ordinary user"])
def test_a_childs_programs_can_be_written_for_every_machine(
    monkeypatch: pytest.MonkeyPatch, machine: str, has_id_ranges: bool
) -> None:
    """Each call that it needs has a number there: aarch64 has none of the old ones (mkdir, dup2)."""
    monkeypatch.setattr(programs, "NR", NUMBERS[machine])
    settings = child_steps.SpawnerSettings(
        run="/run", has_id_ranges=has_id_ranges, last_capability=40, filter=seccomp.Filter(seccomp.program()),
        domain=landlock.Domain(7), command_line=kernel.CommandLine(), masks=(("kcore", False),), without=frozenset(),
        sysctls=kernel_limits.NamespaceLimits.known().network, own_accounts=has_id_ranges,
    )  # fmt: skip
    host_mounts = (root.HostMount("/srv", "/mnt", False, 1, 2),)
    templates = [
        root.BoxTemplate(
            ("/image",), (("/usr", "usr"),), (("/etc", "etc"),), True, True, "on", None, store, (("/s", "w/s"),)
        )
        for store in (None, "/store")
    ]
    written = child_steps.ChildPrograms(settings)
    for template in templates:
        texts = [
            written.enter(4), written.begin(template, host_mounts), written.name_servers("n", host_mounts),
            written.finish(template, child_steps.BoxParameters(1 << 20, 100, 64, 16, host_mounts, 1.5, 512), "box"),
        ]  # fmt: skip
        ends = [marshal.loads(text)[1] for text in texts]
        assert ends[:3] == [None] * 3
        options, keeper, notify_fd = marshal.loads(ends[3])[1]
        assert child_steps.SPILL < options < keeper and notify_fd > child_steps.SPILL
