"""Boxes that move: exported from one engine, imported on another, and back; hostile files are refused (S10)."""

import io
import json
import os
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from hutch import Hutch
from hutch.api import Box
from hutch.errors import FileMissing, HutchError, Invalid
from hutch.keeper.archives import bundles, export
from tests.cli.cli_process import hutch as command
from tests.providers import daemons, rootfs

MAKE = """set -e
mkdir -p src/deep 'odd name' && echo code >src/deep/a.py && chmod 755 src/deep/a.py
printf 'x\\0y' >'odd name/bytes' && ln -s src/deep/a.py link && mkdir empty
echo setting >"$HOME/.tool"
"""
LOOK = """cd /workspace && find . | LC_ALL=C sort && readlink link && cat src/deep/a.py && stat -c %a src/deep/a.py
cat "$HOME/.tool"; od -c 'odd name/bytes'; echo "$MARK"
"""


async def grown(box: Box) -> str:
    """A box in which somebody has worked; what is to be seen in it."""
    made = await box.exec(MAKE)
    assert made.ok, made.stderr
    return (await box.exec(LOOK)).stdout


async def test_from_native_to_docker_and_back(docker: daemons.Daemon, tmp_path: Path) -> None:
    """S10: workspace, home, environment and labels; notes say that the image is another."""
    table = {"host": docker.host, "image": rootfs.NAME, "cgroup_parent": daemons.CGROUP}
    async with Hutch(providers={"docker": table}) as hutch:
        async with hutch.box(
            provider="native", env={"MARK": "kept"}, labels={"task": "42"}, memory_mb=200, secrets={"TOKEN": "hush"}
        ) as first:
            seen = await grown(first)
            out = await export.export_box(first, tmp_path / "first.hutch")
        assert out.parts == ("workspace", "home") and out.size == (tmp_path / "first.hutch").stat().st_size
        assert any("TOKEN" in note for note in out.notes)

        second, moved = await export.import_box(hutch.create, tmp_path / "first.hutch", provider="docker")
        assert (second.spec.provider, second.spec.labels, second.spec.limits.memory_mb) == (
            "docker",
            {"task": "42"},
            200,
        )
        assert (await second.exec(LOOK)).stdout == seen
        assert any("image host is of provider native" in note for note in moved.notes)
        await second.exec("echo more >>src/deep/a.py")
        await export.export_box(second, tmp_path / "second.hutch")
        await second.destroy()

        third, _ = await export.import_box(hutch.create, tmp_path / "second.hutch", provider="native")
        assert (await third.exec("cat src/deep/a.py link")).stdout == "code\nmore\n" * 2
        await third.destroy()
    assert b"hush" not in (tmp_path / "first.hutch").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's boxes have no root who could change the system")
async def test_changes_of_a_writable_system_are_carried(tmp_path: Path) -> None:
    """Changed files outside of the workspace, with their rights; those of the image are not."""
    async with Hutch() as hutch:
        async with hutch.box(provider="native", profile="code") as box:
            change = "echo 'changed by us' >/etc/motd && install -m 750 /bin/true /usr/local/bin/ours"
            assert (await box.exec(change, user="root")).ok
            out = await export.export_box(box, tmp_path / "box.hutch")
        assert "system" in out.parts and out.size < 5_000_000
        copy, moved = await export.import_box(hutch.create, tmp_path / "box.hutch")
        assert "system" in moved.parts
        assert (await copy.exec("cat /etc/motd; stat -c %a:%U /usr/local/bin/ours")).stdout == (
            "changed by us\n750:root\n"
        )
        await copy.destroy()


async def test_copies_are_removed_by_threads(tmp_path: Path) -> None:
    """A tree of very many files must not stop the event loop, on which others wait."""
    removers: list[tuple[str, bool]] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "shutil.rmtree" and "port-" in str(arguments[0]):
            removers.append((str(arguments[0]), threading.current_thread() is threading.main_thread()))

    sys.addaudithook(hear)
    async with Hutch() as hutch:
        async with hutch.box(provider="native") as box:
            await export.export_box(box, tmp_path / "box.hutch")
        copy, _ = await export.import_box(hutch.create, tmp_path / "box.hutch")
        await copy.destroy()
    assert ["hutch-export-" in removers[0][0], "hutch-import-" in removers[-1][0]] == [True, True]
    assert not any(on_loop for _, on_loop in removers)


