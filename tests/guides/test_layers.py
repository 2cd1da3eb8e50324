"""The snippets of docs/guides/layers.md do what the guide says."""

from pathlib import Path
from typing import Any

from tests.guides.test_tools import run

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "layers.md").read_text()


async def test_each_snippet_works(capsys: Any) -> None:
    first, attempts, race = [block.split("```")[0] for block in GUIDE.split("```python\n")[1:]]
    names: dict[str, Any] = {}
    await run(first, names)
    assert capsys.readouterr().out == "['added /workspace/other', 'removed /workspace/plan.md']\nfirst draft\n\n"
    await run(attempts, names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["False", "False", "True"]
    assert "/workspace/test_add.py" in lines[1], "the failed attempt says what it had removed"
    await run(race, names)
    assert capsys.readouterr().out == "sort (4, 0, 4, 0, 1)\n1\n3\n5\n7\n9\n\n" or names["race"].winner in (0, 2)
    assert names["race"].scores[:2] == (4, 0)
