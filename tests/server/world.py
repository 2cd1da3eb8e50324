"""What generated requests need to get anywhere: a box that is there, its jobs, files, keys, volumes; made again when
a request has used them up."""

from itertools import count
from typing import Any

from hutch.server.routes import Route
from tests.server.serving import Client, Server

FILE = "notes.txt"
TEXT = b"alpha beta\ngamma\n"


class World:
    """One owner's things on a server, kept in order by an admin."""

    def __init__(self, server: Server, owner: str) -> None:
        self.owner = owner
        self._admin = server.unix(hutch_admin="yes", hutch_session="world")
        self._user = server.tcp(server.key("user", owner))
        self._box = ""
        self._job = ""
        self._ended = ""
        self._number = count(1)

    def value(self, name: str, route: Route) -> str:
        """For a variable of the route's path."""
        made = {"box": self.box, "job": self.job, "key": self.key, "volume": self.volume}.get(name)
        assert made is not None, f"the world does not know what a {name} is ({route.op})"
        return made(route)

    def box(self, route: Route | None = None) -> str:
        """Running, and nobody's to change; a new one for whoever will destroy it."""
        if route is not None and route.op == "DELETE /v1/boxes/{box}":
            return self._new_box()
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
        if route.parts[-1] == "wait" or route.method == "DELETE":
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

    def volume(self, _: Route) -> str:
        name = f"v{next(self._number)}"
        self._user.good("POST", "/v1/volumes", {"name": name})
        return name

    def file(self) -> None:
        """With its first text; in a new box if a request has put something in its place."""
        written = self._admin.call("PUT", f"/v1/boxes/{self._box}/files/content?path={FILE}", TEXT)
        if written.status != 200:
            self._replace_box()
            self._admin.good("PUT", f"/v1/boxes/{self._box}/files/content?path={FILE}", TEXT)

    def tidy(self) -> None:
        """Only the one box stays: what requests have made must not fill the machine."""
        for box in self._admin.good("GET", "/v1/boxes")["boxes"]:
            if box["id"] != self._box and box["owner"] == self.owner:
                self._admin.call("DELETE", f"/v1/boxes/{box['id']}?force=true")

    def body(self, route: Route) -> dict[str, Any]:
        """Fields with which a body of this route does its work."""
        known: dict[str, Any] = {
            "POST /v1/boxes": {"memory_mb": 64},
            "POST /v1/keys": {"role": "observer", "owner": "passing"},
            "POST /v1/volumes": {"name": f"v{next(self._number)}"},
            "PUT /v1/session/current": {"box": self._box},
        }
        if route.op in known:
            found: dict[str, Any] = known[route.op]
            return found
        by_name: dict[str, Any] = {
            "exec": {"command": "cat", "stdin": "x"},
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
            found["path"] = FILE if route.parts[-1] != "files" and route.parts[-1] != "watch" else "."
        if "wait" in fields and route.parts[-1] == "output":
            found["wait"] = 0
        return found

    def _replace_box(self) -> None:
        self._box, self._job, self._ended = self._new_box(), "", ""

    def _new_box(self) -> str:
        made: str = self._user.good("POST", "/v1/boxes", {"memory_mb": 128, "disk_mb": 64})["id"]
        self._admin.good("DELETE", f"/v1/boxes/{made}/lease")
        return made

    def _start(self, job: dict[str, Any]) -> str:
        made: str = self._admin.good("POST", f"/v1/boxes/{self._box}/jobs", job)["id"]
        return made

    @property
    def user(self) -> Client:
        return self._user
