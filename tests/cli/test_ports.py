"""`hutch box ports`, `url` and `forward`: without a server, and at one."""

import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.both.test_ports import ECHO
from tests.cli.cli_process import TIMEOUT, hutch, started
from tests.cli.conftest import Home
from tests.server.serving import Server, serving

pytestmark = pytest.mark.slow


def _start_echo(home: Home, box: str) -> None:
    home.good("box", "exec", "--detach", box, "--", "python3", "-c", ECHO)
    end = time.monotonic() + TIMEOUT
    while not home.json("box", "ports", box)["ports"]:
        assert time.monotonic() < end
    (port,) = home.json("box", "ports", box)["ports"]
    assert (port["port"], port["process"]) == (7000, "python3")
    assert "7000  127.0.0.1  python3" in home.good("box", "ports", box)


def _forwarded(home: Home, box: str) -> None:
    """A connection to a port of this machine reaches the program in the box."""
    with started("box", "--json", "forward", "--local", "0", box, "7000", env=home.env) as forward:
        assert forward.stdout is not None
        local = json.loads(forward.stdout.readline())["local"]
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", local), TIMEOUT) as connection:
                connection.sendall(b"through")
                connection.shutdown(socket.SHUT_WR)
                received = b""
                while data := connection.recv(4096):
                    received += data
            assert received == b"throughend"


def test_a_forwarded_port_without_a_server(home: Home) -> None:
    home.good("box", "create", "--name", "db")
    _start_echo(home, "db")
    _forwarded(home, "db")
    refused = home.hutch("box", "url", "db", "7000")
    assert refused.returncode == 125
    assert b"hutch serve" in refused.stderr


def test_the_remedy_for_a_url_without_a_server_is_true() -> None:
    """A server that is started on the same directory takes the box over, with its job, and the same command works."""
    server = Server()
    home = Home(server.state, server.run)
    try:
        home.good("box", "create", "--name", "web")
        _start_echo(home, "web")
        refused = home.hutch("box", "url", "web", "7000")
        assert b"start `hutch serve`, then run this again" in refused.stderr
        server.start()
        assert home.good("box", "url", "web", "7000").startswith("http://7000-")
        assert [each["port"] for each in home.json("box", "ports", "web")["ports"]] == [7000]
    finally:
        server.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Home]:
    with serving() as server:
        yield Home(server.state, server.run)


def test_ports_at_a_server(served: Home) -> None:
    home = served
    home.good("box", "create", "--name", "web")
    _start_echo(home, "web")
    _forwarded(home, "web")
    url = home.good("box", "url", "web", "7000").strip()
    assert url.startswith("http://7000-")
    assert ".localhost:" in url
    assert "/preview/7000-" in home.good("box", "url", "--path", "web", "7000")
    public = home.json("box", "url", "--public", "--ttl", "5m", "web", "7001")
    assert public["token"] == ""
    listed = home.good("box", "url", "--list", "web")
    assert f"{public['id']}  7001  everybody" in listed
    home.good("box", "url", "--revoke", public["id"], "web")
    assert public["id"] not in home.good("box", "url", "--list", "web")
    assert hutch("box", "url", "web", "99999", env=home.env).returncode == 125
    assert home.hutch("box", "url", "web").returncode == 125
    home.good("box", "destroy", "web")
