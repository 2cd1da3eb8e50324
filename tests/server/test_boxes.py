"""Boxes over HTTP: made in the background, made once, held, taken over, slept, found again by their session."""

import json
from concurrent.futures import ThreadPoolExecutor

from tests.server.serving import Client, Server, until


def test_a_box_can_be_made_in_the_background(client: Client) -> None:
    """The answer is 202 with `creating`; actions before the box runs say so, and it then becomes `running` (P5)."""
    answer = client.call("POST", "/v1/boxes?wait=false", {"labels": {"a": "b"}})
    box = answer.headers["location"]
    assert answer.json()["state"] in ("creating", "running")
    assert answer.status == (202 if answer.json()["state"] == "creating" else 201)
    early = client.call("POST", f"{box}/exec", {"command": "true"})
    assert early.status == 200 or early.json()["details"]["state"] == "creating"
    until(lambda: client.good("GET", box)["state"] == "running")
    assert client.good("POST", f"{box}/exec", {"command": "echo up"})["stdout"] == "up\n"
    client.good("DELETE", box)


def test_a_background_creation_that_fails_says_why(client: Client) -> None:
    """What is wrong with the request is reported at once, without a box."""
    answer = client.call("POST", "/v1/boxes?wait=false", {"image": "dir:/no/such/place"})
    assert answer.status in (403, 404), answer
    assert answer.json()["message"]


def test_a_box_may_be_destroyed_while_it_is_made(client: Client) -> None:
    """Nothing of the box remains, whenever the call comes (lesson 4)."""
    for _ in range(5):
        box = client.call("POST", "/v1/boxes?wait=false", {}).headers["location"]
        client.good("DELETE", box)
        until(lambda box=box: client.call("GET", box).status == 410)


def test_only_an_admin_opens_paths_of_the_machine(server: Server, client: Client) -> None:
    """An admin opens roots for one box, and each is logged; a user's key cannot open any (B18, lesson 27)."""
    place = server.top / "project"
    place.mkdir(exist_ok=True)
    spec = {"mounts": [f"{place}:/mnt/project"]}
    roots = json.dumps([str(place), "/etc"])
    user, admin = server.tcp(server.key("user", "roots")), client
    assert user.call("POST", "/v1/boxes", spec, hutch_mount_roots=roots).status == 403
    assert admin.call("POST", "/v1/boxes", spec).status == 403
    assert admin.call("POST", "/v1/boxes", spec, hutch_mount_roots='{"no": "list"}').status == 400
    made = admin.good("POST", "/v1/boxes", spec, hutch_mount_roots=roots)
    admin.good("DELETE", f"/v1/boxes/{made['id']}?force=true")
    assert "mount root added for a box" in server.log.read_text()
    etc = {"mounts": ["/etc:/mnt/etc"]}
    assert admin.call("POST", "/v1/boxes", etc, hutch_mount_roots=roots).status == 403


def test_an_idempotency_key_gives_one_box(server: Server, client: Client) -> None:
    """A retry, or sixteen at once, give the same box; for another owner the same key is another box."""
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(client.call, "POST", "/v1/boxes", {}, idempotency_key="one") for _ in range(16)]
        answers = [call.result() for call in calls]
    ids = {answer.json()["id"] for answer in answers}
    assert len(ids) == 1
    again = client.call("POST", "/v1/boxes?wait=false", {}, idempotency_key="one")
    assert (again.status, again.json()["id"]) == (200, *ids)
    other = server.tcp(server.key("user", "elsewhere"))
    foreign = other.call("POST", "/v1/boxes", {}, idempotency_key="one")
    assert (foreign.status, foreign.json()["id"] in ids) == (201, False)
    other.good("DELETE", foreign.headers["location"])
    client.good("DELETE", f"/v1/boxes/{ids.pop()}")


