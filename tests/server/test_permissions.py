"""Every route and every WebSocket, walked by those who have no business there: nothing changes, nothing foreign is
read."""

import json
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from hutch.server.handlers.websockets import SOCKETS
from hutch.server.routes import ROUTES, May
from tests.server.serving import Answer, Client, Server, serving, until
from tests.server.test_questions import asking
from tests.server.test_websockets import attached

_BOX = "/v1/boxes/{box}"
_JOB = f"{_BOX}/jobs/{{job}}"
_FILES = f"{_BOX}/files"
_SKILL = "/v1/skills/{skill}"
_MCP = "/v1/mcp-servers/{mcp_server}"
_APP = "/v1/apps/{box}"


@dataclass(frozen=True)
class Try:
    """What somebody who wants to do harm sends: names in braces are those of the victim."""

    query: str = ""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    reads: bool = True
    """An observer of the same owner gets a good answer."""
    blind: bool = False
    """Names of one's own: another owner's are neither found nor missed, and the answer is always the same."""


NO_IMAGE = f"sha256:{'0' * 64}"
SHUTDOWN = "POST /v1/shutdown"
HARM = "touch harm; cat victim.txt; kill -9 -1"
RECIPES: dict[str, Try] = {
    "GET /healthz": Try(),
    "GET /readyz": Try(),
    "GET /metrics": Try(),
    "GET /v1/openapi.json": Try(),
    "GET /v1/status": Try(),
    "GET /v1/metrics": Try(),
    "POST /v1/shutdown": Try(),
    "GET /v1/profiles": Try(),
    "GET /v1/providers": Try(),
    "GET /v1/events": Try("?after=0&limit=1000&box={box}"),
    "GET /v1/errors": Try("?limit=500"),
    "GET /v1/receipts": Try("?box={box}"),
    "POST /v1/receipts/verify": Try(body={"box": "{box}"}),
    "GET /v1/keys": Try(),
    "POST /v1/keys": Try(body={"role": "admin", "owner": "victim"}),
    "DELETE /v1/keys/{key}": Try(),
    "GET /v1/volumes": Try(),
    "GET /v1/volumes/{volume}": Try(),
    "DELETE /v1/volumes/{volume}": Try(),
    "GET /v1/session/current": Try(headers={"hutch_session": "{session}"}),
    "PUT /v1/session/current": Try(body={"box": "{box}", "takeover": True}),
    "DELETE /v1/session/current": Try(headers={"hutch_session": "{session}"}),
    "POST /v1/session/presence": Try(body={"sessions": {"{session}": {"{box}": "{epoch}"}}}),
    "GET /v1/default": Try(),
    "PUT /v1/default": Try(body={"box": "{box}"}),
    "GET /v1/find": Try("?text={name}"),
    "GET /v1/boxes": Try(),
    f"GET {_BOX}": Try(),
    f"PATCH {_BOX}": Try(body={"name": "harm", "idle_timeout_sec": 1}),
    f"DELETE {_BOX}": Try("?force=true"),
    f"POST {_BOX}/created": Try(),
    f"POST {_BOX}/scope": Try(body={"template": "{{chat}}", "values": {"chat": "harm"}}),
    f"GET {_BOX}/export": Try(),
    f"GET {_BOX}/usage": Try(),
    f"POST {_BOX}/pause": Try(),
    f"POST {_BOX}/resume": Try(),
    f"POST {_BOX}/stop": Try(),
    f"GET {_BOX}/checkpoints": Try(),
    f"POST {_BOX}/checkpoints": Try(body={"name": "harm"}),
    f"DELETE {_BOX}/checkpoints/{{checkpoint}}": Try(),
    f"POST {_BOX}/rollback": Try(body={"checkpoint": "{checkpoint}", "kill": True}),
    f"POST {_BOX}/undo": Try(body={"kill": True}),
    f"GET {_BOX}/diff": Try(reads=False),
    f"POST {_BOX}/fork": Try(body={"count": 1}),
    f"POST {_BOX}/merge": Try(body={"fork": "{box}"}),
    f"POST {_BOX}/attempt": Try(body={"command": HARM}),
    f"GET {_BOX}/lease": Try(),
    f"POST {_BOX}/lease": Try(body={"takeover": True}),
    f"DELETE {_BOX}/lease": Try(headers={"hutch_session": "{session}"}),
    f"POST {_BOX}/receipts": Try(body={"op": "note.harm"}),
    "POST /v1/receipts": Try(body={"op": "note.harm"}),
    f"POST {_BOX}/exec": Try(body={"command": HARM}, headers={"hutch_operation": "{operation}"}),
    f"DELETE {_BOX}/operations/{{operation}}": Try(headers={"hutch_session": "{session}"}, blind=True),
    f"GET {_BOX}/ports": Try(),
    f"POST {_BOX}/ports/{{port}}/url": Try(body={"public": True}),
    f"GET {_BOX}/previews": Try(),
    f"DELETE {_BOX}/previews/{{preview}}": Try(),
    f"GET {_BOX}/jobs": Try(),
    f"POST {_BOX}/jobs": Try(body={"command": HARM}),
    f"GET {_JOB}": Try(),
    f"DELETE {_JOB}": Try(),
    f"GET {_JOB}/output": Try(),
    f"GET {_JOB}/follow": Try(),
    f"POST {_JOB}/stdin": Try("?close=true", body=b"harm\n"),
    f"POST {_JOB}/signal": Try(body={"number": 9}),
    f"POST {_JOB}/resize": Try(body={"rows": 3, "cols": 3}),
    f"POST {_JOB}/wait": Try(body={"timeout_sec": 0}, reads=False),
    f"POST {_BOX}/code": Try(body={"code": "open('harm', 'w')", "language": "python"}),
    f"GET {_BOX}/kernels": Try(),
    f"POST {_BOX}/kernels": Try(body={"language": "bash"}),
    f"POST {_BOX}/kernels/{{kernel}}/interrupt": Try(),
    f"POST {_BOX}/kernels/{{kernel}}/restart": Try(),
    f"DELETE {_BOX}/kernels/{{kernel}}": Try(),
    f"GET {_FILES}": Try("?path=."),
    f"GET {_FILES}/content": Try("?path=victim.txt"),
    f"PUT {_FILES}/content": Try("?path=victim.txt", body=b"harm"),
    f"DELETE {_FILES}/content": Try("?path=victim.txt"),
    f"GET {_FILES}/stat": Try("?path=victim.txt"),
    f"GET {_FILES}/exists": Try("?path=victim.txt"),
    f"GET {_FILES}/tree": Try("?path=."),
    f"PUT {_FILES}/tree": Try("?path=.", body=b"harm"),
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
    f"WS {_BOX}/ports/{{port}}/connect": Try(),
    "GET /v1/questions": Try(),
    "POST /v1/questions": Try(body={"agent": "harm", "tool": "exec", "box": "{box}"}),
    "POST /v1/questions/{question}": Try(body={"answer": "allow"}),
    "GET /v1/images": Try(),
    "POST /v1/images": Try(body={"name": "no name"}),
    "POST /v1/images/prune": Try(),
    "GET /v1/images/{image}": Try(reads=False),
    "DELETE /v1/images/{image}": Try(),
    "GET /v1/skills": Try(),
    "POST /v1/skills/preview": Try(body={"git": "https://127.0.0.1:9/none"}),
    "POST /v1/skills/archive": Try("?name={skill}", body=b"harm"),
    "POST /v1/skills/archive/preview": Try(body=b"harm"),
    f"GET {_SKILL}": Try(),
    f"PATCH {_SKILL}": Try(body={"description": "harm"}),
    f"DELETE {_SKILL}": Try(),
    f"GET {_SKILL}/body": Try(),
    f"GET {_SKILL}/versions": Try(),
    f"GET {_SKILL}/files": Try(),
    f"GET {_SKILL}/files/content": Try("?path=SKILL.md"),
    f"PUT {_SKILL}/files/content": Try("?path=SKILL.md", body=b"harm"),
    f"DELETE {_SKILL}/files/content": Try("?path=SKILL.md"),
    f"GET {_SKILL}/export": Try(),
    f"POST {_SKILL}/pin": Try(),
    f"DELETE {_SKILL}/pin": Try(),
    f"POST {_SKILL}/rollback": Try(),
    f"POST {_SKILL}/upgrade": Try(),
    f"POST {_SKILL}/save": Try(body={"box": "{box}", "path": "."}),
    f"POST {_SKILL}/prepare": Try(body={"box": "{box}"}),
    "GET /v1/skill-bindings": Try(),
    "GET /v1/app-templates": Try(),
    "GET /v1/apps": Try(),
    f"GET {_APP}": Try(),
    f"GET {_APP}/logs": Try(),
    f"POST {_APP}/wait": Try(body={"timeout_sec": 0}),
    f"POST {_APP}/start": Try(),
    f"POST {_APP}/stop": Try(),
    "GET /v1/mcp-servers": Try(),
    f"GET {_MCP}": Try(),
    f"GET {_MCP}/logs": Try(),
    f"GET {_MCP}/tools": Try(),
    f"POST {_MCP}/call": Try(body={"tool": "harm"}),
    f"POST {_MCP}/start": Try(),
    f"POST {_MCP}/stop": Try(),
    f"POST {_MCP}/restart": Try(),
    f"DELETE {_MCP}": Try(),
    "WS /mcp/servers/{mcp_server}/ws": Try(),
    "POST /v1/dashboard/session": Try(body={"key": "hutch_{key}_harm"}, reads=False),
    "GET /v1/dashboard/session": Try(),
    "DELETE /v1/dashboard/session": Try(reads=False),
    "POST /v1/dashboard/links": Try(reads=False),
    "GET /v1/dashboard/live": Try(),
    "GET /v1/tools": Try(),
    # Last: from here on a foreign owner has things of the same names.
    "POST /v1/boxes": Try(
        body={"name": "{name}", "workspace": "volume:{volume}"}, headers={"idempotency_key": "{idempotency}"}
    ),
    "POST /v1/apps": Try(
        body={"template": "static", "name": "{name}", "spec": {"workspace": "volume:{volume}"}},
        headers={"idempotency_key": "{idempotency}"},
    ),
    "POST /v1/plan": Try(body={"profile": "default"}),
    "POST /v1/boxes/import": Try("?name={name}", body=b"harm"),
    "POST /v1/session/working": Try(body={"memory_mb": 128}, headers={"hutch_session": "{session}"}),
    "POST /v1/scopes": Try(body={"template": "{{chat}}", "values": {"chat": "{chat}"}, "spec": {"memory_mb": 128}}),
    "POST /v1/volumes": Try(body={"name": "{volume}"}),
    "POST /v1/skills": Try(body={"name": "{skill}", "description": "harm"}),
    "PUT /v1/skill-bindings/{group}": Try(body={"skills": ["{skill}"]}),
    "POST /v1/mcp-servers": Try(body={"name": "{mcp_server}", "definition": {"command": "harm"}, "replace": True}),
    "POST /v1/mcp-servers/import": Try(body={"servers": {"{mcp_server}": {"command": "harm"}}, "replace": True}),
}
"""A route that has no line here makes the first test fail: who adds one thinks of who must not use it."""
HEALTH_CHECKS = {"GET /healthz", "GET /readyz"}
ACTIONS = {
    "DELETE /v1/volumes/{volume}", "PUT /v1/session/current", f"DELETE {_BOX}", f"POST {_BOX}/lease",
    "POST /v1/skills/preview", f"DELETE {_MCP}", "POST /v1/session/working", "POST /v1/volumes", "POST /v1/mcp-servers",
    "POST /v1/mcp-servers/import",
}  # fmt: skip
"""What a key of the same owner may not without the right action (P15)."""
NAMED_IN_PATH = {"{box}", "{volume}", "{skill}", "{question}", "{mcp_server}"}
NAMED_IN_BODY = {"PUT /v1/session/current", "PUT /v1/default", "GET /v1/find", "POST /v1/questions"}


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
        spec = {"name": "victim-name", "memory_mb": 128, "env": {"A": "victim-env"}}
        spec["labels"] = {"victim-label": "yes", "app.template": "static"}
        box = client.good("POST", "/v1/boxes", spec, idempotency_key="victim-idempotency")["id"]
        self.at = f"/v1/boxes/{box}"
        client.good("PUT", "/v1/session/current", {"box": box})
        client.good("PUT", "/v1/default", {"box": box})
        skill = {"name": "victim-skill", "description": "victim-described", "body": "victim-instructions"}
        client.good("POST", "/v1/skills", skill)
        client.good("PUT", "/v1/skill-bindings/victim-group", {"skills": ["victim-skill"]})
        mcp_server = {"name": "victim-mcp", "definition": {"command": "victim-program", "env": {"A": "victim-env"}}}
        client.good("POST", "/v1/mcp-servers", mcp_server)
        scope = {"template": "{chat}", "values": {"chat": "victim-chat"}, "spec": {"memory_mb": 128}}
        scoped = client.good("POST", "/v1/scopes", scope)["box"]["id"]
        client.good("PUT", f"{self.at}/files/content?path=victim.txt", b"victim-content\n")
        job = client.good(
            "POST", f"{self.at}/jobs", {"command": "echo victim-output; exec sleep 10000", "pty": True},
            hutch_operation="victimoperation",
        )  # fmt: skip
        until(lambda: "victim-output" in client.good("GET", f"{self.at}/jobs/{job['id']}/output?wait=10")["text"])
        client.good("POST", f"{self.at}/checkpoints", {"name": "victim-state"})
        kernel = client.good("POST", f"{self.at}/kernels", {"language": "bash"})["id"]
        assert client.call("GET", f"{self.at}/files/stat?path=victim-missing").status == 404
        preview = client.good("POST", f"{self.at}/ports/8000/url", {})
        self._asking = asking(client, agent="victim-agent", what="victim-command", box=box)
        _, question = self._asking.__enter__()
        self.names = {
            "box": box, "job": job["id"], "key": made["key"]["id"], "volume": "victim-volume",
            "session": "victim-session", "name": "victim-name", "idempotency": "victim-idempotency",
            "checkpoint": "victim-state",
            "chat": "victim-chat", "operation": "victimoperation", "skill": "victim-skill", "group": "victim-group",
            "mcp_server": "victim-mcp", "kernel": kernel, "port": "8000", "preview": preview["id"],
            "epoch": str(client.good("GET", self.at)["epoch"]), "question": question, "image": NO_IMAGE,
        }  # fmt: skip
        named = {value for name, value in self.names.items() if name not in ("epoch", "image", "port")}
        self.marks = {
            *named, scoped, "victim-content", "victim-output", "victim-env", "victim-label", "victim-missing",
            "victim.txt", "victim-agent", "victim-command", "victim-key", "victim-described", "victim-instructions",
            "victim-program", preview["token"],
        }  # fmt: skip

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
            "checkpoints": look.good("GET", f"{self.at}/checkpoints"),
            "volumes": look.good("GET", "/v1/volumes"),
            "boxes": [each["id"] for each in look.good("GET", "/v1/boxes")["boxes"]],
            "receipts": [
                each
                for each in look.good("GET", f"/v1/receipts?box={self.names['box']}")["receipts"]
                if each["who"].get("role") != "observer"
            ],
            "skills": look.good("GET", "/v1/skills"),
            "mcp_servers": look.good("GET", "/v1/mcp-servers"),
            "groups": look.good("GET", "/v1/skill-bindings"),
            "default": look.good("GET", "/v1/default"),
            "questions": look.good("GET", "/v1/questions"),
            "events": look.good("GET", "/v1/events?limit=1000")["events"],
            "notes": self._notes(),
        }

    def _notes(self) -> list[tuple[str, str, bytes]]:
        """Keys, volumes, sessions' boxes: of the victim all of them, of the others those that open doors."""
        with sqlite3.connect(f"file:{self._server.state / 'hutch.db'}?mode=ro", uri=True) as store:
            rows = store.execute("SELECT kind, key, body FROM notes ORDER BY kind, key").fetchall()
        return [row for row in rows if row[0] in ("key", "preview") or row[1].startswith("victim/")]


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Server, Victim]]:
    with serving() as server:
        yield server, Victim(server)


