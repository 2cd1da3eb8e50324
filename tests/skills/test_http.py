"""Skills over HTTP and through the client: the same methods, clean 4xx errors, separate owners."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch.client.remote import RemoteHutch
from hutch.errors import Conflict, FileMissing, Invalid, NotFound, Refused
from tests.server.serving import Server, serving
from tests.skills.make_skill import entry, good, skill, zipped

pytestmark = pytest.mark.slow

AT = "/workspace/.skills"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def _hutch(server: Server, owner: str) -> RemoteHutch:
    return RemoteHutch(server.announcement["url"], key=server.key("user", owner))


async def test_the_whole_life_through_the_client(server: Server, tmp_path: Path) -> None:
    """Embedded and remote are one protocol: install, list, edit, versions, save, groups, remove."""
    async with _hutch(server, "life") as hutch, hutch.box() as box:
        place = skill(tmp_path, run="#!/bin/sh\necho one\n", a="1")
        previewed = await hutch.skills.preview(place)
        first = await hutch.skills.install(place, digest=previewed.digest)
        assert (first.digest, [each.name for each in await hutch.skills.all()]) == (previewed.digest, ["demo"])
        assert (await box.exec(f"{AT}/demo/run")).stdout == "one\n"
        second = await hutch.skills.write_file("demo", "run", "#!/bin/sh\necho two\n", expect=first.digest)
        assert (await box.exec(f"{AT}/demo/run")).stdout == "two\n"
        with pytest.raises(Conflict):
            await hutch.skills.write_file("demo", "x", "", expect=first.digest)
        assert await hutch.skills.read_file("demo", "run", first.digest[:10]) == b"#!/bin/sh\necho one\n"
        assert [file.path for file in await hutch.skills.files("demo")] == ["SKILL.md", "a", "run"]
        assert await hutch.skills.body("demo") == "# demo\n"
        assert len(await hutch.skills.versions("demo")) == 2
        again = await hutch.skills.install(await hutch.skills.export("demo"))
        assert again.digest == second.digest
        assert (await hutch.skills.rollback("demo", first.digest)).digest == first.digest
        assert (await hutch.skills.pin("demo")).pinned
        with pytest.raises(Conflict, match="pinned"):
            await hutch.skills.remove_file("demo", "a")
        await hutch.skills.unpin("demo")
        ready = await hutch.skills.prepare("demo", box)
        await box.exec(f"cp -r {ready.path} {ready.state}/edit; echo more >> {ready.state}/edit/a")
        assert (await hutch.skills.save("demo", box)).versions == 3
        await hutch.skills.bind("pipeline", ["demo"])
        async with hutch.box(skills="pipeline") as bound:
            assert (await bound.exec(f"cat {AT}/demo/a")).stdout == "1more\n"
        assert [each.group for each in await hutch.skills.bindings()] == ["pipeline"]
        with pytest.raises(FileMissing):
            await hutch.skills.read_file("demo", "none")
        with pytest.raises(Invalid, match="no source to check"):
            await hutch.skills.upgrade("demo")
        await hutch.skills.create("other", "Another.", "# Other")
        await hutch.skills.remove("demo")
        assert [each.name for each in await hutch.skills.all()] == ["other"]
        reasons = [event.reason for event in await hutch.events() if event.kind == "skill"]
    assert reasons[0].startswith("installed demo") and reasons[-1] == "removed demo"


async def test_owners_are_separate(server: Server, tmp_path: Path) -> None:
    async with _hutch(server, "ann") as ann, _hutch(server, "bob") as bob:
        await ann.skills.install(skill(tmp_path, "of-ann"))
        await bob.skills.create("of-bob", "Bob's.")
        assert [each.name for each in await bob.skills.all()] == ["of-bob"]
        for work in (bob.skills.get, bob.skills.body, bob.skills.remove, bob.skills.export, bob.skills.versions):
            with pytest.raises(NotFound):
                await work("of-ann")
        async with ann.box() as box:
            with pytest.raises(NotFound):
                await bob.skills.save("of-bob", box)
            with pytest.raises(NotFound):
                await bob.skills.prepare("of-bob", box)
        assert [event for event in await bob.events() if "of-ann" in event.reason] == []


def test_errors_of_the_store_are_clean_answers(server: Server) -> None:
    """What the store refuses is a 4xx with a code, never an internal error (B40)."""
    client = server.tcp(server.key("user", "errors"))
    link = zipped(good(), (entry("demo/l", external_attr=0o120777 << 16), b"/etc/passwd"))
    for sent, status, code in (
        (b"no zip", 400, "invalid"),
        (zipped(good(), ("../x", b"")), 403, "refused"),
        (link, 403, "refused"),
        (zipped(good(), ("demo/big", b"\0" * (20 << 20))), 413, "too_large"),
        (zipped(("readme", b"")), 404, "not_found"),
        (zipped(("demo/SKILL.md", b"nothing")), 400, "invalid"),
    ):
        for path in ("/v1/skills/archive", "/v1/skills/archive/preview"):
            answer = client.call("POST", path, sent)
            assert (answer.status, answer.json()["code"]) == (status, code), answer
    for method, path, body, status in (
        ("GET", "/v1/skills/none", None, 404),
        ("GET", "/v1/skills/Not%20a%20name", None, 400),
        ("GET", "/v1/skills/..%2f..%2fetc", None, 404),
        ("DELETE", "/v1/skills/none", None, 404),
        ("POST", "/v1/skills", {}, 400),
        ("POST", "/v1/skills", {"name": "a", "git": "https://example.org/x"}, 400),
        ("POST", "/v1/skills", {"git": "file:///etc"}, 400),
        ("POST", "/v1/skills", {"git": "/etc"}, 400),
        ("POST", "/v1/skills/none/pin", {}, 404),
        ("PUT", "/v1/skill-bindings/all", {"skills": ["a"]}, 400),
        ("PUT", "/v1/skill-bindings/x", {"skills": ["Not a name"]}, 400),
    ):
        answer = client.call(method, path, body)
        assert answer.status == status and answer.json()["code"], (method, path, answer)
    client.good("POST", "/v1/skills", {"name": "a", "description": "one"})
    assert client.call("POST", "/v1/skills", {"name": "a", "description": "two"}).status == 409
    assert client.call("PUT", "/v1/skills/a/files/content?path=../x", b"").status == 403
    assert client.call("PUT", "/v1/skills/a/files/content?path=x%00y", b"").status == 403
    assert client.call("GET", "/v1/skills/a/files/content?path=/etc/passwd").status == 403
    observer = server.tcp(server.key("observer", "errors"))
    assert observer.call("GET", "/v1/skills/a").status == 200
    assert observer.call("DELETE", "/v1/skills/a").status == 403
    assert "defect" not in server.log.read_text()


def test_an_edit_over_http_keeps_the_front_matter(server: Server) -> None:
    """An edit keeps unknown front matter (lesson 40)."""
    client = server.tcp(server.key("user", "editor"))
    text = "---\n# why\nname: demo\ndescription: old\nx-mine: [1] # keep\n---\nbody\n"
    client.good("POST", "/v1/skills/archive", zipped(("demo/SKILL.md", text.encode())))
    client.good("PATCH", "/v1/skills/demo", {"description": "new", "body": "# Other\n"})
    found = client.call("GET", "/v1/skills/demo/files/content?path=SKILL.md").body.decode()
    assert found == text.replace("old", '"new"').replace("body\n", "# Other\n")


async def test_a_client_reads_its_own_files_only(server: Server, tmp_path: Path) -> None:
    """A path is packed on the client's side: the server never opens a path that a caller names."""
    async with _hutch(server, "paths") as hutch:
        place = skill(tmp_path)
        (place / "link").symlink_to("/etc/passwd")
        with pytest.raises(Refused, match="symbolic link"):
            await hutch.skills.install(place)
        with pytest.raises(NotFound):
            await hutch.skills.install(tmp_path / "none")
        assert (await hutch.skills.scan(tmp_path))[0].problem
