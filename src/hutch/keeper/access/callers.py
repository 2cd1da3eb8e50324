"""Who asks for what the keeper does: set once by the surface that lets a caller in, read where operations end."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar

from hutch.model.receipts import Who
from hutch.policy.rights import Rights, bound_by

NOBODY = Who(role="keeper")
"""The keeper itself: clocks, the pool, a restart."""

_who: ContextVar[Who | None] = ContextVar("hutch_who", default=None)


@contextmanager
def called_by(who: Who, rights: Rights) -> Iterator[None]:
    """Everything inside, and every task begun inside, is done for `who` and within `rights`."""
    token = _who.set(who)
    try:
        with bound_by(rights):
            yield
    finally:
        _who.reset(token)


def keeper_context() -> Context:
    """For a task that goes on by itself: it is not done for whoever happened to start it, nor part of his request."""
    context = Context()
    context.run(_who.set, NOBODY)
    return context


def current_caller(session: str = "") -> Who:
    """Whoever was set, else this machine's user in the session of the handle that is used."""
    found = _who.get()
    if found is None:
        return Who(session=session)
    return found if not session or found.session == session else found.but(session=session)