def _walk(client: Client, names: dict[str, str], but: Collection[str] = ()) -> Iterator[tuple[str, Answer, str]]:
    """Each operation, its answer, and all that was sent."""
    for op, attempt in RECIPES.items():
        if op in but:
            continue
        method, path = op.split(" ", 1)
        target = path.format(**names) + attempt.query.format(**names)
        headers = {name: value.format(**names) for name, value in attempt.headers.items()}
        body = attempt.body
        if isinstance(body, dict):
            body = _filled(body, names)
        sent = f"{target} {json.dumps(body, default=str)} {headers}"
        if method == "WS":
            yield op, _refused_socket(client, target), sent
        else:
            yield op, _answered(client, method, target, body, headers), sent


def _filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {_filled(name, names): _filled(each, names) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, names) for each in value]
    if value == "{epoch}":
        return int(names["epoch"])
    return value.format(**names) if isinstance(value, str) else value


def _answered(client: Client, method: str, target: str, body: Any, headers: dict[str, str]) -> Answer:
    connection, response = client.open(method, target, body, **headers)
    try:
        endless = target.partition("?")[0].endswith(("/watch", "/follow", "/live")) and response.status == 200
        content = response.read1(65536) if endless else response.read()
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
    reply = answer.body.decode("utf-8", "replace") + str(answer.headers)
    shown = {mark for mark in marks if mark not in sent and mark in reply}
    assert not shown, (op, shown, answer)


