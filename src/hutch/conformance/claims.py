"""The claims of checks about a provider, which fail with a sentence, also under `python -O`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from hutch.errors import HutchError

SHOWN = 300
"""The most characters of a value in a message."""


class Broken(AssertionError):
    """The provider does not do what its contract says."""


class Caught:
    """The error that `raises` was waiting for."""

    error: HutchError


def broken(what: str) -> NoReturn:
    raise Broken(what)


def holds(condition: object, what: str) -> None:
    """Fail unless the condition holds. `what` tells the provider's author what was wrong."""
    if not condition:
        broken(what)


def same(got: object, wanted: object, what: str) -> None:
    if got != wanted:
        broken(f"{what}: got {_short(got)}, wanted {_short(wanted)}")


@contextmanager
def raises(*kinds: type[BaseException], what: str) -> Iterator[Caught]:
    """Fail unless the body raises one of these errors, which must be a HutchError with a message."""
    caught = Caught()
    try:
        yield caught
    except HutchError as error:
        if not isinstance(error, kinds):
            broken(f"{what}: raised {type(error).__name__} ({error}), wanted {_names(kinds)}")
        if not error.message.strip():
            broken(f"{what}: raised {type(error).__name__} without a message")
        caught.error = error
    else:
        broken(f"{what}: raised nothing, wanted {_names(kinds)}")


def _names(kinds: tuple[type[BaseException], ...]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"
