"""Images over HTTP: everybody sees them, admins pull, remove and prune, and boxes stand on them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images import registry_server
from tests.server.serving import Server, serving

PULLED = "progress/busybox"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registry_server.Server]:
    with registry_server.running_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture(scope="module")
def place() -> Iterator[Server]:
    """With a store of images of its own."""
    with serving() as started:
        yield started


def test_an_image_from_pull_to_removal(place: Server, registry: registry_server.Server) -> None:
    """A missing image is never pulled implicitly; once pulled, everybody can use it."""
    name = registry.push("whole/busybox", registry_server.small(Env=["COLOUR=blue"]))
    admin, user = place.tcp(place.key("admin", "operators")), place.tcp(place.key("user", "team"))
    spec = {"image": f"oci:{name}", "memory_mb": 128}
    missing = user.call("POST", "/v1/boxes", spec)
    assert (missing.status, missing.json()["code"]) == (404, "not_found")
    assert user.good("GET", "/v1/images")["images"] == []

    refused = user.call("POST", "/v1/images", {"name": name})
    assert (refused.status, refused.json()["code"]) == (403, "refused")
    made = admin.good("POST", "/v1/images", {"name": name})
    assert made["names"] == [name]
    assert made["defaults"]["env"] == {"COLOUR": "blue"}
    assert [part["bytes"] > 0 for part in made["parts"]] == [True, True]

    digest = made["digest"]
    (listed,) = user.good("GET", f"/v1/images?name={name}")["images"]
    assert (listed["digest"], listed["layers"], listed["in_use"]) == (digest, 2, False)
    assert user.good("GET", f"/v1/images/{digest[:20]}") == made
    with user.box(**spec) as box:
        assert user.good("POST", f"{box}/exec", {"command": "echo $COLOUR"})["stdout"] == "blue\n"
        assert user.good("GET", f"/v1/images/{digest}")["boxes"] == [box.rpartition("/")[2]]
        seen = place.tcp(place.key("user", "others")).good("GET", f"/v1/images/{digest}")
        assert (seen["boxes"], seen["in_use"]) == ([], True), "whose box it is, is not their business"
        held = admin.call("DELETE", f"/v1/images/{digest}")
        assert (held.status, held.json()["code"]) == (409, "conflict")
        assert admin.good("GET", f"/v1/images/{digest}")["names"] == [name], "nothing has gone"
    assert user.call("DELETE", f"/v1/images/{digest}").status == 403
    removed = admin.good("DELETE", f"/v1/images/{digest}")
    assert removed["names"] == [name]
    assert removed["freed_bytes"] > 0
    assert user.call("GET", f"/v1/images/{digest}").status == 404


def test_a_pull_reports_its_progress(place: Server, registry: registry_server.Server) -> None:
    """Progress comes as lines and the image at the end; an error before the first line gets its own status."""
    admin = place.tcp(place.key("admin", "operators"), accept="application/x-ndjson")
    name = registry.push(PULLED, registry_server.small())
    answer = admin.call("POST", "/v1/images", {"name": name})
    *progress, last = map(json.loads, answer.body.splitlines())
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert {each["step"] for each in progress} <= {"waiting", "fetching", "unpacking", "done", "there"}
    assert {each["layer"] for each in progress if each["step"] in ("done", "there")} == {
        registry_server.digest_of(layer) for layer in registry_server.small().layers
    }
    assert last["image"]["names"] == [name]
    unknown = admin.call("POST", "/v1/images", {"name": f"{registry.address}/none"})
    assert (unknown.status, unknown.json()["code"]) == (404, "not_found")


def test_names_go_one_by_one(place: Server, registry: registry_server.Server) -> None:
    """An image is removed with all its names, or loses one of them; pruning leaves what has a name."""
    admin = place.tcp(place.key("admin", "operators"))
    made = registry_server.small(Env=["OF=two"])
    first, second = (registry.push("two/names", made, tag) for tag in ("a", "b"))
    digest = admin.good("POST", "/v1/images", {"name": first})["digest"]
    assert set(admin.good("POST", "/v1/images", {"name": second})["names"]) == {first, second}
    wrong = admin.call("DELETE", f"/v1/images/{digest}?name={registry.address}/other")
    assert wrong.status == 404
    assert admin.good("DELETE", f"/v1/images/{digest}?name={first}")["names"] == [first]
    admin.good("POST", "/v1/images/prune")
    assert admin.good("GET", f"/v1/images/{digest}")["names"] == [second]
    assert admin.call("GET", "/v1/images/sha256:00000000").status == 404
    assert admin.call("GET", "/v1/images/busybox").status == 404


def test_users_may_pull_where_the_operator_says_so(registry: registry_server.Server, tmp_path: Path) -> None:
    """`server.pulls`, and `images.pull` for boxes whose image is not here."""
    config = tmp_path / "hutch.toml"
    config.write_text('[server]\npulls = "user"\n[images]\npull = "missing"\n')
    name = registry.push("open/busybox", registry_server.small())
    with serving(HUTCH_CONFIG=str(config)) as server:
        user = server.tcp(server.key("user", "team"))
        with user.box(image=f"oci:{name}", memory_mb=128) as box:
            assert user.good("POST", f"{box}/exec", {"command": "echo there"})["stdout"] == "there\n"
        assert user.good("POST", "/v1/images", {"name": name})["names"] == [name]
        assert server.tcp(server.key("observer", "team")).call("POST", "/v1/images", {"name": name}).status == 403


def test_a_box_pulls_no_image_that_its_caller_may_not_pull(registry: registry_server.Server, tmp_path: Path) -> None:
    """Class: a second door to what the first refuses. With `images.pull` a new box was as good as POST /v1/images."""
    config = tmp_path / "hutch.toml"
    theirs, own = (
        registry.push(name, registry_server.small(Env=[f"OF={name}"])) for name in ("closed/theirs", "closed/own")
    )
    profile = f'[profiles.based]\ninherits = "default"\nimage = "oci:{own}"\n'
    config.write_text(f'{profile}[images]\npull = "missing"\n[rights.trusted]\npull = true\n')
    with serving(HUTCH_CONFIG=str(config)) as server:
        user, trusted = (server.tcp(server.key("user", owner)) for owner in ("team", "trusted"))
        spec = {"image": f"oci:{theirs}", "memory_mb": 128}
        scope = {"template": "{chat}", "values": {"chat": "a"}, "spec": spec}
        for path, body in (("/v1/boxes", spec), ("/v1/scopes", scope), ("/v1/images", {"name": theirs})):
            answer = user.call("POST", path, body)
            assert (answer.status, answer.json()["details"]["setting"]) == (403, "rights.team.pull"), answer
        assert user.good("GET", "/v1/images")["images"] == []
        with user.box(profile="based", memory_mb=128) as box:
            assert user.good("GET", box)["spec"]["image"] == f"oci:{own}", "the operator named this one"
        with trusted.box(**spec):
            pass
        with user.box(**spec):  # it is here by now
            pass
