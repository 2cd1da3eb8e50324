"""A server with something to look at: boxes of several owners in several states, jobs, files, a question, a skill."""

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.server.serving import Client, Server, serving
from tests.server.world import MCP_SERVER, archive

PROGRAM = '''"""Counts the words of a text."""

from collections import Counter


def count(text: str) -> Counter[str]:
    # Words in any case are the same word.
    return Counter(text.lower().split())


if __name__ == "__main__":
    print(count("to be or not to be").most_common(2))
'''


QUOTAS = """[quotas.team]
boxes = 200
memory_mb = 65536
[quotas.acme]
cpus = 8
volumes = 3
"""


@dataclass(frozen=True)
class Sample:
    server: Server
    admin: str
    """Keys of each role; the user and the observer belong to owner `team`."""
    user: str
    observer: str
    box: str
    """A running box of owner `team`'s user, which nobody holds."""
    skill: str = "greeting"
    mcp_server: str = "clock"


@contextmanager
def sample_server(**settings: str) -> Iterator[Sample]:
    with tempfile.TemporaryDirectory() as place, serving(**_configured(Path(place)), **settings) as server:
        admin, user, observer = (
            _key(server, role, name) for role, name in (("admin", "Ada"), ("user", "Ben"), ("observer", "wall screen"))
        )
        client, agent = server.tcp(user), server.tcp(user, hutch_session="agent-7")
        box = client.good("POST", "/v1/boxes", {"name": "research", "memory_mb": 256, "labels": {"scope": "chat_42"}})[
            "id"
        ]
        path = f"/v1/boxes/{box}"
        client.good("PUT", f"{path}/files/content?path=count.py", PROGRAM.encode())
        client.good("PUT", f"{path}/files/content?path=data/notes.txt", b"one\ntwo\nthree\n")
        client.good("POST", f"{path}/exec", {"command": "python3 count.py || true"})
        script = "for i in 1 2 3 4 5; do echo step $i of 5; done; sleep 300"
        client.good("POST", f"{path}/jobs", {"command": script, "name": "build"})
        client.good("DELETE", f"{path}/lease")
        agent.good("POST", "/v1/boxes", {"name": "crawler", "memory_mb": 128, "ttl_sec": 45})
        paused = client.good("POST", "/v1/boxes", {"name": "nightly-report", "memory_mb": 64})["id"]
        client.good("POST", f"/v1/boxes/{paused}/pause")
        other = server.tcp(server.key("user", "acme"), hutch_session="acme-bot")
        other.good("POST", "/v1/boxes", {"name": "acme-build", "memory_mb": 64, "timeout_sec": 99999})
        client.good("POST", "/v1/skills/archive", archive("greeting"))
        client.good("PUT", "/v1/skills/greeting/files/content?path=hello.py", b"print('hello')\n")
        definition = {"command": "python3", "args": ["-c", MCP_SERVER.read_text()]}
        client.good("POST", "/v1/mcp-servers", {"name": "clock", "definition": definition})
        client.call("GET", "/v1/boxes/nothing")
        with asking(client, box):
            yield Sample(server, admin, user, observer, box)


def _configured(place: Path) -> dict[str, str]:
    config = place / "hutch.toml"
    config.write_text(QUOTAS)
    return {"HUTCH_SERVER_ANSWER_SEC": "600", "HUTCH_CONFIG": str(config)}


def _key(server: Server, role: str, name: str) -> str:
    made = server.unix().good("POST", "/v1/keys", {"role": role, "owner": "team", "name": name})
    return str(made["text"])


@contextmanager
def asking(client: Client, box: str, **fields: str) -> Iterator[None]:
    """An agent's question that waits until the block ends."""
    connection = client.connect()
    asked = {"agent": "research", "tool": "exec", "what": "git push origin main", "reason": "ask git push*"}
    body = json.dumps({**asked, **fields, "box": box})
    connection.request("POST", "/v1/questions", body, client.headers)
    waiting = threading.Thread(target=_finish, args=(connection,), daemon=True)
    waiting.start()
    try:
        yield
    finally:
        connection.close()


def _finish(connection: object) -> None:
    with suppress(Exception):
        connection.getresponse().read()  # type: ignore[attr-defined]
