"""What generated requests need to get anywhere: a box that is there, its jobs, files, keys, volumes; made again when
a request has used them up."""

import contextlib
import http.client
import io
import json
import threading
import time
import zipfile
from itertools import count
from pathlib import Path
from typing import Any

from hutch.images.archives import import_stream
from hutch.images.store import Store
from hutch.server.routes import Route
from tests.images import registry_server
from tests.server.serving import Server, until

WORLD = "world"
"""The agent whose questions are left to generated requests."""
FILE = "notes.txt"
TEXT = b"alpha beta\ngamma\n"
MCP_SERVER = Path(__file__).parents[1] / "mcp" / "hosting" / "plain_server.py"


def archive(name: str) -> bytes:
    """A skill as a zip file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr(f"{name}/SKILL.md", f"---\nname: {name}\ndescription: made for a test\n---\n# {name}\n")
    return out.getvalue()


class World:
    """One owner's things on a server, kept in order by an admin."""

    def __init__(self, server: Server, owner: str, registry: registry_server.Server) -> None:
        self.owner = owner
        self._images = Store(server.state / "images")
        self._registry = registry
        self._asked: list[http.client.HTTPConnection] = []
        self._admin = server.unix(hutch_admin="yes", hutch_session="world")
        self._user = server.tcp(server.key("user", owner))
        self._box = ""
        self._job = ""
        self._ended = ""
        self._number = count(1)
        threading.Thread(target=self._answer_all, daemon=True).start()

    def _answer_all(self) -> None:
        """A person who says yes to whatever generated requests ask, as long as there is a server."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while True:
                answer = self._admin.call("GET", "/v1/questions")
                for each in answer.json().get("questions", ()):
                    if each["owner"] == self.owner and each["agent"] != WORLD:
                        self._admin.call("POST", f"/v1/questions/{each['id']}", {"answer": "allow"})
                time.sleep(0.05)

    def value(self, name: str, route: Route) -> str:
        """For a variable of the route's path."""
        makers = {"box": self.box, "job": self.job, "key": self.key, "volume": self.volume, "operation": self.operation,
                  "skill": self.skill, "group": lambda _: "pipeline", "question": self.question,
                  "image": self.image, "mcp_server": self.mcp_server, "port": lambda _: "8000",
                  "preview": lambda _: self._part("ports/8000/url", {}),
                  "kernel": lambda _: self._part("kernels", {"language": "bash"}),
                  "checkpoint": lambda _: self._part("checkpoints", {})}  # fmt: skip
        made = makers.get(name)
        assert made is not None, f"the world does not know what a {name} is ({route.op})"
        return made(route)

    def box(self, route: Route | None = None) -> str:
        """Running, and nobody's to change; a new one for the role that will destroy it."""
        if route is not None and route.op == "DELETE /v1/boxes/{box}":
            return self._new_box()
        if route is not None and route.parts[-1] == "stop":
            return self._new_box(retention="persistent")
        found = self._admin.call("GET", f"/v1/boxes/{self._box}") if self._box else None
        if found is None or found.status != 200 or found.json()["state"] not in ("running", "paused"):
            self._replace_box()
            return self._box
        at = f"/v1/boxes/{self._box}"
        if found.json()["state"] == "paused":
            self._admin.good("POST", f"{at}/resume")
        if found.json()["lease"] is not None:
            self._admin.good("DELETE", f"{at}/lease")
        return self._box

    def job(self, route: Route) -> str:
        """Running with a terminal; one that has ended where a route waits for that."""
        at = f"/v1/boxes/{self._box}/jobs"
        if route.parts[-1] in ("wait", "follow") or route.method == "DELETE":
            if not self._ended or route.method == "DELETE":
                self._ended = self._start({"command": "echo told"})
                self._admin.good("POST", f"{at}/{self._ended}/wait", {"timeout_sec": 30})
            used, self._ended = self._ended, "" if route.method == "DELETE" else self._ended
            return used
        if not self._job or self._admin.good("GET", f"{at}/{self._job}")["state"] != "running":
            self._job = self._start({"command": "stty raw; exec cat", "pty": True})
        return self._job

    def key(self, _: Route) -> str:
        made: str = self._admin.good("POST", "/v1/keys", {"role": "observer", "owner": "passing"})["key"]["id"]
        return made

    def _part(self, path: str, body: dict[str, Any]) -> str:
        """The id of something new that belongs to the box."""
        made: str = self._admin.good("POST", f"/v1/boxes/{self._box}/{path}", body)["id"]
        return made

    def volume(self, _: Route) -> str:
        name = f"v{next(self._number)}"
        self._user.good("POST", "/v1/volumes", {"name": name})
        return name

    def operation(self, _: Route) -> str:
        return f"operation{next(self._number)}"

    def content(self, route: Route) -> bytes:
        """A body for a route that takes bytes."""
        if "archive" in route.parts:
            return archive(f"z{next(self._number)}")
        if route.parts[-1] == "import":
            return self._admin.call("GET", f"/v1/boxes/{self._box}/export").body
        if route.parts[-1] != "tree":
            return b"content"
        return self._admin.call("GET", f"/v1/boxes/{self._box}/files/tree?path={FILE}").body

    def file(self) -> None:
        """With its first text; in a new box if a request has put something in its place."""
        written = self._admin.call("PUT", f"/v1/boxes/{self._box}/files/content?path={FILE}", TEXT)
        if written.status != 200:
            self._replace_box()
            self._admin.good("PUT", f"/v1/boxes/{self._box}/files/content?path={FILE}", TEXT)

    def skill(self, route: Route) -> str:
        """With two versions, and an edited copy in the box where a route wants one."""
        name = f"s{next(self._number)}"
        self._user.good("POST", "/v1/skills", {"name": name, "description": "made for a test"})
        self._user.good("PUT", f"/v1/skills/{name}/files/content?path={FILE}", TEXT)
        if route.parts[-1] == "save":
            edited = f"/workspace/.skills-state/{name}/edit/SKILL.md"
            text = f"---\nname: {name}\ndescription: edited\n---\n".encode()
            self._admin.good("PUT", f"/v1/boxes/{self._box}/files/content?path={edited}", text)
        return name

    def mcp_server(self, route: Route) -> str:
        """One that works; a new one for the role that will remove it."""
        name = f"m{next(self._number)}" if route.method == "DELETE" else "hosted"
        definition = {"command": "python3", "args": ["-c", MCP_SERVER.read_text()]}
        if self._user.call("GET", f"/v1/mcp-servers/{name}").status == 404:
            self._user.good("POST", "/v1/mcp-servers", {"name": name, "definition": definition})
        return name

    def question(self, _: Route) -> str:
        """One that waits, because nobody but a generated request answers it."""
        known = {each["id"] for each in self._user.good("GET", "/v1/questions")["questions"]}
        connection = self._user.connect()
        asked = json.dumps({"agent": WORLD, "tool": "exec"})
        connection.request("POST", "/v1/questions", asked, self._user.headers)
        self._asked.append(connection)
        (found,) = until(lambda: [
            each["id"] for each in self._user.good("GET", "/v1/questions")["questions"]
            if each["agent"] == WORLD and each["id"] not in known
        ])  # fmt: skip
        return str(found)

    def image(self, _: Route) -> str:
        """One with a single file; another each time, because a request may remove it."""
        number = next(self._number)
        archive = registry_server.tar_of((f"file-{self.owner}-{number}", {"data": b"x"}))
        (made,) = import_stream(self._images, io.BytesIO(archive), f"world/{self.owner}:{number}")
        return made.digest

    def tidy(self) -> None:
        """Only the one box stays: what requests have made must not fill the machine."""
        for connection in self._asked:
            connection.close()
        self._asked.clear()
        for skill in self._user.good("GET", "/v1/skills")["skills"]:
            self._user.good("DELETE", f"/v1/skills/{skill['name']}")
        for box in self._admin.good("GET", "/v1/boxes")["boxes"]:
            if box["id"] != self._box and box["owner"] == self.owner:
                self._admin.call("DELETE", f"/v1/boxes/{box['id']}?force=true")

    def body(self, route: Route) -> dict[str, Any]:
        """Fields with which a body of this route does its work."""
        known: dict[str, Any] = {
            "POST /v1/boxes": {"memory_mb": 64},
            "POST /v1/apps": {"template": "static", "name": "", "port": 0, "spec": {"memory_mb": 64}},
            "POST /v1/apps/{box}/wait": {"timeout_sec": 0},
            "POST /v1/dashboard/session": {
                "key": self._user.headers["authorization"].removeprefix("Bearer "),
                "code": "",
            },
            "POST /v1/keys": {"role": "observer", "owner": "passing"},
            "POST /v1/volumes": {"name": f"v{next(self._number)}"},
            "PUT /v1/session/current": {"box": self._box},
            "PUT /v1/default": {"box": self._box},
            "POST /v1/session/presence": {"sessions": {"somebody": {self._box: 1}}},
            "POST /v1/session/working": {"memory_mb": 64},
            "POST /v1/scopes": {"template": "{chat}", "values": {"chat": "c"}, "spec": {"memory_mb": 64}},
            "POST /v1/receipts/verify": {"box": self._box},
            "POST /v1/questions": {"agent": "generated", "tool": "exec", "box": ""},
            "POST /v1/questions/{question}": {"answer": "allow"},
            "POST /v1/images": {"name": f"{self._registry.address}/world:latest", "platform": ""},
            "POST /v1/boxes/{box}/scope": {"template": "{chat}", "values": {"chat": f"c{next(self._number)}"}},
            "PATCH /v1/boxes/{box}": {"idle_timeout_sec": 600},
            "POST /v1/boxes/{box}/receipts": {"op": "note.test"},
            "POST /v1/skills": {"name": f"s{next(self._number)}", "description": "made for a test"},
            "POST /v1/skills/preview": {"name": "new", "description": "made for a test"},
            "PATCH /v1/skills/{skill}": {"description": "another"},
            "PUT /v1/skill-bindings/{group}": {"skills": ["s1"]},
            "POST /v1/skills/{skill}/save": {"box": self._box},
            "POST /v1/skills/{skill}/prepare": {"box": self._box},
        }
        if route.op in known:
            found: dict[str, Any] = known[route.op]
            return found
        by_name: dict[str, Any] = {
            "exec": {"command": "cat", "stdin": "x"},
            "url": {"public": False, "ttl_sec": 60},
            "attempt": {"command": "true"},
            "code": {"language": "bash", "code": "true"},
            "jobs": {"command": "sleep 0.01"},
            "signal": {"number": 18},
            "wait": {"timeout_sec": 5},
            "resize": {"rows": 5, "cols": 5},
            "mkdir": {"path": "d/e"},
            "move": {"source": FILE, "target": "moved.txt", "overwrite": True},
            "edit": {"path": FILE, "old": "alpha", "new": "omega"},
            "glob": {"pattern": "*"},
            "grep": {"pattern": "a"},
            "digest": {"path": FILE},
        }
        return dict(by_name.get(route.parts[-1], {}))

    def query(self, route: Route) -> dict[str, Any]:
        fields = getattr(route.query, "__struct_fields__", ())
        found: dict[str, Any] = {}
        if "path" in fields:
            found["path"] = FILE if route.parts[-1] not in ("files", "watch") else "."
            if route.op.startswith("PUT") and route.parts[-1] == "tree":
                found["path"] = "copied"
        if "archive" in route.parts:
            found["path"] = ""
        if "text" in fields:
            found["text"] = self._box
        if route.parts[-1] == "receipts":
            found["box"] = self._box
        if "wait" in fields and route.parts[-1] == "output":
            found["wait"] = 0
        return found

    def _replace_box(self) -> None:
        self._box, self._job, self._ended = self._new_box(), "", ""

    def _new_box(self, **spec: Any) -> str:
        plain = {"memory_mb": 128, "disk_mb": 64, "labels": {"app.template": "static"}}
        made: str = self._user.good("POST", "/v1/boxes", {**plain, **spec})["id"]
        self._admin.good("DELETE", f"/v1/boxes/{made}/lease")
        return made

    def _start(self, job: dict[str, Any]) -> str:
        made: str = self._admin.good("POST", f"/v1/boxes/{self._box}/jobs", job)["id"]
        return made
