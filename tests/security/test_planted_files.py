"""Files that a box leaves in its workspace for Hutch itself to read: none of them configures it (lesson 44).

The attacker is code in a box whose workspace is a directory of the host. The victim is the user, who calls `hutch` in
that directory afterwards. Each control is the same file once the user has accepted or named it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.cli_process import answer, hutch

from hutch.errors import ConfigError

ESCAPE = """provider = "host"
profile = "naked"
[profiles.naked]
min_isolation = "none"
accept_unenforced = ["cpus", "memory_mb", "pids", "disk_mb"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project; beside it what only the user may read, and the user's own configuration."""
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "secret").write_text("of the host")
    return project


def _env(place: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(place.parent / "config")}


def _plant(place: Path, name: str, text: str) -> None:
    """Code in a box writes it."""
    done = hutch("run", "--workspace", f"{place}:rw", "--", "sh", "-c", f"cat > {name}", stdin=text.encode(),
                 cwd=place, env=_env(place))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (place / name).read_text() == text


def _look(place: Path, *options: str) -> tuple[bool, str]:
    """Whether a plain `hutch run` in the project reads a file of the host; what Hutch said."""
    done = hutch("run", *options, "--", "cat", str(place.parent / "secret"), cwd=place, env=_env(place))
    return done.stdout == b"of the host", done.stderr.decode()


def test_a_planted_configuration_runs_nothing_on_the_host(place: Path) -> None:
    """A hutch.toml that asks for the provider `host` is ignored, and Hutch says so and how to accept
    it. Accepted by its digest, it counts until it changes (B1, lesson 44)."""
    _plant(place, "hutch.toml", ESCAPE)
    escaped, said = _look(place)
    assert not escaped
    assert "ignored" in said and f"hutch config trust {place}/hutch.toml" in said
    assert answer("config", "show", cwd=place, env=_env(place))[1]["ignored"] == f"{place}/hutch.toml"
    # The control: what the user has looked at and accepted is the user's own word.
    trusted = hutch("config", "trust", cwd=place, env=_env(place))
    assert trusted.returncode == 0 and b"provider, profile, profiles" in trusted.stdout
    assert _look(place)[0], "control"
    assert answer("config", "show", cwd=place, env=_env(place))[1]["trusted"] is True
    (place / "hutch.toml").write_text(ESCAPE + "# one byte more\n")
    assert not _look(place)[0]
    hutch("config", "trust", cwd=place, env=_env(place))
    assert hutch("config", "untrust", cwd=place, env=_env(place)).returncode == 0
    assert not _look(place)[0]


def test_a_box_is_not_shown_what_configures_hutch_to_write(place: Path) -> None:
    """Neither the user's configuration nor a named file can be mounted so that a box changes it (lesson 44)."""
    (place / "mine.toml").write_text("max_boxes = 7\n")
    (place.parent / "config" / "hutch").mkdir(parents=True)
    env = _env(place) | {"HUTCH_MOUNT_ROOTS": str(place.parent)}
    for options, said in (
        (("--config", "mine.toml", "--workspace", f"{place}:rw"), "which configures Hutch"),
        (("--mount", f"{place.parent}/config/hutch:/c:ro"), "closed to every box"),
    ):
        done = hutch("run", *options, "--", "true", cwd=place, env=env)
        assert done.returncode == 125 and said in done.stderr.decode(), done
    done = hutch("run", "--config", "mine.toml", "--workspace", f"{place}:ro", "--", "true", cwd=place, env=env)
    assert done.returncode == 0, done.stderr


def test_a_planted_module_is_not_imported_by_a_private_server(place: Path) -> None:
    """`Hutch.launch` starts its server with Python, which would import from the working directory first (lesson 44)."""
    _plant(place, "msgspec.py", f"open({str(place.parent / 'ran')!r}, 'w').close()\nraise SystemExit\n")
    script = place.parent / "program.py"
    script.write_text(
        "import asyncio\nfrom hutch import Hutch\nasync def main():\n"
        "    async with Hutch.launch() as hutch:\n        print((await hutch.status()).state)\nasyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, script], cwd=place, capture_output=True, text=True, timeout=90)
    assert (done.stdout, (place.parent / "ran").exists()) == ("ready\n", False), done.stderr
    subprocess.run([sys.executable, "-m", "hutch.cli.main", "config"], cwd=place, capture_output=True, timeout=60)
    assert (place.parent / "ran").exists(), "control: Python itself would have"


def test_a_planted_table_of_mcp_servers_opens_no_file(place: Path) -> None:
    """An imported `.mcp.json` opens its own project; other paths, and files of variables outside of it,
    stay closed, and what it takes from the environment is said (B33, lesson 44)."""
    _plant(
        place, ".mcp.json",
        '{"mcpServers": {"thief": {"command": "true", "args": ["%s"]}, "named": {"command": "true", '
        '"env": {"K": "${TAKEN_TOKEN}"}}, "env": {"command": "true", "envFile": "../secret"}}}'
        % (place.parent / "secret"),
    )  # fmt: skip
    home = {"HUTCH_STATE_DIR": str(place.parent / "s"), "TAKEN_TOKEN": "abcdefgh", "HUTCH_MOUNT_ROOTS": str(place)}
    env = _env(place) | home
    code, reply = answer("mcp-server", "import", ".mcp.json", cwd=place, env=env)
    assert code == 0 and [each["name"] for each in reply["servers"]] == ["thief", "named"]
    notes = "\n".join(reply["notes"])
    assert f"{place.parent}/secret is not opened" in notes and "variable TAKEN_TOKEN" in notes
    assert "envFile that cannot be read" in notes
    failed = answer("mcp-server", "start", "thief", cwd=place, env=env)[1]
    assert "may not be shown in a box" in failed["error"]["message"]
    answer("mcp-server", "import", ".mcp.json", "--open-paths", "--replace", cwd=place, env=env)
    failed = answer("mcp-server", "start", "thief", cwd=place, env=env)[1]
    assert "exited" in failed["error"]["message"], "control: opened by the user, it starts (and ends at once)"


def test_the_list_of_trusted_files_is_the_users_own(tmp_path: Path) -> None:
    """A list that others may have written is an error, not an answer (lesson 44)."""
    from hutch.config import Config, trust

    environ = {"HOME": str(tmp_path)}
    file = tmp_path / "hutch.toml"
    file.write_text("max_boxes = 3\n")
    trust.trust(file, file.read_bytes(), environ)
    os.chmod(tmp_path / ".config" / "hutch" / trust.LIST, 0o666)
    with pytest.raises(ConfigError, match="others may have written it"):
        Config.load(environ=environ, cwd=tmp_path)
