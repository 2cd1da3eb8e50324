"""Checkpoints in an exported box: they come along, share what they have in common, and hostile files do no harm."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import Invalid
from hutch.keeper.archives import checkpoint_history
from tests.layers.test_states import shell


async def test_an_export_carries_checkpoints(tmp_path: Path) -> None:
    """Issue 20, point 3: every state comes back in the new box, and a large file that stays is in the file once."""
    async with Hutch() as hutch:
        async with hutch.box(disk_mb=64) as box:
            await shell(box, "head -c 3000000 /dev/urandom > big; mkdir d; echo one > d/f; ln -s d/f l; echo h > ~/h")
            await box.checkpoint("one")
            await shell(box, "rm -r d; echo file > d; rm l; mkdir l; chmod 750 l; echo two > l/f; rm ~/h")
            await box.checkpoint("two")
            await shell(box, "echo three > three; chmod 700 l")
            out = await box.export(tmp_path / "box.hutch")
        assert out.size < 4_000_000, "the large file is carried once"
        copy = await hutch.import_box(tmp_path / "box.hutch")
        look = "ls; cat three l/f; stat -c %a l; cmp big big && wc -c < big"
        assert await shell(copy, look) == "big\nd\nl\nthree\nthree\ntwo\n700\n3000000"
        assert [each.name for each in await copy.checkpoints()] == ["one", "two"]
        changed = {each.path for each in (await copy.diff("two")).changes}
        assert changed == {"/workspace/three", "/workspace/l"}, "only what differs was written"
        await copy.rollback("one")
        assert await shell(copy, "cat d/f l ~/h; readlink l; ls") == "one\none\nh\nd/f\nbig\nd\nl"
        await copy.rollback("two")
        assert await shell(copy, "cat d l/f; stat -c %a l; ls ~/h || echo gone") == "file\ntwo\n750\ngone"
        await copy.destroy()


async def test_a_box_without_checkpoints_is_exported_as_before(tmp_path: Path) -> None:
    """Older releases read such a file; this one reads theirs (`tests/test_upgrade.py`)."""
    async with Hutch() as hutch, hutch.box() as box:
        await shell(box, "echo 1 > a")
        await box.export(tmp_path / "box.hutch")
    with tarfile.open(tmp_path / "box.hutch") as tar:
        manifest = tar.extractfile("hutch.json")
        assert manifest is not None and json.load(manifest)["version"] == 1


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("checkpoints/0/workspace/x", tarfile.LNKTYPE, "/etc/passwd"),
        ("checkpoints/0/workspace/x", tarfile.LNKTYPE, "../../etc/passwd"),
        ("checkpoints/0/workspace/x", tarfile.LNKTYPE, "workspace/missing"),
        ("checkpoints/0/workspace/../../x", tarfile.REGTYPE, ""),
        ("checkpoints/../x", tarfile.REGTYPE, ""),
        ("checkpoints/0/other/x", tarfile.REGTYPE, ""),
        ("checkpoints/0/workspace", tarfile.SYMTYPE, "/"),
        ("checkpoints", tarfile.SYMTYPE, "/"),
    ],
)
async def test_a_hostile_file_is_refused(tmp_path: Path, name: str, kind: bytes, link: str) -> None:
    manifest = {
        "version": 2, "box_id": "x" * 20, "provider": "native", "image": "host", "exported_at": 0.0, "spec": {},
        "parts": [], "checkpoints": [{"name": "c", "created_at": 0.0, "trees": ["workspace"]}],
    }  # fmt: skip
    with tarfile.open(tmp_path / "bad.hutch", "w:gz") as tar:
        for each, content in (("hutch.json", json.dumps(manifest).encode()), (name, b"")):
            entry = tarfile.TarInfo(each)
            entry.size = len(content)
            if each == name:
                entry.type, entry.linkname = kind, link
            tar.addfile(entry, io.BytesIO(content))
    async with Hutch() as hutch:
        with pytest.raises(Invalid):
            await hutch.import_box(tmp_path / "bad.hutch")
        assert await hutch.boxes() == ()
    assert [path.name for path in tmp_path.iterdir()] == ["bad.hutch"], "nothing was left beside it"


def test_a_link_of_a_box_leads_no_comparison_out_of_its_tree(tmp_path: Path) -> None:
    """Trees come from boxes: where one has a directory, another may have a link to a directory of the machine."""
    outside, linked, plain = tmp_path / "outside", tmp_path / "linked", tmp_path / "plain"
    for directory in (outside, linked, plain / "a"):
        directory.mkdir(parents=True)
    (linked / "a").symlink_to(outside)
    for directory in (outside, plain / "a"):
        (directory / "x").write_text("same")
    checkpoint_history._share(linked, plain)
    assert (plain / "a" / "x").stat().st_nlink == 1, "it became a name of the machine's own file"
    gone, _ = checkpoint_history._changes(linked, plain, tmp_path / "draft")
    assert gone == ["a"] and (tmp_path / "draft" / "a" / "x").read_text() == "same"
