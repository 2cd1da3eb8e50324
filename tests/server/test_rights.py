"""What an operator sets binds every key, through every door: profiles, actions, root, private ranges and maxima.

Each attack is made with keys of role user. Its control is the same request by an admin, whom nothing binds: it shows
that the machine would have given what was asked (lesson 45, P15, B15, B16).
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from hutch.keeper.access.callers import called_by
from hutch.keeper.access.leases import holds
from hutch.keeper.keys import Keys
from hutch.keeper.store.store import MemoryStore
from hutch.mcp.hosting.registry import Entry
from hutch.model.boxes import Lease
from hutch.model.receipts import Who
from hutch.policy.rights import Rights, RightsTable
from tests.mcp.serving.clients import over_http
from tests.server.serving import Answer, Client, Server, serving, until
from tests.server.test_websockets import attached

CONFIG = """
profile = "company"

[profiles.company]
locked = ["network"]
limits = { memory_mb = 96, disk_mb = 32, pids = 60 }
maxima = { memory_mb = 128, disk_mb = 64 }

[profiles.team]
inherits = "company"

[profiles.rooted]
inherits = "company"
user = "root"

[rights.open]
profiles = ["company", "code", "mcp"]

[rights.builder]
profiles = ["company", "rooted"]
root = true
allow_private = ["10.9.0.0/16"]
maxima = { memory_mb = 80, pids = 40, timeout_sec = 20, ttl_sec = 600 }

[quotas.counted]
memory_mb = 180

[pool]
company = 1
"""
WIDE = {"profile": "code", "memory_mb": 300}
"""What the locked default would not give; a machine without network can make it too."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("rights") / "hutch.toml"
    config.write_text(CONFIG)
    with serving(HUTCH_CONFIG=str(config)) as started:
        yield started


def user(server: Server, owner: str, **rights: Any) -> Client:
    return server.tcp(key(server, owner, **rights))


def key(server: Server, owner: str, **rights: Any) -> str:
    body = {"role": "user", "owner": owner, "rights": rights}
    text: str = server.unix().good("POST", "/v1/keys", body)["text"]
    return text


def refused(answer: Answer, setting: str) -> None:
    """With a remedy that names the setting and who can change it."""
    answered = answer.json()
    assert (answer.status, answered["code"]) == (403, "refused"), answered
    assert answered["details"]["setting"] == setting, answered
    assert "the server's operator" in answered["remedy"], answered
    assert setting.rsplit(".", 1)[0] in answered["remedy"], answered


def cuts(box: dict[str, Any]) -> dict[str, str]:
    return {each["field"]: each["reason"] for each in box["spec"]["adjustments"]}


def test_a_locked_default_is_left_through_no_door(server: Server) -> None:
    """`profile: "app"` gave network, root and 9 GB to a key whose default profile was locked.
    HTTP, waiting and not, scopes, the working box, hosted MCP servers, the Unix socket with a key."""
    caller, admin = user(server, "acme"), server.unix()
    with admin.box(**WIDE) as control:
        assert admin.good("GET", control)["spec"]["limits"]["memory_mb"] == 300
    on_socket = server.unix(**caller.headers)
    scope = {"template": "{chat}", "values": {"chat": "a"}, "spec": WIDE}
    definition = {"command": "true", "profile": "code"}
    attempts: list[tuple[Client, str, dict[str, Any]]] = [
        (caller, "/v1/boxes", WIDE),
        (caller, "/v1/boxes", {"profile": "app", "network": "on", "user": "root", "memory_mb": 9000}),
        (caller, "/v1/boxes?wait=false", WIDE),
        (on_socket, "/v1/boxes", WIDE),
        (caller, "/v1/scopes", scope),
        (caller, "/v1/session/working", WIDE),
        (caller, "/v1/mcp-servers", {"name": "wide", "definition": definition}),
        (caller, "/v1/mcp-servers", {"name": "wide", "definition": {"command": "true"}}),
        (caller, "/v1/mcp-servers/import", {"servers": {"wide": definition}}),
    ]
    for client, path, body in attempts:
        refused(client.call("POST", path, body), "rights.acme.profiles")
    assert caller.good("GET", "/v1/boxes")["boxes"] == []
    shown = caller.good("GET", "/v1/profiles")
    assert (shown["default"], [each["name"] for each in shown["profiles"]]) == (
        "company",
        ["company", "rooted", "team"],
    )
    assert shown["quotas"]["acme"]["boxes"] == 0
    everything = server.unix(hutch_admin="yes").good("GET", "/v1/profiles")
    assert set(everything["quotas"]) == {"counted"} and everything["quotas"]["counted"] != shown["quotas"]["acme"]
    assert len(admin.good("GET", "/v1/profiles")["profiles"]) > 8
    with caller.box(profile="team", network="on", memory_mb=9000) as box:
        made = caller.good("GET", box)
        assert (made["spec"]["network"], made["spec"]["limits"]["memory_mb"]) == ("off", 128)
        assert cuts(made) == {"network": "locked by profile team", "memory_mb": "maximum of profile team"}