def test_strangers(place: tuple[Server, Victim]) -> None:
    """Without a key, or with half of one, only the two health checks answer."""
    server, victim = place
    before = victim.snapshot()
    for client in (server.tcp(), server.tcp(f"hutch_{victim.names['key']}_{'A' * 43}")):
        for op, answer, sent in _walk(client, victim.names):
            assert answer.status == (200 if op in HEALTH_CHECKS else 401), (op, answer)
            _nothing_foreign(op, answer, sent, victim.marks | {"victim"})
    assert victim.snapshot() == before


@pytest.mark.parametrize("role", ["user", "observer", "admin"])
def test_foreign_owners(place: tuple[Server, Victim], role: str) -> None:
    """Another owner, whatever his role, changes nothing and reads nothing; a box of somebody else looks like
    one that never was."""
    server, victim = place
    client = server.tcp(server.key(role, f"foreign-{role}"))
    before = victim.snapshot()
    # Keys of every owner and the server's life are an admin's.
    admins_own = {op for op in RECIPES if ("/v1/keys" in op or op == SHUTDOWN) and role == "admin"}
    absent = {**victim.names, "box": "a" * 20, "volume": "no-such", "key": "k" + "0" * 12, "skill": "none",
              "question": "0" * 16, "mcp_server": "none"}  # fmt: skip
    answers: dict[str, list[str]] = {}
    for names in (victim.names, absent):
        for op, answer, sent in _walk(client, names, but=admins_own):
            if names is victim.names:  # the second time /v1/errors contains what was sent the first time
                _nothing_foreign(op, answer, sent, victim.marks)
            assert answer.status < 500, (op, answer)
            if RECIPES[op].blind and answer.status != 403:
                assert answer.status == 204, (op, answer)
            elif NAMED_IN_PATH & set(op.split("/")) or op in NAMED_IN_BODY:
                expected = 404 if _may(op) is May.READ or role != "observer" else 403
                assert answer.status == expected, (op, answer)
                reply = f"{answer.status} {answer.body.decode()}"
                for value in (names[part.strip("{}")] for part in NAMED_IN_PATH):
                    reply = reply.replace(value, "…")
                answers.setdefault(op, []).append(reply)
        for box in client.good("GET", "/v1/boxes")["boxes"]:
            client.good("DELETE", f"/v1/boxes/{box['id']}?force=true")
        for volume in client.good("GET", "/v1/volumes")["volumes"]:
            client.good("DELETE", f"/v1/volumes/{volume['name']}")
        for skill in client.good("GET", "/v1/skills")["skills"]:
            client.good("DELETE", f"/v1/skills/{skill['name']}")
        for mcp_server in client.good("GET", "/v1/mcp-servers")["servers"]:
            client.good("DELETE", f"/v1/mcp-servers/{mcp_server['name']}")
    for op, reply in answers.items():
        assert reply[0] == reply[1], f"{op} tells that it is there"
    assert victim.snapshot() == before


