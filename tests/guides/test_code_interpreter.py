"""The snippets of docs/guides/code-interpreter.md do what the guide says."""

from pathlib import Path
from typing import Any

import pytest

from tests.guides.test_tools import run
from tests.kernels.conftest import prepared

__all__ = ["prepared"]

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "code-interpreter.md").read_text()


@pytest.mark.usefixtures("prepared")
async def test_each_snippet_works(capsys: Any) -> None:
    """State, errors, an interrupt, a table, a plot and a live fork (S5)."""
    first, plot, fork = [block.split("```")[0] for block in GUIDE.split("```python\n")[1:]]
    names: dict[str, Any] = {}
    await run(first, names)
    assert capsys.readouterr().out == "two drinks\n 7\nKeyError exit\ntimeout\n2\n"
    await run(plot, names)
    answer = capsys.readouterr().out
    assert "count" in answer and "price" in answer and answer.endswith("True\n")
    assert names["picture"].startswith(b"\x89PNG")
    await run(fork, names)
    assert capsys.readouterr().out == "0\n1000\n1000\n"
