"""Ports of sandboxes, reached by the host names that the E2B SDK gives and by its headers (S13)."""

import http.client
import json
from typing import Any

import e2b

from tests.e2e.e2b_sdk import E2B
from tests.server.serving import until

SERVER = "python3 -m http.server 8123"


def get(hutch_e2b: E2B, host: str, **headers: str) -> tuple[int, Any]:
    """Ask the server under a host name, which the client need not be able to resolve."""
    address = hutch_e2b.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", "/", headers={"Host": host, **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_ports_are_public_by_their_host_names(hutch_e2b: E2B) -> None:
    """(S13) `get_host(port)` names a program in the sandbox; a closed port and a dead sandbox say so in E2B's words."""
    with hutch_e2b.sandbox() as sandbox:
        host = sandbox.get_host(8123)
        status, body = get(hutch_e2b, host)
        assert (status, json.loads(body)["message"]) == (502, "The sandbox is running but port is not open")
        sandbox.files.write("served/index.html", "made in a box")
        sandbox.commands.run(SERVER, cwd="served", background=True)
        until(lambda: get(hutch_e2b, host)[0] == 200)
        assert get(hutch_e2b, host)[1] == b"made in a box"
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8123"}
        assert get(hutch_e2b, "localhost", **headers)[1] == b"made in a box"
    assert get(hutch_e2b, "localhost", **headers)[0] == 502


def test_private_ports_need_the_traffic_token(hutch_e2b: E2B) -> None:
    """(S13) Without public traffic a port opens only to visitors with the token, which the program never sees."""
    with hutch_e2b.sandbox(network={"allow_public_traffic": False}) as sandbox:
        token = sandbox.traffic_access_token
        assert token
        host = sandbox.get_host(8123)
        assert get(hutch_e2b, host)[0] == 403
        sandbox.commands.run(SERVER, background=True)
        until(lambda: get(hutch_e2b, host, **{"e2b-traffic-access-token": token})[0] == 200)
        again = e2b.Sandbox.connect(sandbox.sandbox_id, **hutch_e2b.options)
        assert again.traffic_access_token == token


def test_a_request_wakes_a_sandbox_that_resumes_by_itself(hutch_e2b: E2B) -> None:
    """(S13) With `auto_resume` a visitor of a port wakes a paused sandbox, and its programs continue."""
    with hutch_e2b.sandbox(lifecycle={"on_timeout": "pause", "auto_resume": True}) as sandbox:
        host = sandbox.get_host(8123)
        sandbox.commands.run(SERVER, background=True)
        until(lambda: get(hutch_e2b, host)[0] == 200)
        assert sandbox.pause()
        assert get(hutch_e2b, host)[0] == 200
    with hutch_e2b.sandbox() as sandbox:
        sandbox.pause()
        status, body = get(hutch_e2b, sandbox.get_host(8123))
        assert (status, json.loads(body)["message"]) == (502, "The sandbox was not found")