async def test_tools_of_mcp_clients_are_bound_alike(server: Server) -> None:
    """`/mcp` with a key, whose address names a profile; `box_lifecycle create` and the box that a command begins."""
    text = key(server, "agents")
    async with over_http(server, text, "?profile=code")("legacy") as client:
        for tool, asked in (("box_lifecycle", {"action": "create"}), ("exec", {"command": "true"})):
            wide = await client.call_tool(tool, asked)
            assert wide.is_error and "not open to this key" in str(wide.content), wide
    async with over_http(server, text)("legacy") as client:
        plain = await client.call_tool("box_lifecycle", {"action": "create"})
        assert not plain.is_error, plain
    boxes = user(server, "agents").good("GET", "/v1/boxes")["boxes"]
    assert [box["spec"]["profile"] for box in boxes] == ["company"]


def test_a_bundle_asks_for_no_more_than_its_bearer_may(server: Server, rootless: bool) -> None:
    """A bundle carries a spec, which its bearer may have written; and files of the system, which are put into
    the new box, and taken from the old one, by its root."""
    admin, caller, opened = server.unix(), user(server, "acme"), user(server, "open")
    with admin.box(**WIDE) as box:
        bundle = admin.call("GET", f"{box}/export").body
    refused(caller.call("POST", "/v1/boxes/import", bundle), "rights.acme.profiles")
    taken = caller.good("POST", "/v1/boxes/import?profile=company", bundle)["box"]
    assert (taken["spec"]["profile"], taken["spec"]["limits"]["memory_mb"]) == ("company", 128)
    refused(opened.call("POST", "/v1/boxes/import", _asking(bundle, user="root")), "rights.open.root")
    private = opened.good("POST", "/v1/boxes/import", _asking(bundle, allow_private=["10.0.0.0/8"]))["box"]
    assert private["spec"]["allow_private"] == [], "a bundle opens no range for anybody"
    opened.good("DELETE", f"/v1/boxes/{private['id']}")
    with opened.box(profile="code") as box:
        got = opened.call("GET", f"{box}/export")
        assert got.status == 200, got.body[:500]
        moved = json.loads(got.headers["hutch-moved"])
        assert "system" not in moved["parts"]
        # An ordinary user's boxes have no root: there nothing was to be taken in the first place.
        assert rootless or any("as the box's root" in note for note in moved["notes"]), moved


