"""Configuration: where it is looked for, what wins, and errors that name file, line and key (B16, B19, B20)."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hutch.config import Config, directories, trust
from hutch.config.file import lines_of
from hutch.errors import ConfigError, NotFound
from hutch.model.spec import NetworkMode


def load(cwd: Path, text: str | None = None, environ: dict[str, str] | None = None, **arguments: Any) -> Config:
    """With this hutch.toml in the working directory, which the user has accepted, and nothing else of the machine."""
    surroundings = {"HOME": str(cwd / "home"), "XDG_RUNTIME_DIR": "/run/user/1"} | (environ or {})
    file = cwd / "hutch.toml"
    if text is not None:
        file.write_text(text)
    if file.exists():
        trust.trust(file, file.read_bytes(), surroundings)
    return Config.load(environ=surroundings, cwd=cwd, **arguments)


def complaint(cwd: Path, text: str | None = None, environ: dict[str, str] | None = None, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(cwd, text, environ, **arguments)
    return str(caught.value)


# --- what wins ------------------------------------------------------------------------------------------------


def test_without_anything_there_are_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.enabled, config.provider, config.profile, config.image) == (True, "native", "default", None)
    assert config.mount_roots == (tmp_path,), "embedded: the working directory"
    assert not config.strict
    assert {each.origin for each in config.show()} == {"default"}


def test_later_sources_win_and_each_value_knows_its_origin(tmp_path: Path) -> None:
    text = 'provider = "a"\nprofile = "code"\n\nimage = "oci:a"\nmax_boxes = 3\n'
    config = load(tmp_path, text, {"HUTCH_PROFILE": "app", "HUTCH_IMAGE": "oci:b"}, image="oci:c")
    assert (config.provider, config.profile, config.image, config.max_boxes) == ("a", "app", "oci:c", 3)
    origins = {each.key: each.origin for each in config.show()}
    file = tmp_path / "hutch.toml"
    assert origins["provider"] == f"{file}:1"
    assert origins["max_boxes"] == f"{file}:5"
    assert origins["profile"] == "HUTCH_PROFILE"
    assert origins["image"] == "argument"
    assert origins["strict"] == "default"


def test_every_setting_can_come_from_the_environment(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        None,
        {
            "HUTCH_ENABLED": "false", "HUTCH_STATE_DIR": "/s", "HUTCH_RUN_DIR": "/r", "HUTCH_PROVIDER": "docker",
            "HUTCH_PROFILE": "code", "HUTCH_IMAGE": "oci:x", "HUTCH_MOUNT_ROOTS": "/srv/a:rel", "HUTCH_MAX_BOXES": "7",
            "HUTCH_MOUNT_REFUSED": "/srv/a/no", "HUTCH_ORPHAN_GRACE_SEC": "2.5", "HUTCH_STRICT": "1",
            "HUTCH_LOG_LEVEL": "debug", "HUTCH_LOG_FORMAT": "json", "HUTCH_STORE": "memory", "HUTCH_LEASE_SEC": "60",
            "HUTCH_QUEUE_SEC": "3", "HUTCH_FALLBACK": "podman:e2b", "HUTCH_IDLE_ACTION": "pause",
            "HUTCH_SERVER_URL": "unix:/x", "HUTCH_SERVER_CA": "/ca", "HUTCH_KEY_FILE": "key",
            "HUTCH_RECEIPTS": "strict", "HUTCH_RECEIPTS_DAYS": "1.5", "HUTCH_RECEIPTS_ROWS": "9",
            "HUTCH_STATE_KEY_FILE": "/k", "HUTCH_CHECKPOINTS_MAX": "5", "HUTCH_CHECKPOINTS_DAYS": "2",
            "HUTCH_CHECKPOINTS_MB": "7",
        },
    )  # fmt: skip
    assert not config.enabled
    assert (config.state_dir, config.run_dir) == (Path("/s"), Path("/r"))
    assert config.mount_roots == (Path("/srv/a"), tmp_path / "rel")
    assert config.mount_refused == (Path("/srv/a/no"),)
    assert (config.max_boxes, config.orphan_grace_sec, config.strict) == (7, 2.5, True)
    assert (config.log_level, config.log_format) == ("debug", "json")
    assert (config.store, config.lease_sec, config.queue_sec, config.idle_action) == ("memory", 60, 3, "pause")
    assert config.fallback == ("podman", "e2b")
    assert (config.receipts, config.receipts_days, config.receipts_rows) == ("strict", 1.5, 9)
    assert (config.checkpoints_max, config.checkpoints_days, config.checkpoints_mb) == (5, 2, 7)
    assert (config.server_url, config.server_ca, config.key_file) == ("unix:/x", Path("/ca"), tmp_path / "key")
    assert config.state_key_file == Path("/k") and Path("/k") in config.never_mounted
    assert load(tmp_path, None, {"HUTCH_SERVER": "unix:/y"}).server_url == "unix:/y"
    shown = config.show()
    assert all(each.origin == f"HUTCH_{each.key.upper()}" for each in shown)


def test_an_empty_variable_and_an_argument_of_none_count_as_none(tmp_path: Path) -> None:
    assert load(tmp_path, None, {"HUTCH_PROVIDER": ""}, provider=None).provider == "native"


def test_files_are_searched_in_order(tmp_path: Path) -> None:
    cwd, xdg = tmp_path / "cwd", tmp_path / "xdg"
    for directory in (cwd, xdg / "hutch"):
        directory.mkdir(parents=True)
    (tmp_path / "named.toml").write_text('provider = "named"')
    (tmp_path / "env.toml").write_text('provider = "env"')
    (xdg / "hutch" / "hutch.toml").write_text('provider = "xdg"')
    environ = {"XDG_CONFIG_HOME": str(xdg)}
    assert load(cwd, None, environ).provider == "xdg"
    assert load(cwd, 'provider = "cwd"', environ).provider == "cwd"
    environ["HUTCH_CONFIG"] = str(tmp_path / "env.toml")
    assert load(cwd, None, environ).provider == "env"
    assert load(cwd, None, environ, config=tmp_path / "named.toml").provider == "named"


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    assert "no configuration file" in complaint(tmp_path, config=tmp_path / "none.toml")
    assert "no configuration file" in complaint(tmp_path, None, {"HUTCH_CONFIG": "none.toml"})


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "h.toml").write_text('state_dir = "state"\nmount_roots = ["../data", "/srv"]')
    config = load(tmp_path, config="etc/h.toml", run_dir=Path("run"))
    assert config.state_dir == tmp_path / "etc" / "state"
    assert config.mount_roots == (tmp_path / "data", Path("/srv"))
    assert config.run_dir == tmp_path / "run"


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('\nprovder = "x"\n', 2, "unknown key provder (did you mean provider?)"),
        ("\n\nwibble = 1\n", 3, "unknown key wibble (known here: "),
        ('max_boxes = "many"', 1, "max_boxes: expected `int`, got `str`"),
        ("enabled = 1", 1, "enabled: expected `bool`, got `int`"),
        ("a = 1\nb = = 2", 2, "not valid TOML"),
        ('log_level = "loud"', 1, "log_level = 'loud' is none of"),
        ('\nlog_format = "xml"', 2, "log_format = 'xml' is none of"),
        ("\nmax_boxes = -1", 2, "max_boxes = -1 is negative"),
        ("orphan_grace_sec = nan", 1, "orphan_grace_sec"),
        ('provider = "a b"', 1, "is not a name"),
        ('profile = "defualt"', 1, "profile = 'defualt' is no profile"),
        ("profiles = 3", 1, "profiles: expected `object`, got `int`"),
        ("[profiles]\nx = 3", 2, "profiles: expected `object`, got `int`"),
        ("[profiles.x]\n\nnetwrok = 'on'", 3, "unknown key profiles.x.netwrok (did you mean network?)"),
        ("[profiles.x.limits]\nmemory = 1", 2, "unknown key profiles.x.limits.memory (did you mean memory_mb?)"),
        ("[profiles.x]\nlimits.memory_mb = 'x'", 2, "profiles.x.limits.memory_mb: expected `int`, got `str`"),
        ("[profiles.x]\nlimits = { cpu = 1 }", 2, "unknown key profiles.x.limits.cpu (did you mean cpus?)"),
        ("[profiles.x]\nnetwork = 'of'", 2, "profiles.x.network: invalid enum value 'of'"),
        ("[profiles.x.env]\nA = 1", 1, "profiles.x.env: expected `str`, got `int`"),
        ("[[profiles.x.mounts]]\nsource='/a'\ntarget='/b'\n[[profiles.x.mounts]]\nsorce='/a'", 5, "sorce"),
        ("[profiles.x]\n\n\nlocked = ['netwrok']", 4, "profile x: 'netwrok' cannot be locked"),
        ("[profiles.x]\n[profiles.x.limits]\ntimeout_sec = 900", 3, "over its maximum 120"),
        ("\n[profiles.code]\nnetwork = 'on'", 2, "profile code is built in"),
        ("[profiles.a]\ninherits = 'b'\n[profiles.b]\ninherits = 'a'", 4, "a → b → a"),
        ("[profiles.a]\ninherits = 'nobody'", 2, "a → nobody"),
        ("[providers]\ndocker = 1", 2, "providers: expected `object`, got `int`"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path: Path, text: str, line: int, message: str) -> None:
    said = complaint(tmp_path, text)
    file, _, rest = said.partition(": ")
    assert message in rest
    # A value in a table of free names is found as the table: the decoder does not say which one it was.
    near = {f"{tmp_path}/hutch.toml:{number}" for number in ((line - 1, line) if "`object`" in message else (line,))}
    assert file in near


def test_errors_of_other_sources_name_them(tmp_path: Path) -> None:
    assert complaint(tmp_path, None, {"HUTCH_MAX_BOXES": "many"}).startswith("HUTCH_MAX_BOXES: ")
    assert complaint(tmp_path, None, {"HUTCH_ENABLED": "perhaps"}).startswith("HUTCH_ENABLED: ")
    assert "argument: unknown key stat_dir (did you mean state_dir?)" in complaint(tmp_path, stat_dir="/x")
    assert complaint(tmp_path, max_boxes="3").startswith("argument: max_boxes: expected `int`")


def test_a_variable_that_nearly_names_a_setting_is_an_error(tmp_path: Path) -> None:
    """A typo in HUTCH_STRICT must not fail open; other people's variables are none of our business."""
    assert "did you mean HUTCH_STRICT?" in complaint(tmp_path, None, {"HUTCH_STRCT": "1"})
    assert load(tmp_path, None, {"HUTCH_SOMETHING_ELSE": "1", "HUTCHINSON": "1"}).provider == "native"


