"""The commands beside `run` and `shell`: help, version, configuration, profiles, providers, completion, doctor."""

import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hutch import __version__
from hutch.cli import options
from hutch.cli.commands import COMMANDS, completion
from hutch.cli.main import split
from hutch.cli.parsers import parser_of
from hutch.errors import Invalid
from tests.cli.cli_process import answer, hutch


def test_help_names_every_command_and_gives_examples() -> None:
    done = hutch("--help")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert "hutch run -- python3" in text


def test_versions_for_a_report() -> None:
    code, facts = answer("version")
    assert (code, facts["hutch"]) == (0, __version__)


def test_an_unknown_command_has_a_suggestion() -> None:
    done = hutch("docter")
    assert done.returncode == 125
    assert b"did you mean `hutch doctor`?" in done.stderr


def test_a_command_without_its_action_names_the_choices() -> None:
    """A person's first `hutch key` must teach the second."""
    done = hutch("key")
    assert done.returncode == 125
    assert b"hutch key needs one of create, list, show, revoke" in done.stderr
    assert b"SETTING" in hutch("config").stdout, "there is but one thing to do"


def test_shared_options_may_stand_before_the_command(tmp_path: Path) -> None:
    """`hutch --config FILE --json config show`: a file that was named is used, and each value has its origin."""
    file = tmp_path / "mine.toml"
    file.write_text('max_boxes = 7\n[profiles.tiny]\nlimits = { pids = 9 }\ndescription = "small"\n')
    done = hutch("--config", str(file), "--json", "config", "show")
    assert done.returncode == 0
    assert f'{{"key":"max_boxes","value":7,"origin":"{file}:1"}}' in done.stdout.decode()
    assert b"tiny" in hutch("profiles", "--config", str(file)).stdout


def test_a_wrong_configuration_names_the_line(tmp_path: Path) -> None:
    """Bad input: an unknown key."""
    file = tmp_path / "mine.toml"
    file.write_text("\nmax_boxs = 7\n")
    done = hutch("run", "--config", str(file), "--", "true")
    assert done.returncode == 125
    assert f"{file}:2" in done.stderr.decode()
    assert "max_boxes" in done.stderr.decode()


def test_providers_say_what_they_can_do() -> None:
    code, found = answer("providers")
    assert code == 0
    native = next(each for each in found["providers"] if each["provider"] == "native")
    assert native["usable"]
    assert set(native["grades"]) >= {"memory_mb", "pids", "cpus"}


def test_doctor_finds_this_machine_usable_and_runs_a_box() -> None:
    """Each requirement has a state; a warning has consequence and fix; a real box has the last word."""
    code, report = answer("doctor")
    assert (code, report["usable"]) == (0, True), report
    by_name = {finding["name"]: finding for finding in report["findings"]}
    assert by_name["canary box"]["state"] == "ok"
    assert {"kernel", "user namespaces", "cgroups", "landlock", "network", "identity", "limits"} <= set(by_name)
    assert all(each["consequence"] and each["fix"] for each in report["findings"] if each["state"] != "ok")


def test_doctor_fails_where_boxes_cannot_be_made(tmp_path: Path) -> None:
    """Exit code 1, the obstacle, what it means and the fix, for people."""
    (tmp_path / "file").write_text("")
    done = hutch("doctor", env={"HUTCH_STATE_DIR": str(tmp_path / "file" / "state")})
    text = done.stdout.decode()
    assert done.returncode == 1
    assert "FAIL  state directory" in text
    assert "means: no box can be made" in text
    assert "fix:   free it, or set HUTCH_STATE_DIR" in text


# --- without a process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["run", "--", "ls", "-l"], ([], "run", ["--", "ls", "-l"])),
        (["--json", "--config", "x", "doctor"], (["--json", "--config", "x"], "doctor", [])),
        (["--config=x", "run", "a"], (["--config=x"], "run", ["a"])),
        (["--verbose"], (["--verbose"], "", [])),
    ],
)
def test_the_command_is_found_among_options(argv: list[str], parts: tuple[list[str], str, list[str]]) -> None:
    assert split(argv) == parts


def test_options_end_at_the_command() -> None:
    """`hutch run ls --json` runs `ls --json`; a `--` of the command's own stays."""
    _, parser = parser_of("run")
    arguments = parser.parse_args(["--net", "on", "sh", "-c", "x", "--json", "--", "y"])
    assert arguments.command == ["sh", "-c", "x", "--json", "--", "y"]
    assert not arguments.json


