"""Files of the caller's own machine: what is wrong with one is no defect of ours, and told as what it is."""

from collections.abc import Iterator
from contextlib import contextmanager

from hutch.errors import FileFailed, HutchError


@contextmanager
def own_file(op: str) -> Iterator[None]:
    try:
        yield
    except HutchError:
        raise
    except OSError as error:
        path = error.filename2 or error.filename
        raise FileFailed(f"{path}: {error.strerror}", op=op, remedy="choose another file") from error
