"""Every route and every WebSocket, walked by those who have no business there: nothing changes, nothing foreign is
read."""

import json
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from hutch.server.routes import ROUTES, May
from hutch.server.sockets import SOCKETS
from tests.server.serving import Answer, Client, Server, serving, until
from tests.server.test_sockets import attached

_BOX = "/v1/boxes/{box}"
_JOB = f"{_BOX}/jobs/{{job}}"
_FILES = f"{_BOX}/files"


@dataclass(frozen=True)
class Try:
    """What somebody who wants to do harm sends: names in braces are those of the victim."""

    query: str = ""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    reads: bool = True
    """An observer of the same owner gets a good answer."""


HARM = "touch harm; cat victim.txt; kill -9 -1"
RECIPES: dict[str, Try] = {
    "GET /healthz": Try(),
    "GET /readyz": Try(),
    "GET /metrics": Try(),
    "GET /v1/openapi.json": Try(),
    "GET /v1/status": Try(),
    "GET /v1/profiles": Try(),
    "GET /v1/providers": Try(),
    "GET /v1/events": Try("?after=0&limit=1000&box={box}"),
    "GET /v1/errors": Try("?limit=500"),
    "GET /v1/keys": Try(),
    "POST /v1/keys": Try(body={"role": "admin", "owner": "victim"}),
    "DELETE /v1/keys/{key}": Try(),
    "GET /v1/volumes": Try(),
    "DELETE /v1/volumes/{volume}": Try(),
    "GET /v1/session/current": Try(headers={"hutch_session": "{session}"}),
    "PUT /v1/session/current": Try(body={"box": "{box}", "takeover": True}),
    "DELETE /v1/session/current": Try(headers={"hutch_session": "{session}"}),
    "GET /v1/boxes": Try(),
    "POST /v1/boxes": Try(
        body={"name": "{name}", "workspace": "volume:{volume}"}, headers={"idempotency_key": "{idempotency}"}
    ),
    f"GET {_BOX}": Try(),
    f"DELETE {_BOX}": Try("?force=true"),
    f"GET {_BOX}/usage": Try(),
    f"POST {_BOX}/pause": Try(),
    f"POST {_BOX}/resume": Try(),
    f"GET {_BOX}/lease": Try(),
    f"POST {_BOX}/lease": Try(body={"takeover": True}),
    f"DELETE {_BOX}/lease": Try(headers={"hutch_session": "{session}"}),
    f"POST {_BOX}/exec": Try(body={"command": HARM}),
    f"GET {_BOX}/jobs": Try(),
    f"POST {_BOX}/jobs": Try(body={"command": HARM}),
    f"GET {_JOB}": Try(),
    f"DELETE {_JOB}": Try(),
    f"GET {_JOB}/output": Try(),
    f"POST {_JOB}/stdin": Try("?close=true", body=b"harm\n"),
    f"POST {_JOB}/signal": Try(body={"number": 9}),
    f"POST {_JOB}/resize": Try(body={"rows": 3, "cols": 3}),
    f"POST {_JOB}/wait": Try(body={"timeout_sec": 0}, reads=False),
    f"GET {_FILES}": Try("?path=."),
    f"GET {_FILES}/content": Try("?path=victim.txt"),
    f"PUT {_FILES}/content": Try("?path=victim.txt", body=b"harm"),
    f"DELETE {_FILES}/content": Try("?path=victim.txt"),
    f"GET {_FILES}/stat": Try("?path=victim.txt"),
    f"GET {_FILES}/lines": Try("?path=victim.txt"),
    f"GET {_FILES}/watch": Try("?path=."),
    f"POST {_FILES}/mkdir": Try(body={"path": "harm"}),
    f"POST {_FILES}/move": Try(body={"source": "victim.txt", "target": "harm.txt"}),
    f"POST {_FILES}/edit": Try(body={"path": "victim.txt", "old": "victim", "new": "harm"}),
    f"POST {_FILES}/glob": Try(body={"pattern": "**"}),
    f"POST {_FILES}/grep": Try(body={"pattern": "."}),
    f"POST {_FILES}/digest": Try(body={"path": "victim.txt"}),
    f"WS {_BOX}/terminal": Try("?command=touch%20harm"),
    f"WS {_JOB}/ws": Try(),
    # Last: from here on a foreign owner has a volume of the same name.
    "POST /v1/volumes": Try(body={"name": "{volume}"}),
}
"""A route that has no line here makes the first test fail: whoever adds one thinks of who must not use it."""


def test_every_route_has_its_recipe() -> None:
    assert set(RECIPES) == {route.op for route in ROUTES} | {f"WS {path}" for path in SOCKETS}