def test_flags_become_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not asked is not there; paths are absolute; sizes are megabytes."""
    monkeypatch.chdir(tmp_path)
    _, parser = parser_of("run")
    words = "--memory 1.5g --disk 100 --pids 9 --cpus 0.5 --mount d:/d:rw --workspace .:ro --image dir:root true"
    spec = options.spec_of(parser.parse_args(words.split()))
    assert spec == {
        "memory_mb": 1536, "disk_mb": 100, "pids": 9, "cpus": 0.5, "image": f"dir:{tmp_path}/root",
        "mounts": [{"source": f"{tmp_path}/d", "target": "/d", "mode": "rw"}],
        "workspace": {"source": str(tmp_path), "mode": "ro"},
    }  # fmt: skip
    assert options.spec_of(parser.parse_args(["true"])) == {}


@pytest.mark.parametrize("words", ["--memory lots", "--pids 1.5", "--mount x", "--env =1", "--secret NOT_THERE_1"])
def test_flags_that_make_no_sense(words: str) -> None:
    _, parser = parser_of("run")
    with pytest.raises(Invalid, match=words.split()[1].replace("=1", "=1")):
        options.spec_of(parser.parse_args([*words.split(), "true"]))


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_completion_script_is_valid(shell: str, tmp_path: Path) -> None:
    """Each shell reads its script without complaint; every command and option is in all of them."""
    script = {"bash": completion.bash, "zsh": completion.zsh, "fish": completion.fish}[shell]()
    assert all(name in script for name in COMMANDS)
    assert "profile" in script and "timeout" in script
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed: run `make setup` as root")
    file = tmp_path / "script"
    file.write_text(script)
    check = subprocess.run([shell, "-n", str(file)], capture_output=True, timeout=60)
    assert (check.returncode, check.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["hutch", "doc"], {"doctor"}),
        (["hutch", "run", "--prof"], {"--profile"}),
        (["hutch", "run", "--net", ""], {"off", "on"}),
        (["hutch", "run", "--profile", "offl"], {"offline_readonly"}),
        (["hutch", "completion", "f"], {"fish"}),
        (["hutch", "config", ""], {"show", "trust", "untrust"}),
        (["hutch", "box", "ex"], {"exec"}),
        (["hutch", "box", "exec", "--time"], {"--timeout"}),
        (["hutch", "--json", "volume", "re"], {"remove"}),
    ],
)
def test_bash_completes(line: list[str], expected: set[str], tmp_path: Path) -> None:
    """The function itself, asked as bash asks it; names of profiles come from the configuration."""
    found = _completed(" ".join(line), tmp_path)
    assert expected <= found
    assert all(word.startswith(line[-1]) for word in found)


def _completed(line: str, directory: Path) -> set[str]:
    """What bash offers in place of the last word, from its last colon on, as bash itself splits words."""
    script = directory / "script"
    script.write_text(completion.bash())
    ask = f"""
      hutch() {{ {sys.executable} -m hutch.cli.main "$@"; }}
      source {script}; COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}; _hutch; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", ask], capture_output=True, timeout=60, check=True)
    return set(done.stdout.decode().splitlines()) - {""}


@pytest.mark.slow
def test_bash_completes_boxes_and_the_paths_in_them(tmp_path: Path) -> None:
    """`hutch box cp` knows boxes and what is in them; a wrong box or path offers nothing."""
    made = hutch("box", "create", "--name", "completed").stdout.decode().strip()
    try:
        hutch("box", "exec", made, "--", "sh", "-c", "mkdir -p src/deep .hidden; touch src/one 'src/two words' seen")
        for line, expected in (
            ("hutch box cp comp", {"completed:"}),
            ("hutch box cp ./x completed:", {"src/", "seen"}),
            ("hutch box cp completed:s", {"src/", "seen"}),
            ("hutch box cp completed:.", {".hidden/"}),
            ("hutch box cp completed:/workspace/src/", {"/workspace/src/deep/", "/workspace/src/one",
             r"/workspace/src/two\ words"}),
            ("hutch box cp completed:no/such/", set()),
            ("hutch box cp nobody:", set()),
        ):  # fmt: skip
            assert _completed(line, tmp_path) == expected, line
        assert "completed" in _completed("hutch box exec comp", tmp_path)
    finally:
        hutch("box", "destroy", made)


def test_bash_completes_images(tmp_path: Path) -> None:
    """Names of images have colons, at which bash splits words; they are known wherever an image is named."""
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    assert hutch("image", "import", str(archive), "tabbed/one:1").returncode == 0
    try:
        stored = next(name for name in hutch("image", "list", "--names").stdout.decode().split() if "tabbed" in name)
        assert _completed("hutch run --image oci", tmp_path) >= {stored}
        assert _completed(f"hutch run --image {stored[:-1]}", tmp_path) == {"1"}
        plain = stored.removeprefix("oci:")
        for command in ("show", "export", "remove"):
            assert plain in _completed(f"hutch image {command} {plain[:3]}", tmp_path)
    finally:
        hutch("image", "remove", "tabbed/one:1")


def test_net_and_network_are_one_option() -> None:
    """Wherever a command has a network, both names work."""
    for command in completion.commands():
        for option in completion.options(command):
            if {"--net", "--network"} & set(option.flags):
                assert {"--net", "--network"} <= set(option.flags), command
