"""Host files that a keeper reads for a caller: none past the mount policy, and none through a link (lesson 43).

The attacker has a key of role user, or writes files in a directory that the operator has allowed to mount. The controls
are the same definitions where an admin has opened the directory, and the same tree without the link.
"""

import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.mcp.hosting.hosted_servers import QUICK
from tests.server.serving import Client, Server, serving
from tests.skills.make_skill import skill

from hutch import host_files
from hutch.errors import FileMissing, Invalid, Refused, ServerFailed
from hutch.images.settings import Bounds
from hutch.keeper.embedded import Hutch
from hutch.mcp.hosting import Hosted
from hutch.model.mcp import McpServer, Share
from hutch.policy import mounts
from hutch.providers.native.rootfs import unpack
from hutch.skills.sources import Directory
from hutch.skills.store import SkillStore

SECRET = "what only the operator may read"


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`allowed` is a mount root, `closed` is none; both hold the same file."""
    top = tmp_path_factory.mktemp("ground")
    for name in ("allowed", "closed"):
        (top / name).mkdir()
        (top / name / "secret.txt").write_text(SECRET)
    return top


@pytest.fixture(scope="module")
def server(ground: Path) -> Iterator[Server]:
    config = ground / "config.toml"
    config.write_text(f'mount_roots = ["{ground}/allowed"]\n[mcp]\nretry_pauses_sec = []\n')
    with serving(HUTCH_CONFIG=str(config)) as started:
        yield started


def _thief(path: Path | str, file: str = "secret.txt", **options: Any) -> dict[str, Any]:
    """A server whose process copies a file of its project to the volume that outlives its box, and ends."""
    shown = "/workspace/.mcp/thief" if options.get("share") else "/mnt/project"
    script = f"rm -f /workspace/stolen; cp -L {shown}/{file} /workspace/stolen"
    return {"command": "sh", "args": ["-c", script], "host_path": str(path), **options}


def _told(client: Client, definition: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What the server has got hold of, and how its start was answered."""
    client.good("POST", "/v1/mcp-servers", {"name": "thief", "definition": definition, "replace": True})
    answer = client.call("POST", "/v1/mcp-servers/thief/start").json()
    volume = "mcp-pipeline-default" if definition.get("share") else "mcp-thief"
    stolen = ""
    if volume in {each["name"] for each in client.good("GET", "/v1/volumes")["volumes"]}:
        with client.box(workspace=f"volume:{volume}") as box:
            stolen = client.good("POST", f"{box}/exec", {"command": "cat /workspace/stolen"})["stdout"]
    client.good("DELETE", "/v1/mcp-servers/thief")
    return stolen, answer


@pytest.mark.parametrize("share", ["pipeline", "own"])
def test_a_key_reads_no_host_file_by_an_mcp_server(server: Server, ground: Path, share: str) -> None:
    """Whatever its box is, a server has the host files that could be mounted, and no others (B34, lesson 43)."""
    user, admin = (server.tcp(server.key(role, f"{role}-{share}")) for role in ("user", "admin"))
    sharing = {"share": share} if share != "own" else {}
    for path, file in ((ground / "closed", "secret.txt"), ("/etc", "passwd"), (server.state, "server.json")):
        stolen, answer = _told(user, _thief(path, file, **sharing))
        assert stolen == ""
        assert "may not be shown in a box" in answer["message"], answer
        if path == ground / "closed":
            assert f"'{path}'" in answer["remedy"] and "mount_roots" in answer["remedy"]
    # No role opens what is closed to every box.
    assert "may not be shown" in _told(admin, _thief(server.state, "server.json", **sharing))[1]["message"]
    # Controls: below a root, and where an admin has opened the directory for this server.
    assert SECRET in _told(user, _thief(ground / "allowed", **sharing))[0]
    assert SECRET in _told(admin, _thief(ground / "closed", **sharing))[0]


async def test_a_conversations_box_gets_no_host_file_either(ground: Path) -> None:
    """The same for a server that shares a conversation's box, and for paths among its arguments (B10, lesson 43)."""
    async with Hutch(mount_roots=[str(ground / "allowed")]) as hutch, hutch.box() as box:
        async with Hosted(hutch, directory=ground / "registry", settings=QUICK) as hosted:
            closed = ground / "closed"
            for name, definition in (
                ("project", McpServer(command="true", host_path=str(closed), share=Share.SCOPE)),
                ("argument", McpServer(command="true", args=(f"{closed}/secret.txt",), share=Share.SCOPE)),
            ):
                await hosted.add(name, definition, trusted=False)
                with pytest.raises(ServerFailed, match="may not be shown in a box"):
                    await hosted.start(name, box)
            assert not (await box.exec(["grep", "-r", SECRET, "/workspace"])).ok
            # Control: a copy is made where the caller may open the path.
            await hosted.add(
                "project", McpServer(command="true", host_path=str(closed), share=Share.SCOPE), replace=True
            )
            with pytest.raises(ServerFailed, match="exited"):
                await hosted.start("project", box)
            assert (await box.exec(["cat", "/workspace/.mcp/project/secret.txt"])).stdout == SECRET