class Victim:
    """An owner with one of everything."""

    def __init__(self, server: Server) -> None:
        self._server = server
        made = server.unix().good("POST", "/v1/keys", {"role": "user", "owner": "victim", "name": "victim-key"})
        client = server.tcp(made["text"], hutch_session="victim-session")
        self.observer = server.tcp(server.key("observer", "victim"))
        client.good("POST", "/v1/volumes", {"name": "victim-volume"})
        spec = {"name": "victim-name", "labels": {"victim-label": "yes"}, "memory_mb": 128, "env": {"A": "victim-env"}}
        box = client.good("POST", "/v1/boxes", spec, idempotency_key="victim-idempotency")["id"]
        self.at = f"/v1/boxes/{box}"
        client.good("PUT", "/v1/session/current", {"box": box})
        client.good("PUT", f"{self.at}/files/content?path=victim.txt", b"victim-content\n")
        job = client.good("POST", f"{self.at}/jobs", {"command": "echo victim-output; exec sleep 10000", "pty": True})
        until(lambda: "victim-output" in client.good("GET", f"{self.at}/jobs/{job['id']}/output?wait=10")["text"])
        assert client.call("GET", f"{self.at}/files/stat?path=victim-missing").status == 404
        self.names = {
            "box": box, "job": job["id"], "key": made["key"]["id"], "volume": "victim-volume",
            "session": "victim-session", "name": "victim-name", "idempotency": "victim-idempotency",
        }  # fmt: skip
        self.marks = {*self.names.values(), "victim-content", "victim-output", "victim-env", "victim-label",
                      "victim-missing", "victim.txt", "victim-key"}  # fmt: skip

    def snapshot(self) -> dict[str, Any]:
        """Everything that a foreign hand could have changed, from outside the box's own clocks."""
        look = self.observer
        box = look.good("GET", self.at)
        paths = look.good("POST", f"{self.at}/files/glob", {"pattern": "**/*"})["paths"]
        return {
            "box": {name: box[name] for name in ("state", "reason", "spec", "epoch", "lease")},
            "files": {path: look.call("GET", f"{self.at}/files/content?path={path}").body for path in paths},
            "jobs": look.good("GET", f"{self.at}/jobs"),
            "terminal": look.good("GET", f"{self.at}/jobs/{self.names['job']}/output"),
            "volumes": look.good("GET", "/v1/volumes"),
            "boxes": [each["id"] for each in look.good("GET", "/v1/boxes")["boxes"]],
            "events": look.good("GET", "/v1/events?limit=1000")["events"],
            "notes": self._notes(),
        }

    def _notes(self) -> list[tuple[str, str, bytes]]:
        """Keys, volumes, sessions' boxes: of the victim all of them, of the others those that open doors."""
        with sqlite3.connect(f"file:{self._server.state / 'hutch.db'}?mode=ro", uri=True) as store:
            rows = store.execute("SELECT kind, key, body FROM notes ORDER BY kind, key").fetchall()
        return [row for row in rows if row[0] == "key" or row[1].startswith("victim/")]


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Server, Victim]]:
    with serving() as server:
        yield server, Victim(server)


def _walk(
    client: Client, names: dict[str, str], but: Collection[str] = ()
) -> Iterator[tuple[str, Answer, str]]:
    """Each operation, its answer, and all that was sent."""
    for op, attempt in RECIPES.items():
        if op in but:
            continue
        method, path = op.split(" ", 1)
        target = path.format(**names) + attempt.query.format(**names)
        headers = {name: value.format(**names) for name, value in attempt.headers.items()}
        body = attempt.body
        if isinstance(body, dict):
            body = {name: v.format(**names) if isinstance(v, str) else v for name, v in body.items()}
        sent = f"{target} {json.dumps(body, default=str)} {headers}"
        if method == "WS":
            yield op, _refused_socket(client, target), sent
        else:
            yield op, _answered(client, method, target, body, headers), sent


def _answered(client: Client, method: str, target: str, body: Any, headers: dict[str, str]) -> Answer:
    connection, response = client.open(method, target, body, **headers)
    try:
        endless = response.getheader("content-type") == "application/x-ndjson"
        content = response.readline() if endless else response.read()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, content)
    finally:
        connection.close()


def _refused_socket(client: Client, target: str) -> Answer:
    with pytest.raises(InvalidStatus) as refused, attached(client, target):
        pass
    response = refused.value.response
    return Answer(response.status_code, dict(response.headers), bytes(response.body or b""))


def _may(op: str) -> May:
    return next((route.may for route in ROUTES if route.op == op), May.CHANGE)


def _nothing_foreign(op: str, answer: Answer, sent: str, marks: set[str]) -> None:
    """What a caller sent may come back to him, in an error."""
    told = answer.body.decode("utf-8", "replace") + str(answer.headers)
    shown = {mark for mark in marks if mark not in sent and mark in told}
    assert not shown, (op, shown, answer)


