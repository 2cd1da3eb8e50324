"""The caller of an operation, in a file that both those who set it and those who record it can import.

The surface that admits a caller sets it once; the places where operations are recorded read it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar

from hutch.model.receipts import Who
from hutch.policy.rights import Rights, bound_by

NOBODY = Who(role="keeper")
"""The keeper itself, for clocks, the pool and restarts."""

_who: ContextVar[Who | None] = ContextVar("hutch_who", default=None)


@contextmanager
def called_by(who: Who, rights: Rights) -> Iterator[None]:
    """Do everything inside, and every task started inside, for `who` and within `rights`."""
    token = _who.set(who)
    try:
        with bound_by(rights):
            yield
    finally:
        _who.reset(token)


def keeper_context() -> Context:
    """Return a context for a background task, which does not belong to the caller whose request started it."""
    context = Context()
    context.run(_who.set, NOBODY)
    return context


def current_caller(session: str = "") -> Who:
    """Return the caller that was set, or else this machine's user in the given session."""
    found = _who.get()
    if found is None:
        return Who(session=session)
    return found if not session or found.session == session else found.but(session=session)