def _asking(bundle: bytes, **spec: Any) -> bytes:
    """The bundle with another spec in it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(bundle)) as old, tarfile.open(fileobj=out, mode="w:gz") as new:
        for entry in old:
            data = old.extractfile(entry)
            content = data.read() if data is not None else b""
            if entry.name == "hutch.json":
                manifest = json.loads(content)
                content = json.dumps(manifest | {"spec": manifest["spec"] | spec}).encode()
                entry.size = len(content)
            new.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def test_root_is_the_operator_s_to_give(server: Server, rootless: bool) -> None:
    """In a spec, in a command, in a job and in a terminal; a number is no other name for it."""
    caller, admin = user(server, "acme"), server.unix(hutch_admin="yes")
    for name in ("root", "0"):
        refused(caller.call("POST", "/v1/boxes", {"user": name}), "rights.acme.root")
    with caller.box() as box:
        for name in ("root", "0"):
            for door in ("exec", "jobs"):
                asked = {"command": "id -u", "user": name}
                refused(caller.call("POST", f"{box}/{door}", asked), "rights.acme.root")
            lines = caller.call("POST", f"{box}/exec", asked, accept="application/x-ndjson")
            assert lines.status == 403, lines
            with pytest.raises(InvalidStatus) as closed, attached(caller, f"{box}/terminal?command=id&user={name}"):
                pass
            assert closed.value.response.status_code == 403
        assert caller.good("POST", f"{box}/exec", {"command": "id -u"})["stdout"] == "1000\n"
        if not rootless:  # where no box has a root, there is no control
            asked = {"command": "id -u", "user": "root"}
            assert admin.good("POST", f"{box}/exec", asked)["stdout"] == "0\n"
    if rootless:
        return
    builder = user(server, "builder")
    with builder.box() as box:
        assert builder.good("POST", f"{box}/exec", {"command": "id -u", "user": "root"})["stdout"] == "0\n"
    with caller.box(profile="rooted") as box:
        given = caller.good("POST", f"{box}/exec", {"command": "id -u", "user": "root"})
        assert given["stdout"] == "0\n", "the profile's word is the operator's"
    narrow = user(server, "builder", root=False)
    refused(narrow.call("POST", "/v1/boxes", {"user": "root"}), "rights.builder.root")


def test_private_ranges_are_the_operator_s_to_open(server: Server) -> None:
    caller, builder = user(server, "acme"), user(server, "builder")
    refused(caller.call("POST", "/v1/boxes", {"allow_private": ["10.9.1.0/24"]}), "rights.acme.allow_private")
    refused(builder.call("POST", "/v1/boxes", {"allow_private": ["10.0.0.0/8"]}), "rights.builder.allow_private")
    with builder.box(allow_private=["10.9.1.0/24"]) as box:
        assert builder.good("GET", box)["spec"]["allow_private"] == ["10.9.1.0/24"]
    with server.unix().box(allow_private=["10.0.0.0/8"]) as box:
        assert server.unix().good("GET", box)["spec"]["allow_private"] == ["10.0.0.0/8"]


def test_maxima_cut_what_a_profile_and_the_pool_give(server: Server) -> None:
    """A ready box with more than the caller may have is not his; the next one is made for him."""

    def ready() -> bool:
        return 'hutch_pool_ready{profile="company"} 1' in server.unix().call("GET", "/metrics").body.decode()

    builder, other = user(server, "builder"), user(server, "acme")
    until(ready)
    with builder.box() as box:
        made = builder.good("GET", box)
        limits = made["spec"]["limits"]
        assert (limits["memory_mb"], limits["pids"], made["spec"]["ttl_sec"]) == (80, 40, 600)
        assert (limits["timeout_sec"], limits["max_timeout_sec"]) == (20, 20)
        assert cuts(made)["memory_mb"] == "maximum of rights.builder"
        assert builder.good("POST", f"{box}/exec", {"command": "true", "timeout": 500})["notes"], "it was clamped"
        assert ready(), "nobody took the ready one"
    with other.box() as box:
        events = other.good("GET", f"/v1/events?limit=1000&box={box.rsplit('/', 1)[1]}")["events"]
        assert "claimed" in {event["kind"] for event in events}, "the control got the ready one"
    narrow = user(server, "builder", maxima={"memory_mb": 64})
    with narrow.box(memory_mb=100) as box:
        made = narrow.good("GET", box)
        assert made["spec"]["limits"]["memory_mb"] == 64
        assert cuts(made)["memory_mb"].startswith("maximum of rights.builder and key k")


def test_a_live_box_grows_no_further_than_a_new_one(server: Server) -> None:
    """PATCH respects locks, maxima and quotas (B14, B15)."""
    caller, builder, counted = user(server, "acme"), user(server, "builder"), user(server, "counted")
    with caller.box() as box:
        body = {"limits": {"memory_mb": 9000, "max_timeout_sec": 0}, "idle_timeout_sec": 60}
        changed = caller.good("PATCH", box, body)["box"]
        assert (changed["spec"]["limits"]["memory_mb"], changed["spec"]["limits"]["max_timeout_sec"]) == (128, 120)
        assert cuts(changed)["memory_mb"] == "maximum of profile company"
    with builder.box() as box:
        changed = builder.good("PATCH", box, {"limits": {"pids": 50}, "idle_timeout_sec": 0})["box"]
        assert changed["spec"]["limits"]["pids"] == 40
        assert cuts(changed)["pids"] == "maximum of rights.builder"
    with counted.box(memory_mb=96) as box, counted.box(memory_mb=64) as second:
        over = counted.call("PATCH", box, {"limits": {"memory_mb": 128}})
        assert (over.status, over.json()["details"]["what"]) == (429, "memory_mb"), over
        assert counted.good("GET", box)["spec"]["limits"]["memory_mb"] == 96
        counted.good("PATCH", second, {"limits": {"memory_mb": 32}})
        assert counted.good("PATCH", box, {"limits": {"memory_mb": 128}})["box"]["spec"]["limits"]["memory_mb"] == 128


def test_actions_are_given_one_by_one(server: Server) -> None:
    """Create, set retention, takeover and destroy are separate actions; a member may do everything else (P15)."""
    full, member = user(server, "club"), user(server, "club", actions=[])
    setting = "rights.club.actions"
    for path in ("/v1/boxes", "/v1/session/working"):
        refused(member.call("POST", path, {}), setting)
    refused(member.call("POST", "/v1/volumes", {"name": "v"}), setting)
    definition = {"command": "true", "profile": "company"}
    refused(member.call("POST", "/v1/mcp-servers", {"name": "m", "definition": definition}), setting)
    # A repository is fetched, and dependencies are installed, in a box that is made for it.
    refused(member.call("POST", "/v1/skills/preview", {"git": "https://127.0.0.1:9/none"}), setting)
    scope = {"template": "{chat}", "values": {"chat": "a"}}
    refused(member.call("POST", "/v1/scopes", scope), setting)
    full.good("POST", "/v1/volumes", {"name": "v"})
    refused(member.call("DELETE", "/v1/volumes/v"), setting)
    full.good("DELETE", "/v1/volumes/v")
    with full.box() as box:
        held = full.saying(hutch_session="holder")
        held.good("POST", f"{box}/lease", {"takeover": True})
        at = box.rsplit("/", 1)[1]
        refused(member.call("POST", f"{box}/lease", {"takeover": True}), setting)
        refused(member.call("PUT", "/v1/session/current", {"box": at, "takeover": True}), setting)
        for force in ("false", "true"):
            refused(member.call("DELETE", f"{box}?force={force}"), setting)
        ender = user(server, "club", actions=["destroy"])
        refused(ender.call("DELETE", f"{box}?force=true"), setting)
        held.good("DELETE", f"{box}/lease")
        assert member.good("POST", f"{box}/exec", {"command": "echo works"})["stdout"] == "works\n"
        refused(member.call("PATCH", box, {"idle_timeout_sec": 1}), setting)
        member.good("PATCH", box, {"name": "ours"})
    maker = user(server, "club", actions=["create"])
    with maker.box(retention="persistent") as box:
        made = maker.good("GET", box)
        assert made["spec"]["retention"] == "temporary"
        assert "set_retention" in cuts(made)["retention"]
    with full.box(retention="persistent") as box:
        full.good("DELETE", f"{box}/lease")
        refused(member.call("PATCH", box, {"retention": "temporary"}), setting)
        assert full.good("GET", box)["spec"]["retention"] == "persistent"


def test_a_session_s_name_is_no_way_around_takeover(server: Server) -> None:
    """A session is a name that any key of the owner can send. A caller who may not take over is not believed."""
    holder = user(server, "names").saying(hutch_session="holder")
    narrow = user(server, "names", actions=["create", "destroy"]).saying(hutch_session="holder")
    other = user(server, "names").saying(hutch_session="holder")
    with holder.box() as box:
        lease = str(holder.good("GET", f"{box}/lease")["lease"]["acquired_at"])
        asked = {"command": "true"}
        assert narrow.call("POST", f"{box}/exec", asked).json()["code"] == "busy"
        assert narrow.call("POST", f"{box}/exec", asked, hutch_lease=lease).json()["code"] == "lease_lost"
        assert narrow.call("POST", f"{box}/lease", {"renew": True}).json()["code"] == "lease_lost"
        for path in (f"{box}/lease", "/v1/session/current"):
            narrow.call("DELETE", path)
        assert narrow.call("DELETE", box).json()["code"] == "busy"
        assert holder.good("GET", f"{box}/lease")["lease"]["holder"] == "holder"
        assert other.good("POST", f"{box}/exec", asked)["exit_code"] == 0, "the control may take over, and is believed"


def test_hosted_servers_get_no_more_than_who_registered_them(server: Server) -> None:
    """Their boxes are made by tasks of the server, not by the request of a caller."""
    narrow = user(server, "open", maxima={"memory_mb": 64})
    definition = {"command": "sleep", "args": ["1000"], "profile": "mcp", "network": "off", "memory_mb": 400}
    narrow.good("POST", "/v1/mcp-servers", {"name": "hosted", "definition": definition})
    connection = narrow.connect()
    try:  # it never answers the handshake; its box is there all the same
        connection.request("POST", "/v1/mcp-servers/hosted/start", b"", narrow.headers)
        box = until(lambda: narrow.good("GET", "/v1/boxes")["boxes"])[0]
        assert box["spec"]["labels"] == {"mcp-server": "hosted"}
        assert box["spec"]["limits"]["memory_mb"] == 64
    finally:
        connection.close()
        narrow.good("DELETE", "/v1/mcp-servers/hosted")


async def test_what_was_written_before_there_were_rights_still_opens() -> None:
    """Upgrade: keys, leases and registered servers of an older store have the owner's rights."""
    secret = "s" * 43
    key = {"id": "k1", "name": "", "role": "user", "owner": "old", "created_at": 1.0, "revoked_at": None}
    store = MemoryStore()
    kept = {"key": key, "digest": hashlib.sha256(secret.encode()).hexdigest()}
    await store.put_note("key", "k1", json.dumps(kept).encode(), new=True)
    found = await Keys(store).find(f"hutch_k1_{secret}")
    assert found is not None and found.rights == RightsTable()
    lease = Lease.from_plain({"holder": "s", "acquired_at": 1.0, "expires_at": 0.0, "seconds": 600.0})
    narrow = Rights(owner="old", actions=frozenset())
    with called_by(Who(key="k1"), narrow):
        assert holds(lease, "s"), "nobody knows by which key it was taken"
    with called_by(Who(key="k1"), narrow):
        assert not holds(lease.but(key="k2"), "s")
    entry = Entry.from_plain({"server": {"command": "true"}, "roots": [], "origin": "registry"})
    assert entry.rights is None


