"""The Python kernel on an earlier IPython, such as the one that a distribution packages (S5)."""

import json
import subprocess
from pathlib import Path

from hutch.kernels.programs.start import program
from hutch.model.code import Language
from tests.e2e.environments import python_of

DEBIAN_12 = "ipython==8.5.0"
CODE = (
    "%pwd", "!echo from the shell", "import asyncio\nawait asyncio.sleep(0, 'awaited')",
    "from IPython.display import HTML\nHTML('<b>shown</b>')", "%bookmark -l", "1 / 0", "'still here'",
)  # fmt: skip


def test_an_earlier_ipython_runs_code_and_makes_no_profile(tmp_path: Path) -> None:
    """(S5) Magics, commands, top-level await, displays and errors work; nothing is left in the user's home."""
    python, kernel = python_of(DEBIAN_12), program(Language.PYTHON)
    requests = [json.dumps({"op": "run", "run": run, "code": code}) for run, code in enumerate(CODE)]
    done = subprocess.run(
        [python, *kernel.argv[1:]], input=kernel.first + "\n".join([*requests, ""]).encode(), capture_output=True,
        cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, timeout=120,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers and answers[0] == {"type": "ready", "version": answers[0]["version"], "notes": []}, done.stderr
    shown = {each["run"]: each["data"] for each in answers if each["type"] == "display"}
    assert [shown[run]["text/plain"] for run in (0, 2, 6)] == [repr(str(tmp_path)), "'awaited'", "'still here'"]
    assert shown[3]["text/html"] == "<b>shown</b>"
    printed = "".join(each["text"] for each in answers if each["type"] == "stream" and each["run"] == 1)
    assert printed == "from the shell\n"
    errors = [each["error"] for each in answers if each["type"] == "done"]
    assert [error and error["name"] for error in errors] == [None] * 5 + ["ZeroDivisionError", None], errors
    assert "1 / 0" in errors[5]["traceback"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
