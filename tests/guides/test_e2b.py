"""docs/guides/e2b.md: its program runs as it stands, and its table is what the tests prove (S13)."""

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.e2b_sdk import E2B
from tests.server.serving import serving

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "e2b.md").read_text()


def test_the_program_of_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    """(S13) With the three variables set, a program made for E2B runs in a box."""
    (block,) = [text.split("```")[0] for text in GUIDE.split("```python\n")[1:]]
    program = tmp_path / "program.py"
    program.write_text(block)
    with serving() as server:
        key = subprocess.run(
            [sys.executable, "-m", "hutch.cli.main", "key", "create", "--e2b", "--role", "admin"],
            env={**os.environ, "HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)},
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        environment = {**os.environ, **E2B(server).environment, "E2B_API_KEY": key}
        done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello from ") and done.stdout.endswith("kept while the sandbox lives\n")


def test_the_table_is_what_the_tests_prove() -> None:
    """(S13) Nothing is promised that no test drives."""
    done = subprocess.run([sys.executable, "tools/e2b_table.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