def test_keys_are_an_admin_s_to_give_rights(server: Server) -> None:
    """Rights are written by admins alone, and mean nothing for their own keys."""
    body = {"role": "user", "owner": "acme", "rights": {"profiles": ["code"]}}
    assert user(server, "acme").call("POST", "/v1/keys", body).status == 403
    wrong = server.unix().call("POST", "/v1/keys", {**body, "role": "admin"})
    assert (wrong.status, wrong.json()["code"]) == (400, "invalid")
    unknown = server.unix().call("POST", "/v1/keys", {**body, "rights": {"profiles": ["no-such"]}})
    assert (unknown.status, "no-such" in unknown.json()["message"]) == (400, True)
    made = server.unix().good("POST", "/v1/keys", body)["key"]
    listed = {each["id"]: each for each in server.unix().good("GET", "/v1/keys")["keys"]}
    assert listed[made["id"]]["rights"]["profiles"] == ["code"]


async def test_jobs_and_terminals_end_by_the_caller_s_maximum(server: Server) -> None:
    """A job without a timeout, or with a long one, was under no maximum, and `exec` only under that of the key that
    made the box. Both doors of jobs, a terminal, and a command in a box of another key of the owner."""
    full, admin = user(server, "patient"), server.unix(hutch_admin="yes")
    text = key(server, "patient", maxima={"timeout_sec": 2})
    narrow = server.tcp(text)
    with full.box() as box:
        full.good("DELETE", f"{box}/lease")
        jobs = {}
        for timeout in (None, 1000, 1):
            asked = {"command": "sleep 1000", "timeout": timeout}
            answer = narrow.call("POST", f"{box}/jobs", asked)
            info = jobs[timeout] = answer.json()
            assert info["timeout_sec"] == min(timeout or 2, 2), "what is given is shown"
            notes = json.loads(answer.headers["hutch-notes"])
            assert len(notes) == (timeout != 1) and all("maximum of rights.patient and key k" in each for each in notes)
        control = admin.good("POST", f"{box}/jobs", {"command": "sleep 1000", "timeout": 1000})
        assert control["timeout_sec"] == 1000
        with attached(narrow, f"{box}/terminal?command=sleep+1000"):
            listed = narrow.good("GET", f"{box}/jobs")["jobs"]
            assert [each["timeout_sec"] for each in listed if each["name"] == "terminal"] == [2]
        for info in jobs.values():
            result = narrow.good("POST", f"{box}/jobs/{info['id']}/wait", {"timeout_sec": 60})
            assert result["verdict"]["cause"] == "timeout", result
        assert admin.good("GET", f"{box}/jobs/{control['id']}")["state"] == "running"
        ran = narrow.good("POST", f"{box}/exec", {"command": "sleep 1000", "timeout": 100})
        assert ran["verdict"]["cause"] == "timeout" and "maximum of rights.patient and key k" in ran["notes"][0], ran
        narrow.good("DELETE", f"{box}/lease")
    async with over_http(server, text)("legacy") as client:
        begun = await client.call_tool("job", {"action": "start", "command": "sleep 1000"})
        assert not begun.is_error, begun
        shown = await client.call_tool("job", {"action": "list"})
        assert "killed 2 s after its start" in str(shown.content) or "ended" in str(shown.content), shown


def test_a_hosted_server_outlives_the_timeout_of_who_registered_it(server: Server) -> None:
    """It is no command: it runs as long as its box."""
    narrow = user(server, "open", maxima={"timeout_sec": 1})
    definition = {"command": "sleep", "args": ["1000"], "profile": "mcp", "network": "off"}
    narrow.good("POST", "/v1/mcp-servers", {"name": "long", "definition": definition})
    connection = narrow.connect()
    try:
        connection.request("POST", "/v1/mcp-servers/long/start", b"", narrow.headers)

        def running() -> list[dict[str, Any]]:
            boxes = [each["id"] for each in narrow.good("GET", "/v1/boxes")["boxes"] if each["state"] == "running"]
            return [job for box in boxes for job in narrow.good("GET", f"/v1/boxes/{box}/jobs")["jobs"]]

        (job,) = until(running)
        assert (job["name"], job["timeout_sec"]) == ("mcp-long", None)
    finally:
        connection.close()
        narrow.good("DELETE", "/v1/mcp-servers/long")
