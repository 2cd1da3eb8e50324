"""Every route of the doors of AstrBot, E2B and LangBot, walked by those who have no business there: strangers,
observers and other owners change nothing and read nothing (B21, P8; lesson 33)."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from websockets.exceptions import InvalidStatus

from hutch.server.bay.door import BayDoor
from hutch.server.bay.http import HttpDoor
from hutch.server.bay.shipyard import ShipyardDoor
from hutch.server.e2b.agent.watchers import Watchers
from hutch.server.e2b.control import routes
from hutch.server.e2b.door import agent_methods
from hutch.server.langbot.actions import Actions
from tests.server.serving import Answer, Client, Server, serving
from tests.server.test_websockets import attached

MARK = "what only the victim may read"
FILE = "victim.txt"
HARM = f"touch harm; cat {FILE}; rm -f {FILE}"
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="path"\r\n\r\nharm\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file_path"\r\n\r\nharm\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="harm"\r\n\r\nharm\r\n--b--\r\n'
)
IS_FORM = {"content_type": "multipart/form-data; boundary=b"}
_BAY, _SHIP, _SANDBOX = "/v1/sandboxes/{sandbox}", "/ship/{ship}", "/sandboxes/{sandbox}"

BAY: dict[str, Any] = {
    "GET /v1/profiles": None, "POST /v1/sandboxes": {"cargo_id": "{cargo}"}, "GET /v1/sandboxes": None,
    f"GET {_BAY}": None, f"DELETE {_BAY}": None, f"POST {_BAY}/extend_ttl": {"extend_by": 60},
    f"POST {_BAY}/keepalive": None, f"POST {_BAY}/stop": None, f"POST {_BAY}/shell/exec": {"command": HARM},
    f"POST {_BAY}/python/exec": {"code": "open('harm', 'w')"}, f"GET {_BAY}/filesystem/files?path={FILE}": None,
    f"PUT {_BAY}/filesystem/files": {"path": FILE, "content": "harm"},
    f"DELETE {_BAY}/filesystem/files?path={FILE}": None, f"GET {_BAY}/filesystem/directories": None,
    f"POST {_BAY}/filesystem/upload": FORM, f"GET {_BAY}/filesystem/download?path={FILE}": None,
    f"GET {_BAY}/history": None, f"GET {_BAY}/history/last": None, f"GET {_BAY}/history/{{execution}}": None,
    f"PATCH {_BAY}/history/{{execution}}": {"notes": "harm"}, f"POST {_BAY}/browser/exec": None,
    f"POST {_BAY}/browser/exec_batch": None, f"POST {_BAY}/browser/skills/{{skill}}/run": None,
    f"GET {_BAY}/browser/traces/{{trace}}": None, "POST /v1/cargos": {}, "GET /v1/cargos": None,
    "GET /v1/cargos/{cargo}": None, "DELETE /v1/cargos/{cargo}": None,
}  # fmt: skip
SHIPYARD: dict[str, Any] = {
    "POST /ship": {"ttl": 60}, "GET /ships": None, f"GET {_SHIP}": None, f"DELETE {_SHIP}": None,
    f"POST {_SHIP}/extend-ttl": {"ttl": 60}, "GET /ship/logs/{ship}": None,
    f"POST {_SHIP}/exec": {"type": "shell/exec", "payload": {"command": HARM}}, f"POST {_SHIP}/upload": FORM,
    f"GET {_SHIP}/download?file_path={FILE}": None,
}  # fmt: skip
E2B: dict[str, Any] = {
    "POST /sandboxes": {"templateID": "{snapshot}"}, "GET /sandboxes": None, f"POST {_SANDBOX}/connect": {},
    f"GET {_SANDBOX}": None, f"DELETE {_SANDBOX}": None, f"POST {_SANDBOX}/timeout": {"timeout": 1},
    f"POST {_SANDBOX}/pause": {}, f"POST {_SANDBOX}/resume": {}, f"POST {_SANDBOX}/fork": {},
    f"POST {_SANDBOX}/snapshots": {}, "GET /snapshots": None, "DELETE /templates/{any}": None,
    f"GET {_SANDBOX}/metrics": None, "GET /templates/aliases/{any}": None, "GET /volumes": None,
    "POST /volumes": {"name": "own-{volume}"}, "GET /volumes/{any}": None, "DELETE /volumes/{any}": None,
}  # fmt: skip
OF_NOBODY = {"GET /v1/profiles", "POST /v1/cargos", "POST /ship", "POST /volumes"}
"""Routes that name nothing of anybody: another owner gets something of his own."""
SESSION = {"session_id": "victim"}
LANGBOT: dict[str, dict[str, Any] | None] = {
    "__ping": None, "box_init": None, "box_health": None, "box_get_backend_info": None, "box_shutdown": {},
    "box_verify_shared_workspace": None, "box_upsert_sandbox_admission_grant": None,
    "box_revoke_sandbox_admission_grant": None, "box_status": {}, "box_exec": {**SESSION, "cmd": HARM},
    "box_create_session": SESSION, "box_get_session": SESSION, "box_get_sessions": {}, "box_delete_session": SESSION,
    "box_start_managed_process": {**SESSION, "spec": {"process_id": "x", "command": "touch", "args": ["harm"]}},
    "box_get_managed_process": SESSION, "box_stop_managed_process": SESSION, "box_get_storage_analysis": {},
}  # fmt: skip
"""None for actions that concern no workspace."""


def patterns(door: type[HttpDoor]) -> set[str]:
    """The routes of a door, besides those that everybody may ask."""
    made = door(cast(Any, SimpleNamespace(keeper=None)), cast(Any, None))  # type: ignore[call-arg]
    return {f"{route.method} {route.path}" for route, _ in made._routes if not route.anonymous}


def test_every_route_of_the_doors_is_walked() -> None:
    """A route, call or action without a line above is a hole in this test."""
    assert {op.partition("?")[0] for op in BAY} == patterns(BayDoor)
    assert {op.partition("?")[0] for op in SHIPYARD} == patterns(ShipyardDoor)
    found = {f"{route.method} {route.path.pattern}" for route in routes._ROUTES}
    plain = {each.replace("(/v2)?", "").replace("(?P<sandbox>[^/]+)", "{sandbox}").replace("[^/]+", "{any}")
             for each in found}  # fmt: skip
    assert set(E2B) == plain
    service = SimpleNamespace(keeper=None)
    actions = Actions(*(cast(Any, each) for each in (service, None, None, None, "i")))
    assert set(LANGBOT) == actions._host.keys() | actions._tenant.keys()
    assert {name for name, data in LANGBOT.items() if data is not None} - {"box_shutdown"} == actions._tenant.keys()


@dataclass(frozen=True)
class Victim:
    """An owner with something behind each door."""

    client: Client
    names: dict[str, str]
    token: str
    """The access token of the E2B sandbox."""
    observer: Client

    def snapshot(self) -> dict[str, Any]:
        boxes = sorted(self.client.good("GET", "/v1/boxes")["boxes"], key=lambda box: str(box["id"]))
        return {
            "boxes": [(box["id"], box["state"], box["spec"]["ttl_sec"], box["spec"]["labels"]) for box in boxes],
            "volumes": [each["name"] for each in self.client.good("GET", "/v1/volumes")["volumes"]],
            "files": [
                self.client.call("GET", f"/v1/boxes/{box}/files/content?path={place}/{FILE}", hutch_session=session)
                .body.decode()
                for box, place, session in (
                    (self.names["bay_box"], "/workspace", "bay"), (self.names["ship_box"], "/workspace", "shipyard"),
                    (self.names["sandbox_e2b"], "/tmp", "e2b"),
                )
            ],
        }  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def e2b(server: Server, client: Client, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    key = client.headers.get("authorization", "Bearer ").split(" ")[1]
    given = {"x_api_key": key} if key else {}
    return server.tcp().call(method, path, body, **given, **headers)


@pytest.fixture(scope="module")
def victim(server: Server) -> Victim:
    client = server.tcp(server.key("user", "victim"))
    client.good("POST", "/bay/v1/cargos", {})
    made = client.good("POST", "/bay/v1/sandboxes", {"ttl": 3000})
    bay = f"/bay/v1/sandboxes/{made['id']}"
    client.good("PUT", f"{bay}/filesystem/files", {"path": FILE, "content": MARK})
    run = client.good("POST", f"{bay}/shell/exec", {"command": f"echo {MARK}"})
    ship = client.good("POST", "/shipyard/ship", {"ttl": 3000}, x_session_id="victim")
    write = {"type": "fs/write_file", "payload": {"path": FILE, "content": MARK}}
    client.good("POST", f"/shipyard/ship/{ship['id']}/exec", write, x_session_id="victim")
    sandbox = e2b(server, client, "POST", "/sandboxes", {"templateID": "base", "timeout": 3000}).json()
    token = {"e2b_sandbox_id": sandbox["sandboxID"], "x_access_token": sandbox["envdAccessToken"]}
    sent = server.tcp().call("POST", f"/files?path=/tmp/{FILE}", MARK.encode(), content_type="application/octet-stream",
                             **token)  # fmt: skip
    assert sent.status == 200, sent
    snapshot = e2b(server, client, "POST", f"/sandboxes/{sandbox['sandboxID']}/snapshots", {}).json()["snapshotID"]
    assert e2b(server, client, "POST", "/volumes", {"name": "victims"}).status == 201
    opened = langbot(server, client, "box_create_session", SESSION)
    assert opened["code"] == 0, opened
    boxes = {
        box["spec"]["labels"].get("bay.sandbox", ""): box["id"] for box in client.good("GET", "/v1/boxes")["boxes"]
    }
    names = {
        "sandbox": made["id"], "cargo": made["cargo_id"], "execution": run["execution_id"], "skill": "s", "trace": "t",
        "ship": ship["id"], "ship_box": ship["container_id"], "bay_box": boxes[made["id"]],
        "sandbox_e2b": sandbox["sandboxID"], "snapshot": snapshot, "any": snapshot, "volume": "victims",
    }  # fmt: skip
    return Victim(client, names, sandbox["envdAccessToken"], server.tcp(server.key("observer", "victim")))


def filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def walk(server: Server, client: Client, victim: Victim) -> Iterator[tuple[str, Answer]]:
    """Ask every route of the doors of AstrBot and of E2B's control plane for what is the victim's."""
    for prefix, recipes in (("/bay", BAY), ("/shipyard", SHIPYARD)):
        for op, body in recipes.items():
            method, path = filled(op, victim.names).split(" ")
            sent = (
                body if body is None or isinstance(body, bytes) else json.loads(filled(json.dumps(body), victim.names))
            )
            form = IS_FORM if isinstance(body, bytes) else {}
            yield op, client.call(method, prefix + path, sent, x_session_id="victim", **form)
    names = {**victim.names, "sandbox": victim.names["sandbox_e2b"]}
    for op, body in E2B.items():
        for any_name in ("snapshot", "volume"):
            method, path = filled(op, {**names, "any": names[any_name]}).split(" ")
            sent = body if body is None else json.loads(filled(json.dumps(body), names))
            yield op, e2b(server, client, method, path, sent)


def langbot(server: Server, client: Client, action: str, data: dict[str, Any] | None) -> dict[str, Any]:
    headers = {"x_langbot_instance_id": "i", "x_langbot_box_control_token": client.headers["authorization"].split()[1]}
    request = {"seq_id": 1, "action": action, "data": data or {},
               "context": {"instance_uuid": "i", "workspace_uuid": "w"}}  # fmt: skip
    with attached(server.tcp(), "/rpc/ws", **headers) as socket:
        socket.send(json.dumps(request))
        answer: dict[str, Any] = json.loads(socket.recv(60))
        return answer


@pytest.mark.parametrize("who", ["stranger", "observer"])
def test_strangers_and_observers_get_nothing(server: Server, victim: Victim, who: str) -> None:
    before = victim.snapshot()
    client = victim.observer if who == "observer" else server.tcp()
    for op, answer in walk(server, client, victim):
        assert answer.status in ((401, 403) if who == "observer" else (401,)), (op, answer)
        assert MARK.encode() not in answer.body, op
    with pytest.raises(InvalidStatus):
        langbot(server, victim.observer if who == "observer" else server.tcp("nothing"), "box_status", {})
    assert victim.snapshot() == before


def test_another_owner_gets_nothing(server: Server, victim: Victim) -> None:
    """What is named in a path or a body is not there, and lists are empty."""
    before = victim.snapshot()
    client = server.tcp(server.key("user", "foreign"))
    marks = [victim.names[name] for name in ("sandbox", "ship", "sandbox_e2b", "snapshot", "cargo")]
    for op, answer in walk(server, client, victim):
        reply = answer.body.decode("utf-8", "replace")
        assert MARK not in reply, (op, answer)
        assert answer.status >= 400 or not any(mark in reply for mark in marks), (op, answer)
        named = "{" in op or "{" in json.dumps((BAY | E2B).get(op) or "", default=str)[1:]
        if named and op not in OF_NOBODY:
            # E2B's clients know a sandbox that is not there by 502.
            assert answer.status in (403, 404, 502), (op, answer)
    for action, data in LANGBOT.items():
        if data is not None:
            assert MARK not in json.dumps(langbot(server, client, action, data))
    for method in agent_methods(Watchers()):
        own = e2b(server, client, "POST", "/sandboxes", {"templateID": "base", "timeout": 60}).json()
        for token in (own["envdAccessToken"], victim.token[:-1] + "x", ""):
            given = {"e2b_sandbox_id": victim.names["sandbox_e2b"], "x_access_token": token}
            message = json.dumps({"path": "/tmp", "process": {"cmd": "id", "pid": 1}}).encode()
            for kind, body in (("json", message), ("connect+json", struct.pack(">BI", 0, len(message)) + message)):
                answer = server.tcp().call("POST", method, body, content_type=f"application/{kind}", **given)
                assert answer.status == 401, (method, answer)
        e2b(server, client, "DELETE", f"/sandboxes/{own['sandboxID']}")
    assert victim.snapshot() == before
