"""`hutch app`: without a server, and at one."""

import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cli.cli_process import TIMEOUT, hutch, started
from tests.cli.conftest import Home
from tests.server.serving import serving

pytestmark = pytest.mark.slow


@pytest.fixture
def served() -> Iterator[Home]:
    """Commands that find a running server by its state directory."""
    with serving() as server:
        yield Home(server.state, server.run)


def _get(url: str, host: str = "") -> str:
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Host": host} if host else {}), timeout=TIMEOUT
    ) as page:
        return str(page.read().decode())


def test_an_app_without_a_server(home: Home) -> None:
    """(S6) It runs from one command to the next, and a forward shows it."""
    done = hutch("app", "new", "static", "site", env=home.env)
    assert done.returncode == 0, done.stderr
    assert b"hutch box forward site 8000" in done.stderr
    box = done.stdout.decode().strip()
    assert home.good("app", "list").splitlines()[1].split()[:5] == [box, "site", "static", "running", "8000"]
    with started("box", "--json", "forward", "--local", "0", "site", "8000", env=home.env) as forward:
        assert forward.stdout is not None
        assert "It works" in _get(f"http://127.0.0.1:{json.loads(forward.stdout.readline())['local']}/")
    assert "GET / " in home.good("app", "logs", "site")
    refused = hutch("app", "url", "site", env=home.env)
    assert refused.returncode != 0
    assert b"hutch serve" in refused.stderr
    assert home.good("app", "stop", "site").strip() == "stopped"
    assert home.good("app", "start", "site").strip() == "running"
    home.good("box", "destroy", "site")
    assert "there is no app" in home.good("app", "list")


def test_an_app_at_a_server(served: Home) -> None:
    """The address that is printed opens the page in a browser."""
    made = served.json("app", "new", "static", "site")
    assert (made["state"], made["port"]) == ("running", 8000)
    for url in (made["url"], served.good("app", "url", "--public", "site").strip()):
        host = url.split("/")[2]
        assert "It works" in _get(url.replace(host, f"127.0.0.1:{host.rpartition(':')[2]}"), host)
    assert served.json("app", "logs", "-n", "1", "site")["lines"]
    served.good("app", "stop", "site")
    assert hutch("app", "logs", "--follow", "site", env=served.env).stderr == b""


def test_failures_show_the_end_of_the_log(home: Home) -> None:
    """The box stays, so that its log can be read and its cause removed."""
    done = hutch("app", "new", "flask", "shop", "--net", "off", env=home.env)
    assert done.returncode != 0
    assert b"no network" in done.stderr
    assert b"fix: create it with the network on: --net on" in done.stderr
    assert b"ERROR" in done.stderr
    assert home.json("app", "list")["apps"][0]["state"] == "failed"
    assert "ERROR" in home.good("app", "logs", "shop")


def test_templates_are_listed(home: Home) -> None:
    names = [line.split()[0] for line in home.good("app", "templates").splitlines()]
    assert names == ["TEMPLATE", "react", "vue", "next", "express", "fastapi", "flask", "static"]
    wrong = hutch("app", "new", "rails", env=home.env)
    assert b"one of react, vue" in wrong.stderr