def test_observers(place: tuple[Server, Victim]) -> None:
    """An observer of the same owner reads, and changes nothing (P8)."""
    _, victim = place
    before = victim.snapshot()
    for op, answer, _ in _walk(victim.observer, victim.names):
        may = _may(op)
        if may in (May.CHANGE, May.ADMIN):
            assert (answer.status, answer.json()["code"]) == (403, "refused"), (op, answer)
        elif RECIPES[op].reads:
            assert answer.status == 200, (op, answer)
    assert victim.snapshot() == before


def test_members_without_actions(place: tuple[Server, Victim]) -> None:
    """A key without actions creates, takes over and destroys nothing of its owner's (P15)."""
    server, victim = place
    rights = {"actions": []}
    made = server.unix().good("POST", "/v1/keys", {"role": "user", "owner": "victim", "rights": rights})
    before = victim.snapshot()
    for op, answer, _ in _walk(server.tcp(made["text"]), victim.names, but=RECIPES.keys() - ACTIONS):
        assert (answer.status, answer.json()["code"]) == (403, "refused"), (op, answer)
        assert answer.json()["details"]["setting"] == "rights.victim.actions", (op, answer)
    server.unix().good("DELETE", f"/v1/keys/{made['key']['id']}")
    after = victim.snapshot()
    assert {**after, "notes": before["notes"]} == before