def test_a_client_that_disconnects_gets_no_box(server: Server, client: Client) -> None:
    """A creation that nobody waits for any more leaves nothing behind."""
    before = len(client.good("GET", "/v1/boxes")["boxes"])
    for _ in range(5):
        connection = client.connect()
        connection.request("POST", "/v1/boxes", b"{}")
        connection.close()
    # A creation that was quicker than the goodbye stays, as a box whose caller never read the answer would.
    until(lambda: all(box["state"] == "running" for box in client.good("GET", "/v1/boxes")["boxes"]))
    boxes = client.good("GET", "/v1/boxes")["boxes"]
    assert len(boxes) <= before + 5
    assert "not removed" not in server.log.read_text()
    for box in boxes[before:]:
        client.good("DELETE", f"/v1/boxes/{box['id']}?force=true")


def test_one_session_works_at_a_time(client: Client) -> None:
    """Other sessions get `busy` but may read; a takeover raises the epoch; a release frees the box (P6)."""
    one, two = client.saying(hutch_session="one"), client.saying(hutch_session="two")
    with one.box() as box:
        first = one.good("GET", f"{box}/lease")
        assert first["lease"]["holder"] == "one"
        assert first["auto_renew_interval_seconds"] == 30 and 500 < first["lease_expires_in_seconds"] <= 600
        assert first["lease_expires_at"] == first["lease"]["expires_at"]
        one.good("PUT", f"{box}/files/content?path=f", b"x")
        assert two.call("PUT", f"{box}/files/content?path=f", b"y").json()["code"] == "busy"
        assert two.call("POST", f"{box}/lease", {}).json()["code"] == "busy"
        assert two.call("GET", f"{box}/files/content?path=f").body == b"x", "looking needs no lease"
        taken = two.good("POST", f"{box}/lease", {"takeover": True})
        assert (taken["lease"]["holder"], taken["epoch"]) == ("two", first["epoch"] + 1)
        assert one.call("POST", f"{box}/exec", {"command": "true"}).json()["code"] == "busy"
        two.good("DELETE", f"{box}/lease")
        one.good("POST", f"{box}/exec", {"command": "true"})
        assert one.good("GET", f"{box}/lease")["lease"]["holder"] == "one", "a free box is held by using it"
        one.good("POST", f"{box}/exec", {"command": "true"})


def test_a_release_does_not_overtake_a_later_grant(server: Server) -> None:
    """Two messages of one chat overlap. The release of the first must not take the lease of the second, whose
    answer was on its way when the first handle was closed (lesson 5)."""
    client = server.unix(hutch_session="chat", hutch_client="one")
    scope = {"template": "{chat}", "values": {"chat": "7"}, "spec": {"memory_mb": 64, "disk_mb": 16}}
    first = client.good("POST", "/v1/scopes", scope)
    later = client.good("POST", "/v1/scopes", scope)
    box = f"/v1/boxes/{first['box']['id']}"
    assert client.good("DELETE", f"{box}/lease?grant={first['grant']}")["lease"]["holder"] == "chat"
    assert client.good("DELETE", f"{box}/lease?grant={later['grant']}")["lease"] is None
    again = client.good("POST", f"{box}/lease", {})
    assert again["grant"] > later["grant"]
    assert client.good("DELETE", f"{box}/lease")["lease"] is None, "a client that knows no grants releases"
    client.good("DELETE", box)


def test_a_client_that_closes_holds_a_box_no_longer(server: Server) -> None:
    """A command line's session keeps its lease between commands, but its idle clock runs once the client has closed and
    not a minute later (B8, P6)."""
    client = server.unix(hutch_session="closes", hutch_client="one")
    with client.box(memory_mb=64, disk_mb=16, idle_timeout_sec=1.0) as box:
        lease = client.good("GET", f"{box}/lease")["lease"]
        open_boxes = {"sessions": {"closes": {box.rpartition("/")[2]: lease["acquired_at"]}}}
        assert client.good("POST", "/v1/session/presence", open_boxes)["kept"] == 1
        assert client.good("POST", "/v1/session/presence", {**open_boxes, "closing": True})["kept"] == 1
        until(lambda: client.call("GET", box).status == 410)