def test_strangers(place: tuple[Server, Victim]) -> None:
    """Issue 4.2: without a key, or with the wrong half of one, nothing but the two health checks answers."""
    server, victim = place
    before = victim.snapshot()
    for client in (server.tcp(), server.tcp(f"hutch_{victim.names['key']}_{'A' * 43}")):
        for op, answer, sent in _walk(client, victim.names):
            assert answer.status == (200 if _may(op) is May.ANYBODY else 401), (op, answer)
            _nothing_foreign(op, answer, sent, victim.marks | {"victim"})
    assert victim.snapshot() == before


@pytest.mark.parametrize("role", ["user", "observer", "admin"])
def test_foreign_owners(place: tuple[Server, Victim], role: str) -> None:
    """Issue 4: another owner, whatever his role, changes nothing and reads nothing; a box of somebody else looks like
    one that never was."""
    server, victim = place
    client = server.tcp(server.key(role, f"foreign-{role}"))
    before = victim.snapshot()
    # Keys of every owner are an admin's to keep.
    keeps_keys = {op for op in RECIPES if "/v1/keys" in op and role == "admin"}
    absent = {**victim.names, "box": "a" * 20, "volume": "no-such", "key": "k" + "0" * 12}
    answers: dict[str, list[str]] = {}
    for names in (victim.names, absent):
        for op, answer, sent in _walk(client, names, but=keeps_keys):
            if names is victim.names:  # the second time /v1/errors tells what was sent the first time
                _nothing_foreign(op, answer, sent, victim.marks)
            assert answer.status < 500, (op, answer)
            if "{box}" in op or op.startswith(("DELETE /v1/volumes", "PUT /v1/session")):
                expected = 404 if _may(op) is May.READ or role != "observer" else 403
                assert answer.status == expected, (op, answer)
                told = f"{answer.status} {answer.body.decode()}"
                for value in (names["box"], names["volume"]):
                    told = told.replace(value, "…")
                answers.setdefault(op, []).append(told)
        for box in client.good("GET", "/v1/boxes")["boxes"]:
            client.good("DELETE", f"/v1/boxes/{box['id']}?force=true")
        for volume in client.good("GET", "/v1/volumes")["volumes"]:
            client.good("DELETE", f"/v1/volumes/{volume['name']}")
    for op, told in answers.items():
        assert told[0] == told[1], f"{op} tells that it is there"
    assert victim.snapshot() == before


def test_observers(place: tuple[Server, Victim]) -> None:
    """P8: an observer of the same owner reads, and changes nothing."""
    _, victim = place
    before = victim.snapshot()
    for op, answer, _ in _walk(victim.observer, victim.names):
        may = _may(op)
        if may in (May.CHANGE, May.ADMIN):
            assert (answer.status, answer.json()["code"]) == (403, "refused"), (op, answer)
        elif RECIPES[op].reads:
            assert answer.status == 200, (op, answer)
    assert victim.snapshot() == before


def test_admins_over_all_say_so_and_are_logged(place: tuple[Server, Victim]) -> None:
    """Issue 4.2: past owner and lease only with `Hutch-Admin: yes`; each such call leaves a line that names it."""
    server, _ = place
    owner = server.tcp(server.key("user", "customer"), hutch_session="customer")
    box = owner.good("POST", "/v1/boxes", {"memory_mb": 128})["id"]
    job = owner.good("POST", f"/v1/boxes/{box}/jobs", {"command": "sleep 10000"})["id"]
    names = {"box": box, "job": job, "key": "k" + "0" * 12, "volume": "none", "session": "s", "name": "n",
             "idempotency": "i"}  # fmt: skip
    key = server.key("admin", "operators")
    key_id = key.split("_")[1]

    def logged() -> set[str]:
        lines = server.log.read_text().splitlines()
        mine = [line for line in lines if " past owner" in line and f"by={key_id}" in line]
        return {op for op in RECIPES if any(f'operation="{op}"' in line for line in mine)}

    admin = server.tcp(key)
    later = {"POST /v1/keys", f"DELETE {_BOX}", *(op for op in RECIPES if op.startswith("WS "))}
    for op, answer, _ in _walk(admin, names, but=later):
        assert "{box}" not in op or answer.status == 404, (op, answer)
    assert logged() == set()

    over = admin.saying(hutch_admin="yes")
    with attached(over, f"/v1/boxes/{box}/terminal?command=true"), attached(over, f"/v1/boxes/{box}/jobs/{job}/ws"):
        pass
    for op, answer, _ in _walk(over, names, but=later):
        assert answer.status != 404 or "no box" not in answer.json()["message"], (op, answer)
    over.good("DELETE", f"/v1/boxes/{box}?force=true")
    assert logged() == {op for op in RECIPES if _may(op) is not May.ANYBODY} - {"POST /v1/keys"}
    for role in ("user", "observer"):
        got = server.tcp(server.key(role, "operators"), hutch_admin="yes").call("GET", "/v1/boxes")
        assert (got.status, got.json()["code"]) == (403, "refused")