def test_a_file_that_is_not_text_or_not_readable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hutch.toml").write_bytes(b"\xff\xfe")
    assert "cannot be read" in complaint(tmp_path)


@pytest.mark.parametrize("mode", [0o666, 0o660])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int, rootless: bool) -> None:
    """Also a named one, and the user's own; group-writable ones if the group is another's (lesson 44)."""
    if rootless and mode == 0o660:
        pytest.skip("giving a file to another group needs root")
    own = tmp_path / "home" / ".config" / "hutch" / "hutch.toml"
    own.parent.mkdir(parents=True)
    for file in (own, tmp_path / "named.toml"):
        file.write_text('provider = "evil"')
        if not rootless:
            os.chown(file, -1, 12345)
        file.chmod(mode)
    assert "others may have written it" in complaint(tmp_path)
    own.chmod(0o644)
    assert load(tmp_path).provider == "evil"
    assert "others may have written it" in complaint(tmp_path, config=tmp_path / "named.toml")


def test_a_strangers_file_is_refused(tmp_path: Path, rootless: bool) -> None:
    if rootless:
        pytest.skip("giving a file away needs root")
    file = tmp_path / "named.toml"
    file.write_text('provider = "evil"')
    os.chown(file, 12345, 12345)
    assert "belongs to user 12345" in complaint(tmp_path, config=file)