def test_using_a_box_does_not_write_its_record_each_time(client: Client) -> None:
    """A lease is renewed when that matters, not with every command."""
    with client.box() as box:
        before = client.good("GET", f"/v1/events?box={box.rpartition('/')[2]}")["events"]
        for _ in range(20):
            client.good("POST", f"{box}/exec", {"command": "true"})
        after = client.good("GET", f"/v1/events?box={box.rpartition('/')[2]}")["events"]
        assert len(after) <= len(before) + 1


def test_paused_boxes_wake_when_used(client: Client) -> None:
    with client.box() as box:
        assert client.good("POST", f"{box}/pause")["state"] == "paused"
        assert client.good("GET", box)["state"] == "paused", "being looked up wakes nothing"
        assert client.good("POST", f"{box}/exec", {"command": "echo awake"})["stdout"] == "awake\n"
        client.good("POST", f"{box}/pause")
        assert client.good("POST", f"{box}/resume")["state"] == "running"


def test_a_session_has_a_current_box(client: Client) -> None:
    """A current box is set, found again by another connection, and left (P6, P7)."""
    session = client.saying(hutch_session="current-test")
    assert session.good("GET", "/v1/session/current") == {"session": "current-test", "box": None}
    with client.box() as box:
        box_id = box.rpartition("/")[2]
        busy = session.call("PUT", "/v1/session/current", {"box": box_id})
        assert busy.json()["code"] == "busy"
        session.good("PUT", "/v1/session/current", {"box": box_id, "takeover": True})
        assert session.good("GET", "/v1/session/current")["box"] == box_id
        assert client.good("GET", f"{box}/lease")["lease"]["holder"] == "current-test"
        session.good("DELETE", "/v1/session/current")
        assert session.good("GET", "/v1/session/current")["box"] is None
        assert client.good("GET", f"{box}/lease")["lease"] is None


def test_volumes_outlive_boxes(server: Server, client: Client) -> None:
    """A volume in use cannot be removed; another owner's is not there."""
    client.good("POST", "/v1/volumes", {"name": "shared"})
    assert client.call("POST", "/v1/volumes", {"name": "shared"}).json()["code"] == "conflict"
    with client.box(workspace="volume:shared") as box:
        client.good("PUT", f"{box}/files/content?path=kept", b"kept")
        assert client.call("DELETE", "/v1/volumes/shared").json()["code"] == "conflict"
    with client.box(workspace="volume:shared:ro") as box:
        assert client.call("GET", f"{box}/files/content?path=kept").body == b"kept"
    stranger = server.tcp(server.key("user", "stranger"))
    assert stranger.good("GET", "/v1/volumes")["volumes"] == []
    assert stranger.call("DELETE", "/v1/volumes/shared").status == 404
    assert stranger.call("POST", "/v1/boxes", {"workspace": "volume:shared"}).status == 404
    assert [each["name"] for each in client.good("GET", "/v1/volumes")["volumes"]] == ["shared"]
    client.good("DELETE", "/v1/volumes/shared")


def test_nothing_of_the_host_is_mounted_by_default(server: Server, client: Client) -> None:
    """The directory a server was started in is not everybody's: only configured roots can be mounted."""
    for mount in (".:/mnt/here", "/work:/mnt/x", str(server.top) + ":/mnt/y"):
        answer = client.call("POST", "/v1/boxes", {"mounts": [mount]})
        assert answer.status in (400, 403), (mount, answer)


def test_a_private_range_that_no_box_could_reach_is_the_callers_mistake(client: Client) -> None:
    """An impossible spec is refused before anything is created, with a remedy (P10)."""
    answer = client.call("POST", "/v1/boxes", {"network": "on", "allow_private": ["fd00::/8"]})
    assert answer.status == 400, answer
    error = answer.json()
    assert error["code"] == "invalid" and "no IPv6" in error["message"] and error["remedy"], error
    assert "Traceback" not in str(error)
