"""LangBot's door, driven by the client classes of `langbot-plugin` from PyPI against a real server and real boxes."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environments import python_of, run_scenarios
from tests.server.serving import Server, serving

pytestmark = pytest.mark.timeout(1200)
"""The first run on a machine installs the packages."""

SDK = "langbot-plugin==0.7.16"
"""The version that LangBot 4.11.2 requires."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A directory that LangBot and the server share, which every user may enter."""
    directory = Path(tempfile.mkdtemp(prefix="h-langbot-", dir="/tmp"))
    directory.chmod(0o755)
    (directory / "data").mkdir()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def server(shared: Path) -> Iterator[Server]:
    config = shared / "hutch.toml"
    config.write_text(
        f'[server]\nlangbot_shared_roots = ["{shared}/data"]\n[quotas.small]\nboxes = 2\n[images]\npull = "never"\n'
    )
    with serving("--config", str(config)) as started:
        yield started


SCENARIOS = {
    "langbot_channel": (
        "wrong_tokens_and_instances_are_unauthorized",
        "unknown_actions_and_contexts_are_refused",
        "malformed_frames_do_not_end_the_channel",
        "too_many_requests_at_once_are_refused",
        "capacity_is_limited",
        "quotas_of_the_owner_hold",
        "a_newer_generation_retires_older_ones",
        "a_shutdown_ends_only_its_own_sessions",
        "cloud_actions_are_refused",
    ),
    "langbot_sessions": (
        "commands_run_in_sessions",
        "long_commands_and_long_output",
        "a_timeout_keeps_the_session",
        "a_client_that_leaves_ends_its_command",
        "sessions_echo_what_was_asked",
        "other_specs_conflict",
        "bad_specs_are_refused",
        "a_session_that_broke_is_made_anew",
        "a_session_stays_for_others_to_see",
    ),
    "langbot_files": (
        "workspaces_are_apart_and_kept",
        "shared_directories_are_mounted",
        "skills_are_shown_read_only",
    ),
    "langbot_processes": (
        "processes_are_managed",
        "the_relay_sends_one_line_in_each_frame",
        "one_client_at_a_time_is_attached",
        "a_process_is_replaced_by_the_next_of_its_id",
        "memory_that_runs_out_is_exit_code_137",
        "relays_are_authorized",
    ),
}


@pytest.fixture(scope="module")
def outcomes(server: Server, shared: Path) -> Callable[[str], dict[str, Any]]:
    """Runs a script when it is asked for the first time, and returns the outcomes of its scenarios."""
    (shared / "data" / "link").symlink_to("/etc")
    host, port = server.tcp().address
    keys = server.key("user", "bot"), server.key("user", "small")

    @cache
    def run(script: str) -> dict[str, Any]:
        path = Path(__file__).with_name(f"{script}.py")
        return run_scenarios(
            python_of(SDK), path, f"{host}:{port}", *keys, str(shared / "data"), str(shared / "elsewhere")
        )

    return run


@pytest.mark.parametrize(("script", "scenario"), [(script, each) for script in SCENARIOS for each in SCENARIOS[script]])
def test_the_real_client(outcomes: Callable[[str], dict[str, Any]], script: str, scenario: str) -> None:
    """Every action, error and limit of the Box Runtime protocol (B22, B23, B28, B29, B44)."""
    assert not outcomes(script)[scenario]["error"], outcomes(script)[scenario]["error"]


def test_sessions_are_boxes(server: Server, outcomes: Callable[[str], dict[str, Any]], rootless: bool) -> None:
    """A session is a box like any other: listed, limited, with receipts, and counted by action in the metrics (B27).

    LangBot asks for a writable root for its MCP servers. It is given where it can be; elsewhere the box says why not.
    """
    outcomes("langbot_channel"), outcomes("langbot_sessions"), outcomes("langbot_processes")
    admin = server.unix(hutch_admin="yes")
    boxes = [box for box in admin.good("GET", "/v1/boxes")["boxes"] if box["spec"]["labels"].get("langbot.instance")]
    seen = next(box for box in boxes if box["spec"]["labels"]["langbot.instance"] == "visible")
    assert seen["owner"] == "bot"
    assert (seen["spec"]["limits"]["memory_mb"], seen["spec"]["limits"]["pids"]) == (300, 77)
    assert seen["spec"]["labels"]["langbot.session"] == "runner-1"
    assert seen["spec"]["idle_timeout_sec"] == 300
    persistent = next(box for box in boxes if box["spec"]["labels"]["langbot.instance"] == "proc")
    assert persistent["spec"]["idle_timeout_sec"] == 0
    assert persistent["spec"]["read_only_root"] is rootless
    adjusted = {each["field"]: each["reason"] for each in persistent["spec"]["adjustments"]}
    assert ("read_only_root" in adjusted) is rootless, adjusted
    used = next(box for box in boxes if box["spec"]["labels"]["langbot.instance"] == "timeout")
    receipts = admin.good("GET", f"/v1/receipts?box={used['id']}")["receipts"]
    assert {"exec"} <= {receipt["op"] for receipt in receipts}
    assert {receipt["who"]["session"] for receipt in receipts if receipt["op"] == "exec"} == {"langbot:timeout"}
    metrics = admin.call("GET", "/metrics").body.decode()
    assert 'op="langbot box_exec"' in metrics
    assert "box_nonsense" not in metrics


def test_a_restarted_server_has_the_sessions(shared: Path) -> None:
    """Sessions, their files and their processes outlive a restart of Hutch, as LangBot expects when it reconnects."""
    with serving() as server:
        key = server.key("user", "bot")
        python, script = python_of(SDK), Path(__file__).with_name("langbot_restart.py")
        for phase in ("before", "after"):
            host, port = server.tcp().address
            outcomes = run_scenarios(python, script, f"{host}:{port}", key, phase)
            assert not outcomes[phase]["error"], outcomes[phase]["error"]
            if phase == "before":
                server.end()
                server.start()


@pytest.fixture(scope="module")
def services(server: Server, shared: Path) -> dict[str, Any]:
    host, port = server.tcp().address
    python = python_of(SDK, "sqlalchemy[asyncio]", "regex", alone="langbot==4.11.2")
    return run_scenarios(
        python, Path(__file__).with_name("langbot_services.py"), f"{host}:{port}", server.key("user", "services"),
        str(shared / "data"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "scenario",
    [
        "agents_use_their_tools",
        "attachments_reach_the_box",
        "attachments_reach_a_shared_directory",
        "servers_are_relayed",
    ],
)
def test_the_service_layer_of_langbot(services: dict[str, Any], scenario: str) -> None:
    """LangBot's own services drive the door: file tools, exec, timeouts, attachments, a managed process (B44)."""
    assert not services[scenario]["error"], services[scenario]["error"]
