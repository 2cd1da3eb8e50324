"""AstrBot's doors, driven by the SDKs that AstrBot uses, from PyPI, against a real server and real boxes."""

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environments import python_of, run_scenarios
from tests.server.serving import Server, serving, until

pytestmark = pytest.mark.timeout(1200)
"""The first run on a machine installs the packages."""

SDKS = ("shipyard-neo-sdk==0.2.0", "shipyard-python-sdk==0.2.4")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "hutch.toml"
    config.write_text("[quotas.small]\nboxes = 1\n")
    with serving("--config", str(config)) as started:
        yield started


@pytest.fixture(scope="module")
def bay(server: Server) -> dict[str, Any]:
    return _outcomes(server, "bay_client.py")


def _outcomes(server: Server, script: str) -> dict[str, Any]:
    host, port = server.tcp().address
    keys = [server.key("user", owner) for owner in ("bot", "other", "small")]
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
        "quotas_of_the_owner_hold",
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


def test_calls_are_counted_and_receipted(server: Server) -> None:
    """Metrics count what goes through each door, and each command has a receipt that names the door's session."""
    admin, client = server.unix(hutch_admin="yes"), server.tcp(server.key("user", "seen"), x_session_id="2" * 32)
    sandbox = client.good("POST", "/bay/v1/sandboxes", {"ttl": 600})["id"]
    client.good("POST", f"/bay/v1/sandboxes/{sandbox}/shell/exec", {"command": "true"})
    ship = client.good("POST", "/shipyard/ship", {"ttl": 600})["id"]
    client.good("POST", f"/shipyard/ship/{ship}/exec", {"type": "shell/exec", "payload": {"command": "true"}})
    metrics = admin.call("GET", "/metrics").body.decode()
    for door in ("bay", "shipyard"):
        assert f'hutch_requests_total{{op="{door}",status="201"}}' in metrics, door
    boxes = [box["id"] for box in admin.good("GET", "/v1/boxes")["boxes"] if box["owner"] == "seen"]
    receipts = [each for box in boxes for each in admin.good("GET", f"/v1/receipts?box={box}")["receipts"]]
    assert {each["who"]["session"] for each in receipts if each["op"] == "exec"} == {"bay", "shipyard"}


def test_a_broken_ship_is_replaced() -> None:
    """A ship whose box died does not say that it runs, so AstrBot asks again and gets a new one (lesson 41)."""
    with serving() as server:
        client = server.tcp(server.key("user", "bot"), x_session_id="1" * 32)
        ship = client.good("POST", "/shipyard/ship", {"ttl": 600})
        os.kill(_guest_of(server, ship["container_id"]), signal.SIGKILL)
        place = f"/shipyard/ship/{ship['id']}"
        command = {"type": "shell/exec", "payload": {"command": "echo alive"}}
        until(lambda: client.call("POST", f"{place}/exec", command).status >= 400)
        until(lambda: client.good("GET", place)["status"] != 1)
        again = client.good("POST", "/shipyard/ship", {"ttl": 600})
        assert (again["id"], again["status"]) == (ship["id"], 1)
        assert client.good("POST", f"{place}/exec", command)["data"]["stdout"] == "alive"


def _guest_of(server: Server, box: str) -> int:
    with closing(sqlite3.connect(server.state / "hutch.db")) as store:
        ((body,),) = store.execute("SELECT body FROM boxes WHERE id = ?", (box,))
    pid: int = json.loads(body)["instance"]["data"]["pid"]
    return pid


def test_sandboxes_expire_after_a_restart_though_nobody_asks() -> None:
    """AstrBot never deletes a sandbox, so a restarted server ends those whose time has come by itself (lesson 2)."""
    with serving() as server:
        client = server.tcp(server.key("user", "bot"))
        client.good("POST", "/bay/v1/sandboxes", {"ttl": 1})
        client.good("POST", "/bay/v1/sandboxes", {"ttl": 3600})
        server.end()
        server.start()
        admin = server.unix(hutch_admin="yes")
        until(lambda: len(admin.good("GET", "/v1/boxes")["boxes"]) == 1)
