"""File operations import nothing late: once the box's root is entered, no Python module is left on disk."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, os, sys
from hutch.guest.files import driver, search
from hutch.guest.operations import Failure, Readable

workdir = sys.argv[1]
before = set(sys.modules)

def run(op, content=b"", steps=50, **fields):
    try:
        work = driver.OPERATIONS["files." + op](fields, workdir)
        if hasattr(work, "data"):
            work.data(content)
            work = work.end()
        if not isinstance(work, dict):
            for _ in range(steps):
                next(work)
            work.close()
    except (Failure, StopIteration):
        pass

for path in ("a/b", "missing", "\\udcff\\n", ".", "/proc/self/root/x"):
    run("write", b"text \\xff\\n", path=path, parents=True, sync=True)
    run("write", b"more", path=path, append=True)
    run("edit", b"textmore", old_size=4, path=path)
    for op in ("read", "lines", "digest", "stat", "exists", "list", "pack", "mkdir"):
        run(op, path=path)
    run("glob", pattern="**/[a-b]{x,*}?", root=path)
    run("unpack", b"nonsense\\n", path=path)
    run("move", source=path, target="moved")
    run("move", source="moved", target="/dev/shm/moved", overwrite=True)
    run("remove", path=path, recursive=True)
    run("remove", path="/dev/shm/moved", recursive=True)
    run("watch", steps=1, path=path, recursive=True)
run("write", b"text \\xff\\n", path="a")
null = os.open("/dev/null", os.O_WRONLY)
for pattern in ("te.t", "(", "\\udcff", "[[:odd", "(?i)\\\\bx|(?:y{2,3})+?"):
    search._Grep({"pattern": pattern, "root": ".", "glob": "*", "ignore_case": True}, workdir).run(null)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_nothing_is_imported_late(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
