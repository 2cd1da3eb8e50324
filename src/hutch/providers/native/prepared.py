"""A directory that is prepared once and never changed: filled under another name, and there in one step."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from hutch.providers.native.leftovers import remove_tree


@contextmanager
def prepared(final: str) -> Iterator[str]:
    """An empty directory to fill; afterwards it is at `final`, unless another keeper was faster. What fails half-way
    leaves nothing behind."""
    draft = tempfile.mkdtemp(dir=os.path.dirname(final), prefix=".making-")
    try:
        yield draft
        os.chmod(draft, 0o755)
        try:
            os.rename(draft, final)
        except OSError:
            if not os.path.isdir(final):
                raise
    finally:
        if os.path.lexists(draft):
            remove_tree(draft)
