"""AstrBot's doors, driven by the SDKs that AstrBot uses, from PyPI, against a real server and real boxes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environments import python_of, run_scenarios
from tests.server.serving import Server, serving

pytestmark = pytest.mark.timeout(1200)
"""The first run on a machine installs the packages."""

SDKS = ("shipyard-neo-sdk==0.2.0", "shipyard-python-sdk==0.2.4")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def bay(server: Server) -> dict[str, Any]:
    return _outcomes(server, "bay_client.py")


def _outcomes(server: Server, script: str) -> dict[str, Any]:
    host, port = server.tcp().address
    keys = (server.key("user", "bot"), server.key("user", "other"))
    return run_scenarios(python_of(*SDKS), Path(__file__).with_name(script), f"{host}:{port}", *keys)


@pytest.mark.parametrize(
    "scenario",
    [
        "sandboxes_are_ready_at_once",
        "the_shell_runs_commands",
        "files_are_kept_in_the_workspace",
        "history_remembers_executions",
        "clocks_move",
        "keys_make_creation_safe_to_repeat",
        "cargos_outlive_sandboxes",
        "pages_have_cursors",
        "strangers_find_nothing",
        "bad_requests_name_their_fault",
        "a_client_that_leaves_ends_its_command",
        "python_keeps_its_variables",
    ],
)
def test_the_bay_sdk(bay: dict[str, Any], scenario: str) -> None:
    """Every call, error and clock of the Bay API (P21)."""
    assert not bay[scenario]["error"], bay[scenario]["error"]


@pytest.fixture(scope="module")
def ships(server: Server) -> dict[str, Any]:
    return _outcomes(server, "shipyard_client.py")


@pytest.mark.parametrize(
    "scenario",
    [
        "a_session_has_its_own_ship",
        "the_shell_runs_commands",
        "files_are_read_and_changed",
        "files_are_transferred",
        "strangers_are_refused",
        "python_keeps_its_variables",
    ],
)
def test_the_shipyard_sdk(ships: dict[str, Any], scenario: str) -> None:
    """Every call and error of the older Shipyard API (P21)."""
    assert not ships[scenario]["error"], ships[scenario]["error"]