def test_admins_over_all_say_so_and_are_logged(place: tuple[Server, Victim]) -> None:
    """An admin passes owner and lease only with `Hutch-Admin: yes`, and each such call is logged."""
    server, _ = place
    owner = server.tcp(server.key("user", "customer"), hutch_session="customer")
    box = owner.good("POST", "/v1/boxes", {"memory_mb": 128})["id"]
    job = owner.good("POST", f"/v1/boxes/{box}/jobs", {"command": "sleep 10000"})["id"]
    names = {"box": box, "job": job, "key": "k" + "0" * 12, "volume": "none", "session": "s", "name": "n",
             "checkpoint": "victim-state",
             "idempotency": "i", "chat": "c", "operation": "o", "epoch": "1", "port": "8000", "preview": "p" + "0" * 16,
             "skill": "s", "group": "g", "question": "0" * 16, "image": NO_IMAGE, "mcp_server": "m",
             "kernel": owner.good("POST", f"/v1/boxes/{box}/kernels", {"language": "bash"})["id"]}  # fmt: skip
    key = server.key("admin", "operators")
    key_id = key.split("_")[1]

    def logged() -> set[str]:
        lines = server.log.read_text().splitlines()
        mine = [line for line in lines if " past owner" in line and f"by={key_id}" in line]
        return {op for op in RECIPES if any(f'operation="{op}"' in line for line in mine)}

    admin = server.tcp(key)
    # What acts on names of one's own acts on nobody else's.
    own = {"POST /v1/keys", SHUTDOWN, "WS /mcp/servers/{mcp_server}/ws"}
    blind = own | {op for op, attempt in RECIPES.items() if attempt.blind}
    later = {f"DELETE {_BOX}", "POST /v1/questions", *(op for op in RECIPES if op.startswith("WS "))} | blind
    for op, answer, _ in _walk(admin, names, but=later):
        assert "{box}" not in op or answer.status == 404, (op, answer)
    assert logged() == set()

    over = admin.saying(hutch_admin="yes")
    with attached(over, f"/v1/boxes/{box}/terminal?command=true"), attached(over, f"/v1/boxes/{box}/jobs/{job}/ws"):
        pass
    _refused_socket(over, f"/v1/boxes/{box}/ports/8000/connect")  # Nothing listens there.
    with asking(over, box=box) as (_, question):
        over.good("POST", f"/v1/questions/{question}", {"answer": "deny"})
    for op, answer, _ in _walk(over, names, but=later):
        absent = answer.status == 404 and "no box" in answer.json()["message"]
        assert "{box}" not in op or not absent, (op, answer)
    over.good("DELETE", f"/v1/boxes/{box}?force=true")
    assert logged() == {op for op in RECIPES if _may(op) is not May.ANYBODY} - blind
    for role in ("user", "observer"):
        got = server.tcp(server.key(role, "operators"), hutch_admin="yes").call("GET", "/v1/boxes")
        assert (got.status, got.json()["code"]) == (403, "refused")
