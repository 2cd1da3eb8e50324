"""Finding files by name and by content."""

import os
import re
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guest.run_operation import rows, run

from hutch.guest.files.driver import OPERATIONS
from hutch.guest.files.patterns import Pattern, expand
from hutch.guest.operations import Failure, Readable


def make(base: Path, *paths: str) -> None:
    for path in paths:
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).mkdir(exist_ok=True) if path.endswith("/") else (base / path).touch()


def glob(workdir: Path, pattern: str, root: str = ".", **fields: Any) -> list[str]:
    return rows(run("glob", workdir, pattern=pattern, root=root, **fields)[1])


Hit = tuple[str, int, str]


def grep(workdir: Path, pattern: str, root: str = ".", **fields: Any) -> tuple[list[Hit], dict[str, Any]]:
    """Return the hits and the final line."""
    reply, content = run("grep", workdir, pattern=pattern, root=root, **fields)
    hits: list[Hit] = []
    last: dict[str, Any] = {}
    for row in rows(content):
        if "path" in row:
            hits.append((row["path"], row["line"], row["text"]))
        else:
            last.update(row)
    return hits, {**reply, **last}


TREE = (
    "setup.py", "src/a.py", "src/pkg/b.py", "src/pkg/deep/c.py", "src/pkg/deep/c.txt", "src/.hidden/d.py", "src/.e.py",
    "docs/", "test[1].py", "a-b/x", "a/x", "a/b/x",
)  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["setup.py", "test[1].py"]),
        ("src/**/*.py", ["src/a.py", "src/pkg/b.py", "src/pkg/deep/c.py"]),
        ("**/*.py", ["setup.py", "src/a.py", "src/pkg/b.py", "src/pkg/deep/c.py", "test[1].py"]),
        ("**/deep/**", ["src/pkg/deep/c.py", "src/pkg/deep/c.txt"]),
        ("**/**/c.*", ["src/pkg/deep/c.py", "src/pkg/deep/c.txt"]),
        ("src/*/b.py", ["src/pkg/b.py"]),
        ("src/.*", ["src/.e.py", "src/.hidden"]),
        ("src/.hidden/*", ["src/.hidden/d.py"]),
        ("**/.*.py", ["src/.e.py"]),
        ("*/", ["a", "a-b", "docs", "src"]),
        ("src/**/", ["src/pkg", "src/pkg/deep"]),
        ("test[[]1].py", ["test[1].py"]),
        ("test\\[1\\].py", ["test[1].py"]),
        ("{setup,nothing,test*}.py", ["setup.py", "test[1].py"]),
        ("src/{a,pkg/{b,deep/c}}.py", ["src/a.py", "src/pkg/b.py", "src/pkg/deep/c.py"]),
        ("{a,a-b}/**", ["a/b", "a/b/x", "a/x", "a-b/x"]),
        ("src/pkg/../a.py", ["src/pkg/../a.py"]),
        ("./src/?.py", ["src/a.py"]),
        ("src/[!b-z].py", ["src/a.py"]),
        ("missing/**", []),
        ("setup.py/*", []),
    ],
)  # fmt: skip
def test_glob_patterns_match(tmp_path: Path, pattern: str, found: list[str]) -> None:
    """`src/**/*.py` finds files at every depth (lesson 20)."""
    make(tmp_path, *TREE)
    assert glob(tmp_path, pattern) == found


def test_glob_from_a_root_gives_paths_from_the_workdir(tmp_path: Path) -> None:
    make(tmp_path, *TREE)
    assert glob(tmp_path, "**/*.py", "src/pkg") == ["src/pkg/b.py", "src/pkg/deep/c.py"]
    whole = str(tmp_path / "src")
    assert glob(Path("/"), "*.py", whole) == [whole + "/a.py"]
    assert glob(Path("/"), f"{whole}/*.py") == [whole + "/a.py"]
    with pytest.raises(Failure) as caught:
        glob(tmp_path, "*", "missing")
    assert caught.value.code == "file_not_found"


def test_glob_stops_at_its_limit_and_says_so(tmp_path: Path) -> None:
    make(tmp_path, *(f"f{number:04}" for number in range(1000)))
    reply, content = run("glob", tmp_path, pattern="*", root=".", limit=10)
    assert rows(content) == [f"f{number:04}" for number in range(10)]
    assert "limit of 10" in reply["notes"][0]
    assert run("glob", tmp_path, pattern="*", root=".", limit=1000)[0]["notes"] == []


def test_glob_does_not_go_round_in_symlinks(tmp_path: Path) -> None:
    make(tmp_path, "d/file")
    (tmp_path / "d/up").symlink_to("..")
    (tmp_path / "link").symlink_to("d")
    assert glob(tmp_path, "**/file") == ["d/file"]
    assert glob(tmp_path, "link/*") == ["link/file", "link/up"]
    assert glob(tmp_path, "**/up/d/file") == ["d/up/d/file"]
    assert glob(tmp_path, "**/") == ["d", "d/up", "link"]


def test_glob_patterns_cannot_explode(tmp_path: Path) -> None:
    make(tmp_path, "a" * 250)
    assert glob(tmp_path, "*a" * 100 + "b") == []
    assert glob(tmp_path, "{" * 1000 + ",") == []
    for pattern in ("{a,b}" * 20, "x" * 5000, "", "/", "a\0"):
        with pytest.raises(Failure) as caught:
            glob(tmp_path, pattern)
        assert caught.value.code == "invalid"