def test_a_link_in_an_allowed_tree_is_not_followed(server: Server, ground: Path) -> None:
    """A box that writes in an allowed directory cannot have the keeper follow its links (lesson 43)."""
    tree = ground / "allowed" / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "plain.txt").write_text("plain")
    (tree / "link.txt").symlink_to(ground / "closed" / "secret.txt")
    (tree / "folder").symlink_to(ground / "closed")
    (tree / "requirements.txt").symlink_to(ground / "closed" / "secret.txt")
    user = server.tcp(server.key("user", "linker"))
    for file in ("link.txt", "folder/secret.txt", "requirements.txt"):
        assert SECRET not in _told(user, _thief(tree, file, share="pipeline"))[0]
    assert "plain" in _told(user, _thief(tree, "inner/plain.txt", share="pipeline"))[0], "control: files are copied"


def test_a_key_upgrades_no_skill_from_a_closed_path(server: Server, ground: Path) -> None:
    """The machine's user has installed skills by path; a key has the server read one again only where the
    path may be mounted (lesson 43)."""
    for name in ("allowed", "closed"):
        place = skill(ground / name, f"of-{name}")
        store = SkillStore(server.state / "skills")
        store.install("upgrader", Directory(str(place)))
        (place / "SKILL.md").write_text((place / "SKILL.md").read_text() + SECRET)
    user = server.tcp(server.key("user", "upgrader"))
    refused = user.call("POST", "/v1/skills/of-closed/upgrade")
    assert refused.status == 403 and "mount_roots" in refused.json()["remedy"]
    assert SECRET not in user.good("GET", "/v1/skills/of-closed/body")["body"]
    user.good("POST", "/v1/skills/of-allowed/upgrade")
    assert SECRET in user.good("GET", "/v1/skills/of-allowed/body")["body"], "control: below a root"


def test_an_archive_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    """An image's archive that a box writes meanwhile is not unpacked under the digest of another one (lesson 47)."""
    (tmp_path / "content").write_bytes(bytes(range(256)) * 8192)
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as packed:
        packed.add(tmp_path / "content", "content")

    class Changing:
        """Bounds that are asked for with each piece of the archive, and change what comes after it."""

        def __getattr__(self, name: str) -> Any:
            with archive.open("r+b") as file:
                file.seek(1 << 20)
                file.write(b"another's content")
            return getattr(Bounds(), name)

    with pytest.raises(Invalid, match="changed while"):
        unpack.unpack(str(archive), str(tmp_path / "cache"), cast(Bounds, Changing()))
    assert list((tmp_path / "cache").glob("*")) == []
    assert Path(unpack.unpack(str(archive), str(tmp_path / "cache"))).is_dir(), "control: it is sound in itself"


def test_a_race_does_not_lead_out_of_the_tree(tmp_path: Path) -> None:
    """A directory that is swapped for a link between the look and the open is refused, not entered (lesson 43)."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / "a").mkdir(parents=True)
    outside.mkdir()
    (tree / "a" / "file").write_text("inside")
    (outside / "file").write_text(SECRET)
    place = mounts.check_source(str(tree), "tree", roots=[tmp_path])
    stop = threading.Event()

    def swap() -> None:
        (tmp_path / "link").symlink_to(outside)
        while not stop.is_set():
            os.rename(tree / "a", tmp_path / "aside")
            os.rename(tmp_path / "link", tree / "a")
            os.rename(tree / "a", tmp_path / "link")
            os.rename(tmp_path / "aside", tree / "a")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen: set[str] = set()
    with host_files.open_checked(place) as opened:
        try:
            for _ in range(300):
                try:
                    seen.add(opened.read("a/file", most=100).decode())
                    seen.update(opened.read(found.name, most=100).decode() for found in opened.walk() if found.is_file)
                except (Refused, FileMissing):
                    continue
        finally:
            stop.set()
            swapping.join()
        assert SECRET not in seen
        assert opened.read("a/file", most=100) == b"inside", "control: once nobody swaps, the file is there"


def test_what_was_allowed_is_what_is_opened(tmp_path: Path) -> None:
    """Another directory, or a link, in the place of the checked one is refused (lesson 43)."""
    tree, other = tmp_path / "tree", tmp_path / "other"
    tree.mkdir()
    other.mkdir()
    place = mounts.check_source(str(tree), "tree", roots=[tmp_path])
    with host_files.open_checked(place) as opened:
        for name in ("../other", "/etc/passwd", "a//b", "."):
            with pytest.raises(Refused):
                opened.read(name, most=10)
    tree.rename(tmp_path / "moved")
    other.rename(tree)
    with pytest.raises(Refused, match="replaced"), host_files.open_checked(place):
        pass
    tree.rename(other)
    tree.symlink_to(tmp_path / "moved")
    with pytest.raises(Refused, match="link"), host_files.open_checked(place):
        pass
