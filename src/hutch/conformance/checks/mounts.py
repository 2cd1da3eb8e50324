"""Mounts: the host's places that an order names, as it names them, pinned to what policy had checked (lesson 27)."""

import os
from pathlib import Path

from hutch.conformance.claims import holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench, pinned
from hutch.errors import EngineError, FileMissing, NotFound, Refused
from hutch.model.spec import Mount, MountMode, Workspace


@check("mounts", needs="mounts")
async def check_read_only(bench: Workbench) -> None:
    """A read-only mount shows the host's files as they are now, and nobody in the box can change them."""
    source = _directory(bench)
    mount = Mount(source=str(source), target="/data", mode=MountMode.RO)
    async with bench.box(mounts=(mount,)) as box:
        same(await bench.output(box, ("cat", "/data/file")), b"of the host", "content")
        (source / "later").write_text("later")
        same(await bench.output(box, ("cat", "/data/later")), b"later", "a file made on the host afterwards")
        for script in ("echo x >/data/file", "touch /data/new", "rm -f /data/file; test ! -e /data/file"):
            holds(
                (await bench.run(box, ("sh", "-c", script))).exit_code != 0, f"{script!r} worked on a read-only mount"
            )
    same((source / "file").read_text(), "of the host", "the host's file")
    same(sorted(os.listdir(source)), ["file", "later"], "files on the host")


@check("mounts", needs="mounts")
async def check_writable(bench: Workbench) -> None:
    """What is written to a writable mount is on the host, and stays there when the box is gone."""
    source = _directory(bench)
    async with bench.box(mounts=(Mount(source=str(source), target="/data", mode=MountMode.RW),)) as box:
        await bench.output(box, "echo from the box >/data/new")
        await box.files.write("/data/by-files", b"x")
    same((source / "new").read_text(), "from the box\n", "the file on the host")
    same((source / "by-files").read_bytes(), b"x", "the file on the host")


@check("mounts", needs="mounts")
async def check_one_file(bench: Workbench) -> None:
    """A single file can be mounted, and its neighbours are not seen."""
    source = _directory(bench)
    (source / "neighbour").write_text("hidden")
    mount = Mount(source=str(source / "file"), target="/workspace/config/file", mode=MountMode.RO)
    async with bench.box(mounts=(mount,)) as box:
        same(await bench.output(box, ("cat", "config/file")), b"of the host", "content")
        same(await bench.output(box, ("ls", "config")), b"file\n", "names beside it")


@check("mounts", needs="mounts")
async def check_missing_source(bench: Workbench) -> None:
    """A source that is gone is an error before anything is made; it is never made up (B11)."""
    source = _directory(bench)
    spec = bench.spec(mounts=(Mount(source=str(source), target="/data"),))
    order = bench.order(mounts=spec.mounts, places=pinned(spec))
    (source / "file").unlink()
    source.rmdir()
    planned = bench.provider.plan(order)
    with raises(Refused, NotFound, FileMissing, EngineError, what="mounting what is gone"):
        box = await bench.provider.create(order, planned)
        await bench.provider.destroy(box.record)
    holds(not source.exists(), "the missing source was made on the host")
    same(await bench.listed(planned), False, "whether the refused box is listed")


@check("mounts", needs="mounts")
async def check_swapped_source(bench: Workbench) -> None:
    """A source that is no longer what policy checked is refused: a name may be swapped, an inode may not."""
    source = _directory(bench)
    spec = bench.spec(mounts=(Mount(source=str(source), target="/data"),))
    order = bench.order(mounts=spec.mounts, places=pinned(spec))
    secret = bench.scratch / "secret"
    secret.mkdir()
    source.rename(bench.scratch / "aside")
    source.symlink_to(secret)
    planned = bench.provider.plan(order)
    with raises(Refused, NotFound, FileMissing, EngineError, what="mounting what was swapped"):
        box = await bench.provider.create(order, planned)
        await bench.provider.destroy(box.record)
    same(await bench.listed(planned), False, "whether the refused box is listed")


@check("mounts", needs="mounts")
async def check_workspace_of_the_host(bench: Workbench) -> None:
    """A workspace can be a directory of the host; what the box writes there is on the host."""
    source = _directory(bench)
    async with bench.box(workspace=Workspace(source=str(source))) as box:
        same(await bench.output(box, ("cat", "file")), b"of the host", "content")
        await box.files.write("new", b"from the box")
    same((source / "new").read_bytes(), b"from the box", "the file on the host")


@check("mounts", needs="mounts")
async def check_several(bench: Workbench) -> None:
    """Several mounts keep their own modes, also one inside the other."""
    outer, inner = _directory(bench), _directory(bench, "inner")
    (outer / "in").mkdir()
    mounts = (
        Mount(source=str(outer), target="/data", mode=MountMode.RO),
        Mount(source=str(inner), target="/data/in", mode=MountMode.RW),
    )
    async with bench.box(mounts=mounts) as box:
        holds((await bench.run(box, ("touch", "/data/new"))).exit_code != 0, "the outer mount is writable")
        await bench.output(box, ("touch", "/data/in/new"))
    holds((inner / "new").exists(), "the inner mount's file is not on the host")


def _directory(bench: Workbench, name: str = "source") -> Path:
    path = bench.scratch / name
    path.mkdir()
    path.chmod(0o777)
    (path / "file").write_text("of the host")
    return path
