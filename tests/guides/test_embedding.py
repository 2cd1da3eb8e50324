"""The snippets of docs/guides/embedding.md do what the guide says; the lifecycle guide shows the code's own table."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "embedding.md").read_text()


def snippets() -> list[str]:
    return [block.split("```")[0] for block in GUIDE.split("```python\n")[1:]]


PROOF = """
    assert await on_message(1, "open('x', 'w').write('kept'); print('ok')") == "ok\\n"
    assert await on_message(1, "print(open('x').read())") == "kept\\n"
    assert "FileNotFoundError" in await on_message(2, "open('x')")
    assert await on_group_message(7, 1, "echo hi > f; cat f") == "hi\\n"
    assert await on_group_message(7, 2, "cat f") == ""
    for box in await hutch.boxes():  # conversations outlive their program
        await hutch.destroy(box.id, force=True)
"""
"""What the guide says of its functions; they live inside its `async with`, and so does this."""


async def test_the_snippets_are_one_program_that_runs_as_it_stands(capsys: Any) -> None:
    """Not a line is left out or added to, from the import to the last snippet."""
    program = "".join(snippets()) + PROOF
    assert program.startswith("from hutch import Hutch\n\nasync with Hutch() as hutch:\n")
    compiled = compile(program, "embedding.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(compiled, {})
    printed = capsys.readouterr().out
    assert "# Findings" in printed and "Your files are in /workspace." in printed and "is gone: call" in printed


def test_the_lifecycle_guide_shows_the_codes_own_table() -> None:
    checked = subprocess.run([sys.executable, str(ROOT / "tools" / "state_picture.py"), "--check"], check=False)
    assert checked.returncode == 0, "run tools/state_picture.py"