async def test_what_an_export_leaves_out_is_listed(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    async with Hutch(mount_roots=[str(tmp_path)]) as hutch:
        async with hutch.box(provider="native", workspace=str(tmp_path / "shared")) as box:
            out = await export.export_box(box, tmp_path / "box.hutch")
    assert "workspace" not in out.parts and any("not the box's own" in note for note in out.notes)


def test_on_the_command_line(tmp_path: Path) -> None:
    """`hutch box export` and `import`: another name, the same files, the notes on standard error."""
    made = command("box", "create", "--name", "mover", "--label", "a=b")
    assert made.returncode == 0, made.stderr
    command("box", "exec", "mover", "--", "sh", "-c", "echo content >file")
    file = tmp_path / "mover.hutch"
    out = command("box", "export", "mover", str(file), "--json")
    assert json.loads(out.stdout)["parts"] == ["workspace", "home"], out.stderr
    assert file.stat().st_mode & 0o077 == 0, "what is in a box is its owner's"
    back = command("box", "import", str(file), "--name", "moved")
    assert back.returncode == 0, back.stderr
    assert command("box", "exec", "moved", "--", "cat", "file").stdout == b"content\n"
    for name in ("mover", "moved"):
        command("box", "destroy", name)


def entry(name: str, kind: bytes = tarfile.REGTYPE, linkname: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, linkname, 0o644
    return made


def packed(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for each, content in entries:
            each.size = len(content)
            tar.addfile(each, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "entries",
    [
        [(entry("../escaped"), b"x")],
        [(entry("/tmp/escaped"), b"x")],
        [(entry("workspace/../../escaped"), b"x")],
        [(entry("elsewhere/file"), b"x")],
        [(entry("workspace/device", tarfile.CHRTYPE), b"")],
        [(entry("workspace/hard", tarfile.LNKTYPE, "/etc/passwd"), b"")],
        [(entry("workspace/twice"), b"x"), (entry("workspace/twice"), b"y")],
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, entries: Any) -> None:
    """Lesson 30: nothing is written outside, whatever an archive says."""
    (tmp_path / "in").mkdir()
    with pytest.raises(Invalid):
        bundles.unpack(packed(tmp_path / "bad.hutch", *entries), tmp_path / "in")
    assert not (tmp_path / "escaped").exists() and not Path("/tmp/escaped").exists()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    bad = packed(
        tmp_path / "bad.hutch",
        (entry("workspace/out", tarfile.SYMTYPE, str(tmp_path)), b""),
        (entry("workspace/out/escaped"), b"x"),
    )
    with pytest.raises((HutchError, OSError)):
        bundles.unpack(bad, tmp_path / "in")
    assert not (tmp_path / "escaped").exists()


async def test_files_that_are_no_boxes(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "cut").write_bytes(packed(tmp_path / "whole", (entry("hutch.json"), b"{}" * 999)).read_bytes()[:60])
    async with Hutch() as hutch:
        for name, error in (("missing", FileMissing), ("text", Invalid), ("cut", Invalid), ("whole", Invalid)):
            with pytest.raises(error):
                await export.import_box(hutch.create, tmp_path / name)
        newer = json.dumps(
            {
                "version": 99,
                "box_id": "x",
                "provider": "native",
                "image": "host",
                "exported_at": 0,
                "spec": {},
                "parts": [],
            }
        )
        packed(tmp_path / "newer", (entry("hutch.json"), newer.encode()))
        with pytest.raises(Invalid, match="format 99"):
            await export.import_box(hutch.create, tmp_path / "newer")
        assert await hutch.boxes() == ()
