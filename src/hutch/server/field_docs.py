"""What the sentence under a record's field says of it: the reference tells people what the source tells its readers."""

import ast
import inspect
import textwrap
from functools import cache


@cache
def notes(kind: type) -> dict[str, str]:
    """By field, those of its bases too, and of the records in `__noted_in__` where it was made of them at run time."""
    found: dict[str, str] = {}
    for base in (*getattr(kind, "__noted_in__", ()), *reversed(kind.__mro__)):
        if base.__module__.startswith("hutch."):
            found |= _own_notes(base)
    return found


def _own_notes(kind: type) -> dict[str, str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # made at run time, or installed without source
        return {}
    definition = ast.parse(textwrap.dedent(source)).body[0]
    if not isinstance(definition, ast.ClassDef):
        return {}
    found: dict[str, str] = {}
    for before, after in zip(definition.body, definition.body[1:], strict=False):
        named = isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
        if not named or not isinstance(after, ast.Expr) or not isinstance(after.value, ast.Constant):
            continue
        if isinstance(after.value.value, str):
            found[before.target.id] = inspect.cleandoc(after.value.value).replace("\n", " ")  # type: ignore[attr-defined]
    return found