def test_a_file_of_the_working_directory_counts_once_it_is_accepted(tmp_path: Path) -> None:
    """By its digest, until a byte of it changes; what is ignored is known to the configuration (lesson 44)."""
    home, file = {"HOME": str(tmp_path / "home")}, tmp_path / "hutch.toml"
    own = tmp_path / "home" / ".config" / "hutch"
    own.mkdir(parents=True)
    (own / "hutch.toml").write_text('profile = "code"')
    file.write_text("max_boxes = 3")
    config = Config.load(environ=home, cwd=tmp_path)
    assert (config.max_boxes, config.profile, config.config_ignored) == (1024, "code", str(file))
    trust.trust(file, file.read_bytes(), home)
    assert (own / trust.LIST).stat().st_mode & 0o777 == 0o600
    config = Config.load(environ=home, cwd=tmp_path)
    assert (config.max_boxes, config.profile, config.config_ignored) == (3, "default", "")
    file.write_text("max_boxes = 4")
    assert Config.load(environ=home, cwd=tmp_path).max_boxes == 1024
    trust.trust(file, file.read_bytes(), home)
    assert Config.load(environ=home, cwd=tmp_path).max_boxes == 4
    assert trust.forget(file, home) and not trust.forget(file, home)
    assert Config.load(environ=home, cwd=tmp_path).max_boxes == 1024
    assert Config.load(environ=home, cwd=own).profile == "code", "the user's own, from where it lies"


