"""Secrets are planted wherever one could be put, then looked for in everything a server says."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from hutch.server.routes import ROUTES
from tests.server.serving import Client, Server, serving
from tests.server.test_websockets import attached

OF_A_BOX = "s3cr3t-of-a-box-8d1f"
OF_LINES = "first-line-of-a-pem-77aa\nsecond-line-of-a-pem-99bb"


@pytest.fixture(scope="module")
def quiet() -> Iterator[Server]:
    """A server that logs all it ever would."""
    with serving(HUTCH_LOG_LEVEL="debug") as server:
        yield server


LIVE = "/v1/dashboard/live"


def test_nothing_a_server_says_holds_a_secret(quiet: Server, tmp_path: Path) -> None:
    """Neither log nor error nor event nor number nor record shows a key or a box's secret, also
    where somebody has put it into the wrong place (lesson 37)."""
    made = quiet.unix().good("POST", "/v1/keys", {"role": "admin", "owner": "careless"})
    key = made["text"]
    client = quiet.tcp(key)
    said: list[bytes] = []

    def tell(caller: Client, method: str, path: str, body: object = None, **headers: str) -> None:
        answer = caller.call(method, path, body, **headers)
        said.append(answer.body + str(answer.headers).encode())

    secrets = {"TOKEN": OF_A_BOX, "PEM": OF_LINES}
    box = "/v1/boxes/" + client.good("POST", "/v1/boxes", {"memory_mb": 128, "secrets": secrets})["id"]
    ran = client.good("POST", f"{box}/exec", {"command": 'printf %s "$TOKEN"'})
    assert ran["stdout"] == OF_A_BOX, "the command itself has it"

    # Into errors: names that do not exist, values that are refused, words where numbers belong.
    for secret in (key, OF_A_BOX):
        for path in (f"{box}/files/content?path={secret}", f"{box}/jobs/{secret}", f"/v1/{secret}",
                     f"/v1/boxes/{secret}", f"{box}/jobs/{secret}/output?cursor={secret}",
                     f"/v1/events?after={secret}", f"/v1/status?key={secret}"):  # fmt: skip
            tell(client, "GET", path)
        for body in ({"command": ["/no/such/" + secret]}, {"command": "true", "cwd": "/" + secret},
                     {"command": "true", "user": secret}, {"command": "true", secret: secret}):  # fmt: skip
            tell(client, "POST", f"{box}/exec", body)
        tell(client, "POST", "/v1/boxes", {"image": f"dir:/{secret}"})
        tell(client, "POST", "/v1/boxes", {"mounts": [f"/{secret}:/x"]})
        tell(client, "POST", "/v1/boxes", {"profile": secret})
        tell(client, "POST", f"{box}/files/move", {"source": secret, "target": "x"})
        tell(client, "DELETE", f"/v1/volumes/{secret}")
        tell(client, "PATCH", f"/v1/boxes/{secret}")
        tell(client, "GET", "/v1/events", accept="text/event-stream", last_event_id=secret)
    tell(quiet.tcp(key[:-1] + "-"), "GET", "/v1/boxes")
    tell(quiet.tcp(), "GET", f"/v1/boxes?key={key}")
    tell(quiet.tcp(key, host="evil.example"), "GET", "/v1/boxes")
    tell(quiet.tcp(key, origin=f"http://{key}"), "GET", "/v1/boxes")
    with contextlib.suppress(InvalidStatus), attached(client, f"{box}/jobs/{OF_A_BOX}/ws"):
        pass

    # And into every report of what has happened.
    over = quiet.unix(hutch_admin="yes")
    plain = [route.path for route in ROUTES if route.method == "GET" and "{" not in route.path and route.path != LIVE]
    connection, response = client.open("GET", LIVE)  # It never ends; its first message holds the state of everything.
    said.append(b"".join(iter(response.readline, b"\n")))
    connection.close()
    for path in (*plain, box, f"{box}/lease", f"{box}/usage", "/v1/events?limit=1000", "/v1/errors?limit=500"):
        tell(client, "GET", path)
        tell(over, "GET", path)
    client.good("DELETE", box)
    tell(client, "GET", box)

    log = quiet.log.read_bytes()
    assert b"refused" in log, "it did log"
    assert b"DEBUG" in log, "and all it ever would"
    hidden = [key.split("_", 2)[2], OF_A_BOX, *OF_LINES.splitlines()]
    for text in hidden:
        assert text.encode() not in log, _around(log, text)
        for each in said:
            assert text.encode() not in each, _around(each, text)


def _around(data: bytes, text: str) -> bytes:
    at = data.index(text.encode())
    return data[max(0, at - 300) : at + 100]
