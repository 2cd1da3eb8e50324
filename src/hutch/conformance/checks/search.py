"""Finding things: glob, grep and watch, with whole answers or answers that say that they are not (lesson 20)."""

import asyncio

from hutch.conformance.claims import holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import FileMissing, Invalid
from hutch.model.files import Change
from hutch.providers.base import Instance

TREE = """mkdir -p src/a/b .git
touch top.py src/one.py src/a/two.py src/a/b/three.py src/a/b/notes.txt
touch .git/config.py src/.hidden.py 'src/odd name.py'"""


@check("search")
async def check_glob(bench: Workbench) -> None:
    """`**` crosses any number of directories, none too; `*` stays in one."""
    async with bench.plain_box() as box:
        await bench.output(box, TREE)
        found = await box.files.glob("src/**/*.py")
        wanted = {"src/one.py", "src/a/two.py", "src/a/b/three.py", "src/odd name.py"}
        same((set(found.paths), found.complete), (wanted, True), "src/**/*.py")
        same(set((await box.files.glob("src/*.py")).paths), {"src/one.py", "src/odd name.py"}, "src/*.py")
        below = await box.files.glob("**/t*.py", root="src")
        same(set(below.paths), {"src/a/two.py", "src/a/b/three.py"}, "below a root, as paths that can be read")
        same((await box.files.glob("*.none")).paths, (), "a pattern that matches nothing")


@check("search")
async def check_glob_hidden(bench: Workbench) -> None:
    """Hidden names match only a pattern that names the dot."""
    async with bench.plain_box() as box:
        await bench.output(box, TREE)
        same(set((await box.files.glob("**/*.py")).paths) & {".git/config.py", "src/.hidden.py"}, set(), "hidden names")
        same((await box.files.glob("src/.*.py")).paths, ("src/.hidden.py",), "src/.*.py")
        same((await box.files.glob(".git/*")).paths, (".git/config.py",), ".git/*")
        holds("src/.hidden.py" not in (await box.files.glob("src/*")).paths, "* matched a hidden name")


@check("search")
async def check_glob_bound(bench: Workbench) -> None:
    """A glob that met its bound returns what it has and says that there is more."""
    async with bench.plain_box() as box:
        await bench.output(box, "mkdir many; cd many; touch $(seq 1 50)")
        found = await box.files.glob("many/*", limit=10)
        same((len(found.paths), found.complete), (10, False), "paths and complete")
        holds(found.note, "a bounded answer carries no note")
        same((await box.files.glob("many/*", limit=50)).complete, True, "complete when the bound was just enough")


@check("search")
async def check_grep(bench: Workbench) -> None:
    """A grep finds lines by regular expression, with path, number and text, in every directory below its root."""
    async with bench.plain_box() as box:
        await box.files.write("d/one.py", "import os\ndef find(): pass\n")
        await box.files.write("d/e/two.txt", "nothing\n\ndef found(self):\n")
        result = await box.files.grep(r"def fo?[iu]nd?\w*\(")
        hits = {(hit.path, hit.line, hit.text.rstrip("\n")) for hit in result.hits}
        same(hits, {("d/one.py", 2, "def find(): pass"), ("d/e/two.txt", 3, "def found(self):")}, "hits")
        same((result.complete, result.files_searched), (True, 2), "complete and files searched")


@check("search")
async def check_grep_options(bench: Workbench) -> None:
    """A grep can be narrowed to a glob and to a root, and ignore case; a wrong expression is Invalid."""
    async with bench.plain_box() as box:
        await box.files.write("a.py", "Needle\n")
        await box.files.write("d/b.py", "needle\n")
        await box.files.write("d/c.txt", "needle\n")
        same([hit.path for hit in (await box.files.grep("needle", glob="**/*.py")).hits], ["d/b.py"], "with a glob")
        paths = {hit.path for hit in (await box.files.grep("needle", ignore_case=True, glob="**/*.py")).hits}
        same(paths, {"a.py", "d/b.py"}, "ignoring case")
        same({hit.path for hit in (await box.files.grep("needle", root="d")).hits}, {"d/b.py", "d/c.txt"}, "in a root")
        with raises(Invalid, what="a wrong expression"):
            await box.files.grep("(unclosed")
        with raises(FileMissing, what="a root that is missing"):
            await box.files.grep("x", root="missing")


