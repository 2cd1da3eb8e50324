"""`hutch run`: output, input, exit codes, verdicts and errors as a shell sees them."""

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest

from hutch.linux.cgroups import detect
from hutch.providers.native import cleanup
from tests.cli.cli_process import TIMEOUT, answer, hutch, read_until, started
from tests.leaks import leaving_no_trace


def test_output_and_exit_code_are_the_commands_own(hutch_directories: Path) -> None:
    """Both streams, byte for byte, the exit code, and nothing of Hutch's own; nothing remains."""
    with leaving_no_trace(hutch_directories / "r", hutch_directories / "s"):
        done = hutch("run", "--", "sh", "-c", "printf 'out\\377\\n'; printf err >&2; exit 7")
        assert (done.returncode, done.stdout, done.stderr) == (7, b"out\xff\n", b"err")


def test_every_byte_of_the_input_arrives() -> None:
    """A pipe is fed to the end; more than any buffer on the way holds."""
    data = bytes(range(256)) * 4096
    done = hutch("run", "cat", stdin=data)
    assert done.returncode == 0
    assert done.stdout == data


def test_output_is_shown_while_the_command_runs() -> None:
    """The first line is here before the command, which waits for our answer, can have ended."""
    with started("run", "--", "sh", "-c", "echo ready; read line; echo got $line") as process:
        assert process.stdin and process.stdout
        assert read_until(process.stdout.fileno(), b"\n") == b"ready\n"
        process.stdin.write(b"it\n")
        assert read_until(process.stdout.fileno(), b"\n") == b"got it\n"
        assert process.wait(TIMEOUT) == 0


