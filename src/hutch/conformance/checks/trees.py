"""Copies of files and trees between host and box, streamed, with nothing written outside the target."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from hutch.conformance.claims import holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench

ODD = "odd\nname ž"


@check("trees")
async def check_file_in(bench: Workbench) -> None:
    """A host file is copied to the path that is named, byte for byte and with its execute bit."""
    source = bench.scratch / "script"
    source.write_bytes(b"#!/bin/sh\nprintf copied\n#\xff")
    source.chmod(0o755)
    async with bench.plain_box() as box:
        same(await box.files.copy_in(source, "bin/tool"), source.stat().st_size, "bytes copied")
        same(await box.files.read("bin/tool"), source.read_bytes(), "content")
        same(await bench.output(box, ("./bin/tool",)), b"copied", "output of the copied script")


@check("trees")
async def check_tree_in(bench: Workbench) -> None:
    """A host tree arrives whole: directories, also empty ones, odd names, links as links; the user owns it."""
    source = bench.scratch / "tree"
    _plant(source)
    async with bench.plain_box() as box:
        await box.files.copy_in(source, "copy")
        same(await box.files.read("copy/deep/er/file"), b"deep", "a file deep down")
        same(await box.files.read(f"copy/{ODD}"), b"odd", "a file with an odd name")
        same((await box.files.stat("copy/link")).target, "deep/er/file", "target of the link")
        same(await box.files.list("copy/empty"), [], "the empty directory")
        await bench.output(box, "echo more >>copy/deep/er/file && touch copy/empty/new")


@check("trees")
async def check_tree_out(bench: Workbench) -> None:
    """A tree of the box arrives whole on the host, and the caller owns it."""
    target = bench.scratch / "out"
    async with bench.plain_box() as box:
        await bench.output(box, "mkdir -p t/deep/er t/empty; printf deep >t/deep/er/file; ln -s deep/er/file t/link")
        await box.files.write(f"t/{ODD}", b"odd")
        await bench.output(box, ("chmod", "755", "t/deep/er/file"))
        await box.files.copy_out("t", target)
    same((target / "deep/er/file").read_bytes(), b"deep", "a file deep down")
    same((target / ODD).read_bytes(), b"odd", "a file with an odd name")
    same(os.readlink(target / "link"), "deep/er/file", "target of the link")
    holds((target / "empty").is_dir(), "the empty directory is not there")
    holds((target / "deep/er/file").stat().st_mode & 0o100, "the execute bit is lost")
    same((target / "deep").stat().st_uid, os.geteuid(), "owner of a copied directory")


@check("trees")
async def check_file_out(bench: Workbench) -> None:
    """A file of the box is copied to the path that is named; a large one too."""
    target = bench.scratch / "file"
    async with bench.plain_box() as box:
        await bench.output(box, "seq 1 1000000 >numbers")
        same(await box.files.copy_out("numbers", target), 6_888_896, "bytes copied")
        digest = await box.files.digest("numbers")
    same(hashlib.sha256(target.read_bytes()).hexdigest(), digest, "digest of the copy")


@check("trees")
async def check_missing(bench: Workbench) -> None:
    """Copying what is not there is FileNotFoundError on both sides, and makes nothing."""
    async with bench.plain_box() as box:
        with raises(FileNotFoundError, what="copying in a missing file"):
            await box.files.copy_in(bench.scratch / "missing", "target")
        same(await box.files.exists("target"), False, "whether a target was made in the box")
        with raises(FileNotFoundError, what="copying out a missing file"):
            await box.files.copy_out("missing", bench.scratch / "target")
    same((bench.scratch / "target").exists(), False, "whether a target was made on the host")


@check("trees")
async def check_links_out(bench: Workbench) -> None:
    """A link in a tree that is copied out is never written through: the host's other files stay as they are."""
    victim = bench.scratch / "victim"
    victim.mkdir()
    (victim / "file").write_text("of the host")
    target = bench.scratch / "out"
    async with bench.plain_box() as box:
        script = 'mkdir t; ln -s "$1" t/a; ln -s "$1/file" t/file; mkdir t/b; printf stolen >t/b/file'
        await bench.output(box, ("sh", "-c", script, "sh", str(victim)))
        with suppress(PermissionError):  # a provider may also refuse such a tree
            await box.files.copy_out("t", target)
        # This copies once more over what the first copy left: now `a` may be a link on the host.
        await bench.output(box, "rm t/a t/file; mkdir t/a; printf stolen >t/a/file; printf stolen >t/file")
        with suppress(OSError):
            await box.files.copy_out("t", target)
    same((victim / "file").read_text(), "of the host", "the host's file")


def _plant(root: Path) -> None:
    (root / "deep/er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "deep/er/file").write_bytes(b"deep")
    (root / ODD).write_bytes(b"odd")
    (root / "link").symlink_to("deep/er/file")
