"""Every route does its work, and every error has its shape and its status."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hutch.errors import HutchError
from hutch.server.error_status import STATUS
from hutch.server.routes import ROUTES, May
from tests.images import registry_server
from tests.mcp.hosting.hosted_servers import project
from tests.server.serving import Answer, Client, Server
from tests.server.test_questions import asking
from tests.server.world import archive

SHAPE = {"code", "message", "op", "retryable", "retry_after", "details", "remedy"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registry_server.Server]:
    with registry_server.running_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


def test_every_route_answers(server: Server, client: Client, registry: registry_server.Server, tmp_path: Path) -> None:
    """Every route of the table works end to end (B23, lesson 15)."""
    done: set[str] = set()

    def good(op: str, path: str, body: Any = None) -> Any:
        method = op.split(" ")[0]
        answer = client.call(method, path, body)
        assert 200 <= answer.status < 300, (op, path, answer.status, answer.body)
        done.add(op)
        return json.loads(answer.body) if answer.headers.get("content-type") == "application/json" else answer.body

    for path in ("/healthz", "/readyz", "/metrics", "/v1/openapi.json", "/v1/status", "/v1/profiles", "/v1/providers",
                 "/v1/metrics",
                 "/v1/events", "/v1/errors", "/v1/receipts", "/v1/keys", "/v1/volumes", "/v1/session/current",
                 "/v1/boxes", "/v1/questions", "/v1/images"):  # fmt: skip
        good(f"GET {path}", path)
    key = good("POST /v1/keys", "/v1/keys", {"role": "observer", "owner": "someone"})["key"]
    good("DELETE /v1/keys/{key}", f"/v1/keys/{key['id']}")
    path = good("POST /v1/dashboard/links", "/v1/dashboard/links")["path"]
    good("POST /v1/dashboard/session", "/v1/dashboard/session", {"code": path.partition("#")[2]})
    good("GET /v1/dashboard/session", "/v1/dashboard/session")
    good("DELETE /v1/dashboard/session", "/v1/dashboard/session")
    connection, response = client.open("GET", "/v1/dashboard/live")
    assert [response.readline() for _ in range(3)][2].startswith(b"data: {")
    connection.close()
    done.add("GET /v1/dashboard/live")
    good("GET /v1/tools", "/v1/tools")
    good("POST /v1/volumes", "/v1/volumes", {"name": "routes"})
    good("GET /v1/volumes/{volume}", "/v1/volumes/routes")
    good("DELETE /v1/volumes/{volume}", "/v1/volumes/routes")

    with asking(client) as (connection, question):
        good("POST /v1/questions/{question}", f"/v1/questions/{question}", {"answer": "allow"})
        assert connection.getresponse().status == 200
        done.add("POST /v1/questions")
    name = registry.push("routes", registry_server.image(registry_server.tar_of(("file", {"data": b"x"}))))
    image = good("POST /v1/images", "/v1/images", {"name": name})["digest"]
    good("GET /v1/images/{image}", f"/v1/images/{image}")
    good("DELETE /v1/images/{image}", f"/v1/images/{image}")
    good("POST /v1/images/prune", "/v1/images/prune")

    hosted, one_hosted = "/v1/mcp-servers/routes", "/v1/mcp-servers/{mcp_server}"
    definition = {"command": "python3", "args": [str(project(tmp_path / "mcp") / "server.py")]}
    good("POST /v1/mcp-servers", "/v1/mcp-servers", {"name": "routes", "definition": definition})
    good("POST /v1/mcp-servers/import", "/v1/mcp-servers/import", {"servers": {"other": {"command": "true"}}})
    for path in ("/start", "/restart", "/stop"):
        good(f"POST {one_hosted}{path}", hosted + path)
    good(f"POST {one_hosted}/call", f"{hosted}/call", {"tool": "echo", "arguments": {"text": "hi"}})
    for path in ("", "/logs", "/tools"):
        good(f"GET {one_hosted}{path}", hosted + path)
    good("GET /v1/mcp-servers", "/v1/mcp-servers")
    good(f"DELETE {one_hosted}", hosted)
    good(f"DELETE {one_hosted}", "/v1/mcp-servers/other")

    skill, one_skill = "/v1/skills/routes", "/v1/skills/{skill}"
    good("POST /v1/skills/preview", "/v1/skills/preview", {"name": "routes", "description": "one"})
    good("POST /v1/skills", "/v1/skills", {"name": "routes", "description": "one"})
    good("POST /v1/skills/archive/preview", "/v1/skills/archive/preview", archive("other"))
    good("POST /v1/skills/archive", "/v1/skills/archive", archive("other"))
    good(f"PUT {one_skill}/files/content", f"{skill}/files/content?path=f", b"one")
    good(f"GET {one_skill}/files/content", f"{skill}/files/content?path=f")
    good(f"DELETE {one_skill}/files/content", f"{skill}/files/content?path=f")
    good(f"PATCH {one_skill}", skill, {"description": "two", "body": "# Two"})
    for path in ("", "/body", "/versions", "/files", "/export"):
        good(f"GET {one_skill}{path}", skill + path)
    good(f"POST {one_skill}/rollback", f"{skill}/rollback", {})
    good(f"POST {one_skill}/pin", f"{skill}/pin", {})
    good(f"DELETE {one_skill}/pin", f"{skill}/pin")
    good("GET /v1/skills", "/v1/skills")
    good("PUT /v1/skill-bindings/{group}", "/v1/skill-bindings/pipeline", {"skills": ["routes"]})
    good("GET /v1/skill-bindings", "/v1/skill-bindings")
    assert client.call("POST", f"{skill}/upgrade").status == 400  # it was written here: there is no place to ask
    done.add(f"POST {one_skill}/upgrade")

    box_id = good("POST /v1/boxes", "/v1/boxes", {"memory_mb": 128})["id"]
    good(f"POST {one_skill}/prepare", f"{skill}/prepare", {"box": box_id})
    edited = "/workspace/.skills-state/routes/edit/SKILL.md"
    text = b"---\nname: routes\ndescription: three\n---\n"
    client.good("PUT", f"/v1/boxes/{box_id}/files/content?path={edited}", text)
    good(f"POST {one_skill}/save", f"{skill}/save", {"box": box_id})
    good(f"DELETE {one_skill}", skill)
    client.good("DELETE", "/v1/skills/other")
    box, template = f"/v1/boxes/{box_id}", "/v1/boxes/{box}"
    good("PUT /v1/session/current", "/v1/session/current", {"box": box_id})
    good("POST /v1/session/working", "/v1/session/working", {})
    good("POST /v1/session/presence", "/v1/session/presence", {"sessions": {"local": {box_id: 1}}})
    good("PUT /v1/default", "/v1/default", {"box": box_id})
    good("GET /v1/default", "/v1/default")
    good("GET /v1/find", f"/v1/find?text={box_id[:8]}")
    scoped = good("POST /v1/scopes", "/v1/scopes", {"template": "{chat}", "values": {"chat": "routes"}})["box"]["id"]
    client.good("DELETE", f"/v1/boxes/{scoped}")
    lasting = client.good("POST", "/v1/boxes", {"retention": "persistent"})["id"]
    good("POST /v1/boxes/{box}/stop", f"/v1/boxes/{lasting}/stop")
    client.good("DELETE", f"/v1/boxes/{lasting}")
    good("PATCH /v1/boxes/{box}", box, {"name": "routes"})
    good("DELETE /v1/boxes/{box}/operations/{operation}", f"{box}/operations/none")
    preview = good("POST /v1/boxes/{box}/ports/{port}/url", f"{box}/ports/8000/url", {})["id"]
    for path in ("", "/usage", "/lease", "/ports", "/previews", "/jobs", "/files"):
        good(f"GET {template}{path}", box + path)
    good("DELETE /v1/boxes/{box}/previews/{preview}", f"{box}/previews/{preview}")
    for path, body in (
        ("/exec", {"command": "true"}),
        ("/receipts", {"op": "note.seen"}),
        ("/created", None),
        ("/scope", {"template": "{chat}", "values": {"chat": "routes"}}),
        ("/lease", {}),
        ("/pause", None),
        ("/resume", None),
        ("/files/mkdir", {"path": "d"}),
    ):
        good(f"POST {template}{path}", box + path, body)
    good(f"POST {template}/checkpoints", f"{box}/checkpoints", {"name": "first", "kill": True})
    good(f"GET {template}/checkpoints", f"{box}/checkpoints")
    good(f"POST {template}/attempt", f"{box}/attempt", {"command": "true", "kill": True})
    good(f"GET {template}/diff", f"{box}/diff?start=first")
    assert client.call("POST", f"{box}/undo", {"kill": True}).status == 409  # no command has made a checkpoint
    done.add(f"POST {template}/undo")
    good(f"POST {template}/rollback", f"{box}/rollback", {"checkpoint": "first", "kill": True})
    (fork,) = good(f"POST {template}/fork", f"{box}/fork", {"checkpoint": "first"})["boxes"]
    good(f"POST {template}/merge", f"{box}/merge", {"fork": fork["id"]})
    client.good("DELETE", f"/v1/boxes/{fork['id']}")
    good(f"DELETE {template}/checkpoints/{{checkpoint}}", f"{box}/checkpoints/first")
    good(f"PUT {template}/files/content", f"{box}/files/content?path=f", b"one two\n")
    for path in ("content", "stat", "lines", "exists"):
        good(f"GET {template}/files/{path}", f"{box}/files/{path}?path=f")
    whole = good(f"GET {template}/export", f"{box}/export")
    imported = good("POST /v1/boxes/import", "/v1/boxes/import?name=", whole)["box"]["id"]
    client.good("DELETE", f"/v1/boxes/{imported}")
    tree = good(f"GET {template}/files/tree", f"{box}/files/tree?path=d")
    good(f"PUT {template}/files/tree", f"{box}/files/tree?path=d2", tree)
    connection, response = client.open("GET", f"{box}/files/watch")
    assert response.status == 200
    connection.close()
    done.add(f"GET {template}/files/watch")
    for name, body in (
        ("edit", {"path": "f", "old": "two", "new": "three"}),
        ("digest", {"path": "f"}),
        ("glob", {"pattern": "*"}),
        ("grep", {"pattern": "three"}),
        ("move", {"source": "f", "target": "d/f"}),
    ):
        good(f"POST {template}/files/{name}", f"{box}/files/{name}", body)
    good(f"DELETE {template}/files/content", f"{box}/files/content?path=d&recursive=true")

    good(f"POST {template}/code", f"{box}/code", {"code": "echo hi", "language": "bash"})
    good(f"GET {template}/kernels", f"{box}/kernels")
    kernel_id = good(f"POST {template}/kernels", f"{box}/kernels", {"language": "bash"})["id"]
    for action in ("interrupt", "restart"):
        good(f"POST {template}/kernels/{{kernel}}/{action}", f"{box}/kernels/{kernel_id}/{action}")
    good(f"DELETE {template}/kernels/{{kernel}}", f"{box}/kernels/{kernel_id}")

    job_id = good(f"POST {template}/jobs", f"{box}/jobs", {"command": "cat", "pty": True})["id"]
    job, one = f"{box}/jobs/{job_id}", template + "/jobs/{job}"
    good(f"GET {one}", job)
    good(f"POST {one}/resize", f"{job}/resize", {"rows": 30, "cols": 100})
    good(f"POST {one}/stdin", f"{job}/stdin", b"hello\n")
    good(f"GET {one}/output", f"{job}/output?wait=30")
    good(f"POST {one}/signal", f"{job}/signal", {"number": 9})
    good(f"POST {one}/wait", f"{job}/wait", {"timeout_sec": 60})
    good(f"GET {one}/follow", f"{job}/follow")
    good(f"DELETE {one}", job)

    good(f"DELETE {template}/lease", f"{box}/lease")
    good("DELETE /v1/session/current", "/v1/session/current")
    good(f"DELETE {template}", box)
    good("POST /v1/receipts", "/v1/receipts", {"op": "note.said"})
    good("POST /v1/receipts/verify", "/v1/receipts/verify", {})
    good("GET /v1/app-templates", "/v1/app-templates")
    app = good("POST /v1/apps", "/v1/apps", {"template": "static"})["box_id"]
    good("GET /v1/apps", "/v1/apps")
    good("POST /v1/apps/{box}/wait", f"/v1/apps/{app}/wait", {"timeout_sec": 60})
    good("GET /v1/apps/{box}", f"/v1/apps/{app}")
    good("GET /v1/apps/{box}/logs", f"/v1/apps/{app}/logs")
    good("POST /v1/apps/{box}/stop", f"/v1/apps/{app}/stop")
    good("POST /v1/apps/{box}/start", f"/v1/apps/{app}/start")
    good("DELETE /v1/boxes/{box}", f"/v1/boxes/{app}")
    good("POST /v1/plan", "/v1/plan", {"memory_mb": 64})
    done.add("POST /v1/shutdown")  # `test_lifecycle` has it.
    assert done == {route.op for route in ROUTES}


def test_errors_have_one_shape_and_a_fitting_status(client: Client) -> None:
    """Every error is `{code, message, op, retryable, retry_after, details, remedy}`."""

    def failed(answer: Answer, status: int, code: str) -> dict[str, Any]:
        error: dict[str, Any] = answer.json()
        assert (answer.status, error["code"], set(error)) == (status, code, SHAPE), answer
        assert error["op"] and error["message"]
        return error

    failed(client.call("GET", "/v1/nothing"), 404, "not_found")
    failed(client.call("GET", "/v1/boxes/" + "a" * 20), 404, "not_found")
    failed(client.call("POST", "/v1/boxes", b"{not json"), 400, "invalid")
    failed(client.call("POST", "/v1/boxes", b"[1]"), 400, "invalid")
    assert "memory_mb" in failed(client.call("POST", "/v1/boxes", {"memry_mb": 1}), 400, "invalid")["remedy"]
    failed(client.call("POST", "/v1/boxes", {"mounts": ["/etc:/mnt/etc:rw"]}), 403, "refused")
    failed(client.call("POST", "/v1/boxes", {"profile": "none_such"}), 404, "not_found")
    wrong = client.call("PATCH", "/v1/boxes")
    failed(wrong, 405, "invalid")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "POST"}
    with client.box() as box:
        failed(client.call("POST", f"{box}/exec", {"command": ""}), 400, "invalid")
        failed(client.call("POST", f"{box}/exec", {"comand": "x"}), 400, "invalid")
        failed(client.call("POST", f"{box}/exec?x=1", {"command": "x"}), 400, "invalid")
        failed(client.call("POST", f"{box}/exec", {"command": ["/no/such"]}), 422, "not_runnable")
        failed(client.call("GET", f"{box}/files/content?path=none"), 404, "file_not_found")
        failed(client.call("GET", f"{box}/files/content?path=/tmp"), 409, "is_directory")
        failed(client.call("GET", f"{box}/files/stat"), 400, "invalid")
        failed(client.call("GET", f"{box}/files/stat?path=a&path=b"), 400, "invalid")
        failed(client.call("PUT", f"{box}/files/content?path=/etc/x", b"x"), 422, "file_failed")
        failed(client.call("GET", f"{box}/jobs/none"), 404, "not_found")
        failed(client.call("GET", f"{box}/jobs/none/output?stream=stdin"), 400, "invalid")
        job = client.good("POST", f"{box}/jobs", {"command": "sleep 1000"})["id"]
        failed(client.call("POST", f"{box}/jobs/{job}/wait", {"timeout_sec": 0}), 408, "timeout")
        failed(client.call("DELETE", f"{box}/jobs/{job}"), 409, "conflict")
        other = client.saying(hutch_session="another")
        busy = other.call("POST", f"{box}/exec", {"command": "true"})
        assert failed(busy, 409, "busy")["retryable"] is True
        assert int(busy.headers["retry-after"]) > 0
        failed(other.call("DELETE", box), 409, "busy")
    gone = failed(client.call("GET", box), 410, "gone")
    assert "destroyed" in gone["message"]


def test_every_error_class_has_a_status() -> None:
    """A code that the table does not know would be a 500 by accident. Foreign protocols have statuses of their own."""
    foreign = ("hutch.server.bay.", "hutch.server.e2b.", "hutch.server.langbot.")
    own = {code for code, kind in HutchError.by_code.items() if not kind.__module__.startswith(foreign)}
    assert own <= set(STATUS)


def test_errors_are_remembered_for_their_owner(server: Server, client: Client) -> None:
    """Each owner can list its own recent errors (B30)."""
    client.call("GET", "/v1/boxes/" + "b" * 20)
    found = client.good("GET", "/v1/errors?limit=1")["errors"]
    assert (found[0]["box"], found[0]["code"]) == ("b" * 20, "not_found")
    stranger = server.tcp(server.key("user", "no-errors"))
    assert stranger.good("GET", "/v1/errors")["errors"] == []


def test_bodies_have_a_bound(client: Client) -> None:
    """A body that is too large is refused before it is read."""
    answer = client.call("POST", "/v1/boxes", b"{}", content_length=str(1 << 40))
    assert (answer.status, answer.json()["code"]) == (413, "too_large")


def test_permissions_of_the_table() -> None:
    """Routes without a key reveal nothing; routes that only read are open to observers."""
    assert {route.path for route in ROUTES if route.may is May.ANYBODY} == {
        "/healthz", "/readyz", "/v1/dashboard/session",
    }  # fmt: skip
    changing_reads = {route.op for route in ROUTES if route.method != "GET" and route.may is May.READ}
    own = {"DELETE /v1/dashboard/session", "POST /v1/dashboard/links"}
    assert changing_reads == own | {"POST /v1/plan"} | {"POST /v1/session/presence", "POST /v1/receipts/verify"} | {
        f"POST /v1/boxes/{{box}}/{name}" for name in ("jobs/{job}/wait", "files/glob", "files/grep", "files/digest")
    }


def test_what_routes_take_and_give_can_be_described() -> None:
    """Every query, body and reply has a JSON schema: the reference is made from them."""
    kinds = [kind for route in ROUTES for kind in (route.query, route.body, route.reply) if kind is not None]
    schemas, _ = msgspec.json.schema_components(kinds)
    assert len(schemas) == len(kinds)