def test_much_output_is_complete() -> None:
    """No byte of 20 MB is lost between the box and a pipe."""
    script = "i=0; while [ $i -lt 20 ]; do head -c 1048576 /dev/zero; i=$((i+1)); done"
    done = hutch("run", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(bytes(20 << 20)).digest()


def test_a_reader_that_leaves_ends_the_command() -> None:
    """`hutch run -- yes | head -1` ends, quietly, as if SIGPIPE had."""
    with started("run", "--", "yes") as process:
        assert process.stdout and process.stderr
        read_until(process.stdout.fileno(), b"y\n")
        process.stdout.close()
        assert process.wait(TIMEOUT) == 141
        assert process.stderr.read() == b""


def test_a_timeout_has_its_code_and_its_line() -> None:
    """124, and one line says why and what to do (lesson 24)."""
    done = hutch("run", "--timeout", "0.3", "--", "sleep", "60")
    assert done.returncode == 124
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("hutch: timeout: ")


def test_a_limit_that_was_reached_is_reported_on_a_line() -> None:
    """The command's own exit code, and beside its own complaint the limit and the remedy (lesson 24)."""
    done = hutch("run", "--disk", "4", "--", "sh", "-c", "head -c 20000000 /dev/zero > file; exit 3")
    assert done.returncode == 3
    assert "hutch: disk: " in done.stderr.decode()


def test_an_adjustment_is_reported() -> None:
    """What policy changed is said; the command runs all the same."""
    done = hutch("run", "--timeout", "600", "--", "true")
    assert done.returncode == 0
    assert "timeout_sec 600 → 120" in done.stderr.decode()


def test_more_memory_than_the_machine_has_is_reported() -> None:
    """A limit that could hold nothing back becomes what there is, and says so (B17)."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    done = hutch("run", "--memory", "9999999", "--", "true")
    assert done.returncode == 0
    assert f"memory_mb 9999999 → {there}: that is all the memory of the machine".encode() in done.stderr
    assert hutch("run", "--memory", "64", "--", "true").stderr == b""


def test_the_result_as_json() -> None:
    """`--json`: one object, with text, verdict and usage; bytes that are no text come as base64 too."""
    code, result = answer("run", "--timeout", "600", "--", "sh", "-c", "printf '\\377'; echo err >&2; exit 3")
    assert code == 3
    assert (result["exit_code"], result["stderr"], result["verdict"]["cause"]) == (3, "err\n", "exit")
    assert base64.b64decode(result["stdout_base64"]) == b"\xff"
    assert "stderr_base64" not in result
    assert result["usage"]["wall_sec"] > 0
    assert any("600" in note for note in result["notes"])


BAD = [
    (("--profile", "defalt", "--", "true"), 125, "defalt"),
    (("--image", "dir:/nowhere", "--", "true"), 125, "/nowhere"),
    (("--image", "floppy", "--", "true"), 125, "floppy"),
    (("--user", "nobody-there", "--", "true"), 125, "nobody-there"),
    (("--workdir", "/nowhere", "--", "true"), 125, "/nowhere"),
    (("--mount", "./missing:/data", "--", "true"), 125, "missing"),
    (("--mount", "/etc:/data", "--", "true"), 125, "/etc"),
    (("--memory", "-1", "--", "true"), 125, "-1"),
    (("--cpus", "many", "--", "true"), 125, "many"),
    (("--nett", "on", "--", "true"), 125, "--nett"),
    ((), 125, "command"),
    (("--", "no-such-program"), 127, "no-such-program"),
    (("--", "/etc/passwd"), 126, "/etc/passwd"),
]


@pytest.mark.parametrize(("words", "code", "what"), BAD)
def test_bad_input_is_named_with_a_remedy(
    words: tuple[str, ...], code: int, what: str, hutch_directories: Path
) -> None:
    """Bad input: a message that names it, Hutch's own exit code, as JSON too; nothing half-made remains."""
    with leaving_no_trace(hutch_directories / "r", hutch_directories / "s"):
        done = hutch("run", "--json", *words)
    assert done.returncode == code, done
    (line,) = done.stdout.decode().splitlines()
    assert what in line
    assert line.startswith('{"error":{"code":')
    assert json.loads(line)["error"]["remedy"]
    assert done.stderr == b""


@pytest.mark.alone
def test_bad_input_leaves_no_control_group(hutch_directories: Path) -> None:
    """Groups have no keeper's name that a caller could know: those are counted that no living keeper holds."""
    machine = detect()

    def abandoned() -> list[str]:
        return cleanup.sweep_groups(machine, dry_run=True)

    with leaving_no_trace(hutch_directories / "r", hutch_directories / "s", groups=abandoned):
        for words, code, _ in BAD:
            assert hutch("run", *words).returncode == code, words


def test_an_error_has_its_fix_on_a_line_of_its_own() -> None:
    done = hutch("run", "--profile", "defalt", "--", "true")
    first, second = done.stderr.decode().splitlines()
    assert first.startswith("hutch: ") and "defalt" in first
    assert second.startswith("  fix: ") and "default" in second


def test_what_a_box_is_given(tmp_path: Path) -> None:
    """Variables, a secret of our environment, the working directory and a mount, all from flags."""
    (tmp_path / "data").mkdir(0o755)
    (tmp_path / "data" / "file").write_text("from the host")
    os.chmod(tmp_path, 0o755)
    script = 'echo "$A $B $S $PWD $(cat /data/file)"; id -u'
    done = hutch(
        "run", "--env", "A=1", "-e", "B", "--secret", "S", "--workdir", "/tmp", "--mount", "data:/data",
        "--", "sh", "-c", script, env={"B": "2", "S": "3"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.decode().splitlines() == ["1 2 3 /tmp from the host", "1000"], done.stderr


def test_closed_descriptors_do_no_harm() -> None:
    """A caller may have closed its input; the command then has an empty one."""
    done = hutch_without_stdin("run", "--", "sh", "-c", "cat; echo end")
    assert done == (0, b"end\n")


def hutch_without_stdin(*words: str) -> tuple[int, bytes]:
    with started(*words, stdin=None, preexec_fn=lambda: os.close(0)) as process:
        out, _ = process.communicate(timeout=TIMEOUT)
        return process.returncode, out