def test_lines_are_found_past_strings_comments_and_quoted_names() -> None:
    text = '''# provider = "no"
description = """
provider = "also no"
"""
"odd.name" = 1  # here
[profiles . "my.one"]   # and here
limits . pids = 3
'''
    lines = {tuple(key.split("\0")): line for key, line in lines_of(text).items()}
    assert ("provider",) not in lines
    assert lines["description",] == 2
    assert lines["odd.name",] == 5
    assert lines["profiles", "my.one"] == 6
    assert lines["profiles", "my.one", "limits", "pids"] == 7


# --- profiles and providers -----------------------------------------------------------------------------------


def test_profiles_of_the_file_are_resolved(tmp_path: Path) -> None:
    """Chosen in configuration, user-defined (B16)."""
    text = """
profile = "team"
[profiles.team]
inherits = "code"
network = "on"
locked = ["network"]
[profiles.team.limits]
memory_mb = 2048
"""
    config = load(tmp_path, text)
    profile = config.resolve_profile()
    assert (profile.name, profile.network, profile.limits.memory_mb) == ("team", NetworkMode.ON, 2048)
    assert profile.locks("network")
    assert config.resolve_profile("mcp").name == "mcp"
    with pytest.raises(NotFound):
        config.resolve_profile("none")


def test_rights_of_owners_are_read_and_checked(tmp_path: Path) -> None:
    """What an operator writes for keys, and the line of what makes no sense (lesson 45)."""
    text = 'profile = "mine"\n[profiles.mine]\nlocked = ["network"]\n[rights."*"]\nroot = true\n'
    config = load(
        tmp_path, f'{text}[rights.acme]\nprofiles = ["code"]\nactions = ["create"]\nmaxima = {{ cpus = 2 }}\n'
    )
    acme, other = config.rights_of("acme"), config.rights_of("other")
    assert (acme.profiles, acme.root, acme.maxima.cpus, sorted(acme.actions)) == (("code",), True, 2, ["create"])
    assert (other.profiles, other.root) == (("mine",), True)
    assert "rights.acme" in {each.key for each in config.show()}
    file = tmp_path / "hutch.toml"
    assert f"{file}:4: there is no profile 'none'" in complaint(tmp_path, f'{text}profiles = ["none"]\n')
    assert f"{file}:6: unknown key rights.*.rooot" in complaint(tmp_path, f"{text}rooot = true\n")
    assert "rights.*.actions" in complaint(tmp_path, f'{text}actions = ["fly"]\n')
    assert "memory_mb is 1" in complaint(tmp_path, f"{text}maxima = {{ memory_mb = 1 }}\n")


def test_settings_of_a_provider_reach_it_and_it_alone(tmp_path: Path) -> None:
    text = '[providers.e2b]\napi_key = "hunter2"\nregion = "eu"\n[providers.native]\nstems = 3'
    config = load(tmp_path, text, None, state_dir="/s", run_dir="/r", providers={"e2b": {"region": "us"}})
    assert config.for_provider("e2b") == {"api_key": "hunter2", "region": "us"}
    assert config.for_provider("docker") == {"state_dir": "/s"}
    assert config.for_provider("nsjail") == {}
    assert config.for_provider("native") == {"state_dir": "/s", "run_dir": "/r", "images": config.images, "stems": 3}