@check("search")
async def check_grep_bound(bench: Workbench) -> None:
    """A grep that met its bound returns the hits it has and says that there are more."""
    async with bench.plain_box() as box:
        await bench.output(box, "seq 1 100 >numbers")
        result = await box.files.grep(r"\d", limit=7)
        same((len(result.hits), result.complete), (7, False), "hits and complete")
        holds(result.note, "a bounded answer carries no note")


@check("search")
async def check_grep_binary(bench: Workbench) -> None:
    """Binary files and lines that are no UTF-8 neither break a grep nor hide the hits of others."""
    async with bench.plain_box() as box:
        await box.files.write("binary", bytes(range(256)) * 10)
        await box.files.write("latin", b"caf\xe9 needle\n")
        await box.files.write("plain", b"needle\n")
        paths = {hit.path for hit in (await box.files.grep("needle")).hits}
        same(paths, {"latin", "plain"}, "paths")


@check("search", needs="watch")
async def check_watch(bench: Workbench) -> None:
    """A watch reports what is created, modified, moved and deleted from the moment it is in place."""
    async with bench.plain_box() as box:
        await bench.output(box, "mkdir d; echo old >d/before")
        seen = await _changes(
            bench, box, "d",
            "echo x >d/new; echo y >>d/before; mv d/new d/moved; rm d/moved; touch d/last",
            last="d/last",
        )  # fmt: skip
        wanted = [("d/new", "created"), ("d/before", "modified"), ("d/new", "moved_from"), ("d/moved", "moved_to"),
                  ("d/moved", "deleted"), ("d/last", "created")]  # fmt: skip
        reported = [(change.path, change.kind) for change in seen]
        same(
            [each for each in wanted if each not in reported],
            [],
            f"changes that were not reported, only {reported}",
        )
        same(
            [kind for path, kind in reported if path == "d/before" and kind == "created"],
            [],
            "old files were reported as new",
        )


@check("search", needs="watch")
async def check_watch_deep(bench: Workbench) -> None:
    """A recursive watch also sees what happens in directories that are made while it watches."""
    async with bench.plain_box() as box:
        await bench.output(box, "mkdir d")
        seen = await _changes(
            bench, box, "d", "mkdir -p d/x/y; echo 1 >d/x/y/file; sleep 0.05; touch d/last", last="d/last"
        )
        reported = {(change.path, change.directory) for change in seen if change.kind == "created"}
        holds(
            {("d/x", True), ("d/x/y", True), ("d/x/y/file", False)} <= reported,
            f"only these were reported: {sorted(reported)}",
        )


@check("search", needs="watch")
async def check_watch_flat(bench: Workbench) -> None:
    """A watch that is not recursive keeps to its directory; watching a missing one is FileMissing."""
    async with bench.plain_box() as box:
        await bench.output(box, "mkdir -p d/sub")
        seen = await _changes(bench, box, "d", "touch d/sub/deeper d/last", last="d/last", recursive=False)
        holds("d/sub/deeper" not in {change.path for change in seen}, "a change in a subdirectory was reported")
        with raises(FileMissing, what="watching a missing directory"):
            await anext(aiter(box.files.watch("missing")))


async def _changes(
    bench: Workbench, box: Instance, path: str, script: str, *, last: str, recursive: bool = True
) -> list[Change]:
    """Return what a watch reports while the script runs, up to the change of the file `last`."""
    changes = aiter(box.files.watch(path, recursive=recursive))
    seen: list[Change] = []
    first = asyncio.ensure_future(anext(changes))
    try:
        async with bench.within(f"the change of {last}"):
            # The watch is in place soon after the first item is awaited: a file is touched until it is reported.
            while not first.done():
                await bench.output(box, ("touch", f"{path}/probe"))
                await asyncio.wait([first], timeout=0.05)
            await bench.output(box, script)
            seen.append(first.result())
            while seen[-1].path != last:
                seen.append(await anext(changes))
    finally:
        first.cancel()
        close = getattr(changes, "aclose", None)
        if close is not None:
            await close()
    return seen
