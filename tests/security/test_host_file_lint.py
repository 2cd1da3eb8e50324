"""Which modules open files of the host at all, read from the code: a new one has to say why it does (lesson 43).

A path that a caller sends goes through `policy.mounts.check_source` and `hutch.host_files`. What else opens files in
the rooms that serve callers opens Hutch's own, or serves the person who runs the process, and stands below with its
reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import hutch

SOURCE = Path(hutch.__file__).parent
ROOMS = ("keeper", "server", "mcp", "skills", "images")

ALLOWED = {
    "Hutch's own state: records, locks, announcements, registries": (
        "keeper/store/sqlite_files", "keeper/store/state_key", "keeper/takeover/heartbeat", "keeper/takeover/liveness",
        "keeper/takeover/prune",
        "server/discovery", "server/http/authority",
        "mcp/hosting/registry", "mcp/serving/scopes",
    ),
    "Hutch's own store of skills": (
        "skills/content", "skills/dependencies", "skills/packages", "skills/skill_index", "skills/staging",
        "skills/views", "keeper/skills/mounts", "keeper/skills/builds",
    ),
    "Hutch's own store of images": (
        "images/build", "images/build_cache", "images/layers/merged_view", "images/layers/unpack", "images/prune",
        "images/pull", "images/store", "images/uses",
    ),
    "a draft of Hutch's own: a body that was sent, a box on its way out": (
        "server/handlers/box/export", "keeper/archives/export", "keeper/archives/bundles",
        "keeper/archives/checkpoint_history",
    ),
    "the user's own paths, for the command line and programs that embed Hutch; no server calls it (see below)": (
        "images/archives", "images/credentials", "images/layers/diff", "keeper/access/files",
        "keeper/archives/backup", "mcp/hosting/client_files", "skills/sources",
    ),
    "below directories that the operator shares with LangBot; where a path really leads is checked on its descriptor": (
        "server/langbot/artifacts", "server/langbot/shared_roots",
    ),
    "directories of volumes, named by a digest; what boxes put into them is only counted, through no link": (
        "keeper/volumes",
    ),
    "files of the package itself": ("server/dashboard/pages",),
    "bytes in memory": ("skills/archives", "skills/store"),
    "descriptors of the opener": ("mcp/hosting/project_files",),
    "/dev/null": ("mcp/serving/stdio",),
    "/etc/os-release": ("images/base",),
}  # fmt: skip

OPENERS = frozenset(
    {
        "os.open", "os.scandir", "os.listdir", "os.walk", "os.readlink", "io.open", "shutil.copy", "shutil.copy2",
        "shutil.copyfile", "shutil.copytree", "tarfile.open", "zipfile.ZipFile", "sqlite3.connect", "open_as_user",
        "host_files.open_as_user", "os.fdopen",
    }
)  # fmt: skip
METHODS = frozenset({"read_text", "read_bytes", "iterdir", "rglob"})
"""Of `pathlib.Path`. Those of boxes' files that are called alike are calls on something named `files`."""

USERS_OWN = frozenset({"open_as_user", "from_file", "scan", "local_skills"})
USERS_MODULES = frozenset(f"hutch.{name}" for name in ("images.archives", "images.layers.diff", "images.build"))


def _modules(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for room in rooms:
        for path in sorted((SOURCE / room).rglob("*.py")):
            yield str(path.relative_to(SOURCE).with_suffix("")), ast.parse(path.read_text())


def _opens(tree: ast.Module) -> Iterator[int]:
    """Lines on which a path is opened or listed by its name. What starts at a descriptor (`dir_fd`) is no path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _opens_a_path(ast.unparse(node.func), node):
            yield node.lineno


def _opens_a_path(function: str, call: ast.Call) -> bool:
    if any(keyword.arg == "dir_fd" for keyword in call.keywords):
        return False
    if function == "open" or function in OPENERS:
        return True
    where, _, name = function.rpartition(".")
    of_a_box = where == "files" or where.endswith(".files")
    if name in METHODS:
        return not of_a_box
    handed_on = any(isinstance(each, ast.Name) and each.id == "open" for each in call.args)  # to a thread
    return handed_on or (name == "copy_in" and of_a_box)


def test_no_other_module_opens_a_path() -> None:
    """A module of these rooms that begins to open paths is seen here, and one that has stopped, too (lesson 43)."""
    known = {module for modules in ALLOWED.values() for module in modules}
    opening = {name: lines for name, tree in _modules(*ROOMS) if (lines := sorted(_opens(tree)))}
    beyond = {name: lines for name, lines in opening.items() if name not in known}
    assert not beyond, f"use hutch.host_files, or say in ALLOWED why not: {beyond}"
    assert known <= opening.keys(), f"no longer needed in ALLOWED: {sorted(known - opening.keys())}"


def test_no_server_opens_the_users_own_paths() -> None:
    """What reads with the rights of the person who runs the process is not called for anybody else (lesson 43)."""
    for name, tree in _modules("server", "mcp"):
        if name == "mcp/hosting/client_files":
            continue
        for node in ast.walk(tree):
            used = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert used not in USERS_OWN, f"{name}:{getattr(node, 'lineno', 0)} uses {used}"
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert not imported & USERS_MODULES, f"{name}:{node.lineno} imports {imported & USERS_MODULES}"


def test_the_lint_sees_what_it_looks_for() -> None:
    """The control: each way to open a path is found, and the opener's own is not."""
    for line in (
        "open(path)",
        "os.open(path, 0)",
        "Path(p).read_bytes()",
        "to_thread(open, p)",
        "box.files.copy_in(p)",
    ):
        assert list(_opens(ast.parse(line))), line
    for line in ("os.open(name, 0, dir_fd=top)", "tree.open(name)", "await box.files.read_text(path)"):
        assert not list(_opens(ast.parse(line))), line