def test_show_hides_secrets(tmp_path: Path) -> None:
    text = '[providers.e2b]\napi_key = "hunter2"\nregion = "eu"\n[profiles.x.env]\nDB_PASSWORD = "hunter2"'
    shown = {each.key: each for each in load(tmp_path, text).show()}
    assert "hunter2" not in str(shown)
    assert shown["providers.e2b"].value == {"api_key": "***", "region": "eu"}
    assert shown["providers.e2b"].origin == f"{tmp_path}/hutch.toml:1"
    assert shown["profiles.x"].value == {"env": {"DB_PASSWORD": "***"}}
    assert shown["profiles.x"].origin == f"{tmp_path}/hutch.toml:4"


def test_our_own_directories_are_never_mounted(tmp_path: Path) -> None:
    config = load(tmp_path, None, state_dir="/s", run_dir="/r", mount_refused=["/n"])
    assert config.never_mounted == (Path("/s"), Path("/r"), tmp_path / "home" / ".config" / "hutch", Path("/n"))


# --- directories ----------------------------------------------------------------------------------------------


def test_directories_are_those_of_xdg_or_of_the_system(tmp_path: Path, rootless: bool) -> None:
    environ = {"HOME": "/h", "XDG_STATE_HOME": "/x/state", "XDG_RUNTIME_DIR": "/x/run"}
    if not rootless:
        assert directories.state_dir(environ) == Path("/var/lib/hutch")
        assert directories.run_dir(environ) == Path("/run/hutch")
        return
    assert directories.state_dir(environ) == Path("/x/state/hutch")
    assert directories.run_dir(environ) == Path("/x/run/hutch")
    relative = {"HOME": "/h", "XDG_STATE_HOME": "state"}
    assert directories.state_dir(relative) == Path("/h/.local/state/hutch"), "XDG: a relative path is ignored"
    assert directories.run_dir(relative) == Path(f"/tmp/hutch-{os.getuid()}")


def test_a_run_directory_must_leave_room_for_its_sockets(tmp_path: Path) -> None:
    longest = "/" + "r" * 78
    assert load(tmp_path, run_dir=longest).run_dir == Path(longest)
    said = complaint(tmp_path, run_dir=longest + "r")
    assert "80 bytes" in said
    assert "HUTCH_RUN_DIR" in said
    assert "bytes" in complaint(tmp_path, run_dir="/" + "é" * 40), "bytes count, not characters"


def test_the_longest_run_directory_really_holds_the_longest_socket(tmp_path: Path) -> None:
    """What the rule promises, the kernel keeps."""
    top = Path(f"/tmp/c{os.getpid()}")
    run = top / ("r" * (79 - len(str(top)) - 1))
    directories.check_run_dir(run, "test")
    try:
        box = run / ("b" * 20)
        box.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(box / "deputy"))
    finally:
        shutil.rmtree(top)


def test_made_directories_are_private(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    directories.make(made)
    assert made.stat().st_mode & 0o777 == 0o700
    directories.make(made)


def test_a_directory_that_others_could_have_prepared_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    file = tmp_path / "file"
    file.touch()
    for path in (open_to_all, link, file):
        with pytest.raises(ConfigError):
            directories.make(path)
    with pytest.raises(ConfigError):
        directories.make(file / "below")


def test_loading_imports_nothing_heavy() -> None:
    """`hutch run` from a cold shell is to be quick: no TOML parser without a file, no logging, no argparse."""
    program = """
import sys, pathlib
from hutch.config import Config
Config.load(environ={"HOME": "/nowhere", "HUTCH_RUN_DIR": "/r"}, cwd=pathlib.Path("/"))
print(sorted({"tomllib", "logging", "argparse", "difflib", "asyncio", "json"} & set(sys.modules)))
"""
    if Path("/etc/hutch/hutch.toml").exists() or Path("/hutch.toml").exists():
        pytest.skip("this machine has a configuration of its own")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
