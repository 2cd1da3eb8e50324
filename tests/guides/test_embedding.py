"""The snippets of docs/guides/embedding.md do what the guide says; the lifecycle guide shows the code's own table."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from hutch import Hutch

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "embedding.md").read_text()


def snippets() -> list[str]:
    return [block.split("```")[0] for block in GUIDE.split("```python\n")[1:]]


async def run(code: str, names: dict[str, Any]) -> None:
    """Compile a snippet as the body of a coroutine would be, and let it define its functions in `names`."""
    compiled = compile(textwrap.dedent(code), "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if result is not None:
        await result


async def test_each_snippet_works(capsys: Any) -> None:
    first, second, third = snippets()
    async with Hutch() as hutch:
        names: dict[str, Any] = {"hutch": hutch, "Hutch": Hutch}
        await run(first.split("async with Hutch() as hutch:\n")[1], names)
        assert await names["on_message"](1, "open('x', 'w').write('kept'); print('ok')") == "ok\n"
        assert await names["on_message"](1, "print(open('x').read())") == "kept\n"
        assert "FileNotFoundError" in await names["on_message"](2, "open('x')")
        await run(second, names)
        assert await names["on_group_message"](7, 1, "echo hi > f; cat f") == "hi\n"
        assert await names["on_group_message"](7, 2, "cat f") == ""
        await run(third, names)
        assert "# Findings" in capsys.readouterr().out


def test_the_lifecycle_guide_shows_the_codes_own_table() -> None:
    checked = subprocess.run([sys.executable, str(ROOT / "tools" / "state_picture.py"), "--check"], check=False)
    assert checked.returncode == 0, "run tools/state_picture.py"
