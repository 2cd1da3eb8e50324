"""What an operator sets binds the boxes that a key makes by forks, snapshots, E2B, LangBot, Bay and apps alike.

The attacks are those of test_rights.py, through the newer doors; an admin's same request is the control (lesson 45,
P15, B15, B16).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Answer, Client, Server
from tests.server.test_rights import CONFIG, WIDE, refused, user
from tests.server.test_websockets import attached


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server()
    config = tmp_path_factory.mktemp("rights") / "hutch.toml"
    shared = server.top / "shared"
    shared.mkdir()
    config.write_text(f'{CONFIG}\n[server]\nlangbot_shared_roots = ["{shared}"]\n')
    try:
        server.start("--config", str(config))
        yield server
    finally:
        server.close()


def test_a_fork_is_no_wider_than_a_new_box(server: Server) -> None:
    """A key of an owner may use the boxes that its admin made, but a fork of one is a box of its own: it needs the
    profile, and fits the maxima of the key that asks for it."""
    admin = server.tcp(server.key("admin", "acme"))
    member, builder_admin = user(server, "acme"), server.tcp(server.key("admin", "builder"))
    with admin.box(**WIDE) as box:
        admin.good("DELETE", f"{box}/lease")
        refused(member.call("POST", f"{box}/fork", {"count": 1}), "rights.acme.profiles")
        member.good("DELETE", f"{box}/lease")
        (control,) = admin.good("POST", f"{box}/fork", {"count": 1})["boxes"]
        admin.good("DELETE", f"/v1/boxes/{control['id']}")
    with builder_admin.box(memory_mb=128) as box:
        builder_admin.good("DELETE", f"{box}/lease")
        builder = user(server, "builder")
        wide = builder.call("POST", f"{box}/fork", {"count": 1})
        assert wide.status == 403 and "memory_mb 128" in wide.json()["message"], wide
        builder.good("DELETE", f"{box}/lease")
        (control,) = builder_admin.good("POST", f"{box}/fork", {"count": 1})["boxes"]
        builder_admin.good("DELETE", f"/v1/boxes/{control['id']}")
    with member.box() as box:
        (made,) = member.good("POST", f"{box}/fork", {"count": 1})["boxes"]
        assert made["spec"]["limits"]["memory_mb"] == 96
        member.good("DELETE", f"/v1/boxes/{made['id']}")


# --- LangBot ------------------------------------------------------------------------------------------------------


def langbot(server: Server, client: Client, action: str, **data: Any) -> dict[str, Any]:
    """One action of the Box Runtime protocol."""
    headers = {"x_langbot_instance_id": "i", "x_langbot_box_control_token": client.headers["authorization"].split()[1]}
    request = {"seq_id": 1, "action": action, "data": data,
               "context": {"instance_uuid": "i", "workspace_uuid": "w"}}  # fmt: skip
    with attached(server.tcp(), "/rpc/ws", **headers) as socket:
        socket.send(json.dumps(request))
        answer: dict[str, Any] = json.loads(socket.recv(60))
        return answer


def test_sessions_of_langbot_are_bound(server: Server) -> None:
    """A session asks for cpus, memory and a network; its key gets what the operator's default profile gives. Who may
    not create makes no directory on the host either."""
    member, none = user(server, "acme"), user(server, "acme", actions=[])
    made = langbot(server, member, "box_create_session", session_id="wide", memory_mb=9000, network="on")
    assert made["code"] == 0, made
    (box,) = (each for each in member.good("GET", "/v1/boxes")["boxes"] if "langbot.session" in each["spec"]["labels"])
    spec = box["spec"]
    assert (spec["profile"], spec["network"], spec["limits"]["memory_mb"]) == ("company", "off", 128), spec
    langbot(server, member, "box_delete_session", session_id="wide")
    path = f"{server.top}/shared/none"
    refusal = langbot(server, none, "box_create_session", session_id="none", host_path=path)
    assert "may not create" in refusal["message"] and not Path(path).exists(), refusal


def test_no_box_writes_where_the_server_keeps_skills_of_langbot(server: Server) -> None:
    """The server copies skills into one directory for each workspace, below a root that is shared with LangBot. A box
    that may write there could change what others run, or have the server write elsewhere by a link."""
    caller, shared = user(server, "acme"), f"{server.top}/shared"
    kept = Path(shared, ".hutch-artifacts", "ws-other")
    kept.mkdir(parents=True)
    for place in (server.top, Path(shared), kept.parent, kept):
        place.chmod(0o755)
    Path(shared, "around").symlink_to(kept.parent)
    for name in (".hutch-artifacts", ".hutch-artifacts/ws-other", "around"):
        answer = langbot(server, caller, "box_create_session", session_id="skills", host_path=f"{shared}/{name}")
        assert ("boxes may only read" if name != "around" else "Not a directory") in answer["message"], (name, answer)
        mount = {"host_path": f"{shared}/{name}", "mount_path": "/data", "mode": "rw"}
        answer = langbot(server, caller, "box_create_session", session_id="skills", extra_mounts=[mount])
        assert "boxes may only read" in answer["message"], (name, answer)
    for name, mode in ((".hutch-artifacts/ws-other", "ro"), ("workspace", "rw")):
        control = langbot(server, caller, "box_create_session", session_id=name, host_path=f"{shared}/{name}",
                          host_path_mode=mode)  # fmt: skip
        assert control["code"] == 0, control
        langbot(server, caller, "box_delete_session", session_id=name)


# --- Bay, E2B, apps -----------------------------------------------------------------------------------------------


def test_sandboxes_of_bay_are_bound(server: Server) -> None:
    """Only profiles of the caller are there, actions bind, and no time to live is so long that it has no date."""
    member, maker = user(server, "acme"), user(server, "acme", actions=["create"])
    listed = [each["id"] for each in member.good("GET", "/bay/v1/profiles")["items"]]
    assert listed == ["python-default", "company", "rooted", "team"]
    assert member.call("POST", "/bay/v1/sandboxes", {"profile": "code"}).status == 400
    assert user(server, "acme", actions=[]).call("POST", "/bay/v1/sandboxes", {}).status == 403
    assert member.call("POST", "/bay/v1/sandboxes", {"ttl": 10**15}).status == 400
    made = maker.good("POST", "/bay/v1/sandboxes", {"ttl": 300})
    (box,) = (each for each in member.good("GET", "/v1/boxes")["boxes"] if "bay.sandbox" in each["spec"]["labels"])
    assert box["spec"]["profile"] == "company"
    path = f"/bay/v1/sandboxes/{made['id']}"
    longest = {"extend_by": 10 * 365 * 86400}
    assert member.call("POST", f"{path}/extend_ttl", longest).status == 400
    for method, at in (("POST", f"{path}/stop"), ("DELETE", path), ("DELETE", f"/bay/v1/cargos/{made['cargo_id']}")):
        assert maker.call(method, at).status == 403, (method, at)
    member.good("DELETE", path)


def test_sandboxes_of_e2b_are_bound(server: Server) -> None:
    """Templates are profiles, a timeout is the box's clock, and actions bind snapshots, volumes and forks too."""

    def e2b(client: Client, method: str, path: str, body: Any = None) -> Answer:
        return server.tcp().call(method, path, body, x_api_key=client.headers["authorization"].split()[1])

    acme, builder = user(server, "acme"), user(server, "builder")
    for template in ("base", "code"):
        assert e2b(acme, "POST", "/sandboxes", {"templateID": template}).status in (403, 404), template
    made = e2b(builder, "POST", "/sandboxes", {"templateID": "company", "timeout": 60})
    assert made.status == 201, made
    path = f"/sandboxes/{made.json()['sandboxID']}"
    assert builder.good("GET", f"/v1/boxes/{made.json()['sandboxID']}")["spec"]["limits"]["memory_mb"] == 80
    assert e2b(builder, "POST", f"{path}/timeout", {"timeout": 86400}).status == 400
    member = user(server, "builder", actions=["takeover"])
    for method, at, body in (
        ("POST", "/sandboxes", {"templateID": "company"}),
        ("POST", f"{path}/snapshots", {}),
        ("POST", "/volumes", {"name": "v"}),
        ("DELETE", path, None),
    ):
        assert e2b(member, method, at, body).status == 403, (method, at)
    (refusal,) = e2b(member, "POST", f"{path}/fork", {}).json()
    assert refusal["error"]["code"] == 403, refusal
    assert e2b(builder, "DELETE", path).status == 204


def test_apps_are_bound(server: Server) -> None:
    """An app's template may ask for a network and 2 GB; its box is one like any other of its caller."""
    caller = user(server, "acme")
    refused(caller.call("POST", "/v1/apps", {"template": "static", "spec": WIDE}), "rights.acme.profiles")
    refused(user(server, "acme", actions=[]).call("POST", "/v1/apps", {"template": "static"}), "rights.acme.actions")
    made = caller.good("POST", "/v1/apps", {"template": "static", "spec": {"memory_mb": 9000, "network": "on"}})
    box = caller.good("GET", f"/v1/boxes/{made['box_id']}")
    assert (box["spec"]["network"], box["spec"]["limits"]["memory_mb"]) == ("off", 128)
    caller.good("DELETE", f"/v1/boxes/{made['box_id']}")