NAMES = st.sampled_from(["a", "b", "ab", ".a", "a.py", "ba"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = st.sampled_from(["**", "*", "a", "?", "*.py", "a*", ".*", "[ab]", "[!a]*", "{a,b}", "*b*", ".a"])
PATTERNS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


def oracle(pattern: str, path: str) -> bool:
    """The definition by recursion over both, slow and simple."""
    return any(_oracle(choice.split("/"), path.split("/")) for choice in expand(pattern))


def _oracle(parts: list[str], names: list[str]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        if (
            names
            and not names[0].startswith(".")
            and (_oracle(parts, names[1:]) or (parts == ["**"] and len(names) == 1))
        ):
            return True
        return len(parts) > 1 and _oracle(parts[1:], names)
    return bool(names) and _one(parts[0], names[0]) and _oracle(parts[1:], names[1:])


def _one(part: str, name: str) -> bool:
    if name.startswith(".") and not part.startswith("."):
        return False
    expression = re.sub(r"\[!", "[^", part.replace(".", r"\.").replace("*", ".*").replace("?", "."))
    return re.fullmatch(expression, name) is not None


@given(paths=st.lists(PATHS, max_size=8), pattern=PATTERNS)
def test_glob_agrees_with_its_definition(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], pattern: str
) -> None:
    """It agrees on random trees and patterns (lesson 20)."""
    base = tmp_path_factory.mktemp("glob")
    every: set[str] = set()
    for path in paths:
        (base / path).mkdir(parents=True, exist_ok=True)
        every |= {path, *(str(parent) for parent in PurePosixPath(path).parents)} - {"."}
    wanted = sorted((path for path in every if oracle(pattern, path)), key=lambda path: path.split("/"))
    assert glob(base, pattern) == wanted
    assert [path for path in wanted if not Pattern(pattern).matches(path)] == []


def test_grep(tmp_path: Path) -> None:
    make(tmp_path, "src/.hidden/", ".git/")
    (tmp_path / "a.py").write_bytes(b"import os\r\nprint(os)\r\n\xff os\n")
    (tmp_path / "src/b.txt").write_bytes(b"OS again\nlast os")
    (tmp_path / "src/.hidden/c.py").write_bytes(b"os\n")
    (tmp_path / ".git/config").write_bytes(b"os\n")
    (tmp_path / "binary").write_bytes(b"os\n\0")
    (tmp_path / "link").symlink_to("a.py")
    os.mkfifo(tmp_path / "fifo")
    hits, end = grep(tmp_path, "os$")
    assert hits == [
        ("a.py", 1, "import os"),
        ("a.py", 3, "\N{REPLACEMENT CHARACTER} os"),
        ("src/.hidden/c.py", 1, "os"),
        ("src/b.txt", 2, "last os"),
    ]
    assert (end["timed_out"], end["searched"], end["notes"]) == (False, 3, [])
    assert len(grep(tmp_path, "os", ignore_case=True)[0]) == 6
    assert [hit[0] for hit in grep(tmp_path, "os", glob="*.txt")[0]] == ["src/b.txt"]
    assert [hit[0] for hit in grep(tmp_path, "os", glob="**/b.*")[0]] == ["src/b.txt"]
    assert [hit[0] for hit in grep(tmp_path, "os", root="src/b.txt")[0]] == ["src/b.txt"]
    assert [hit[0] for hit in grep(tmp_path, "os", root=".git")[0]] == [".git/config"]
    assert grep(tmp_path, "os", root="fifo")[0] == []
    with pytest.raises(Failure):
        grep(tmp_path, "os", glob="{a,b}" * 20)


def test_grep_says_what_it_cannot_do(tmp_path: Path) -> None:
    assert grep(tmp_path, "(")[1]["failed"]["code"] == "invalid"
    assert grep(tmp_path, "x", root="missing")[1]["failed"]["code"] == "file_not_found"
    for fields in ({"timeout_sec": 0}, {"timeout_sec": "x"}, {"timeout_sec": float("inf")}, {"limit": 0}):
        with pytest.raises(Failure):
            grep(tmp_path, "x", **fields)


def test_grep_stops_at_its_limit_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x\n" * 100)
    hits, end = grep(tmp_path, "x", limit=7)
    assert [hit[1] for hit in hits] == list(range(1, 8))
    assert "limit of 7" in end["notes"][0]
    assert grep(tmp_path, "x", limit=100)[1]["notes"] == []


def test_long_lines_are_clipped_around_the_match(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 50_000 + b"needle" + "ü".encode() * 50_000 + b"\nneedle\n")
    (tmp_path / "huge").write_bytes(b"z" * (3 << 20) + b"needle\nneedle\n")
    hits, _ = grep(tmp_path, "needle")
    assert [(path, line) for path, line, _ in hits] == [("file", 1), ("file", 2), ("huge", 1), ("huge", 2)]
    assert all("needle" in text and len(text) <= 1000 for _, _, text in hits)


def test_a_catastrophic_expression_ends_at_the_timeout_with_what_was_found(tmp_path: Path) -> None:
    """Partial results are returned and marked as such (lesson 20)."""
    (tmp_path / "a").write_bytes(b"aab\n")
    (tmp_path / "b").write_bytes(b"a" * 5000 + b"\n")
    hits, end = grep(tmp_path, "(a+)+b$", timeout_sec=1.0)
    assert hits == [("a", 1, "aab")]
    assert end["timed_out"] is True


def test_a_caller_that_disconnects_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"a" * 5000 + b"\n")
    descriptors = len(os.listdir("/proc/self/fd"))
    steps: Any = OPERATIONS["files.grep"]({"pattern": "(a+)+b$", "root": ".", "timeout_sec": 100}, str(tmp_path))
    assert isinstance(next(steps), Readable)
    steps.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    deadline = time.monotonic() + 20
    while os.waitpid(-1, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline, "the child goes on searching"
        time.sleep(0.01)
