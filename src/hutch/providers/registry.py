"""Which engines there are: the built-in one by name, third parties through the entry point group `hutch.providers`."""

from collections.abc import Iterator

from hutch.errors import EngineError, NotFound
from hutch.providers.base import CONTRACT, Provider

GROUP = "hutch.providers"


def find(name: str) -> type[Provider]:
    """The class registered under `name`; NotFound lists what there is."""
    if name == "native":  # reading entry points costs 10 ms, and `hutch run` starts with this one
        from hutch.providers.native.provider import NativeProvider

        return NativeProvider
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        provider = point.load()
        _check_contract(name, provider)
        return provider  # type: ignore[no-any-return]
    raise NotFound(f"no provider {name!r}", op="create", remedy=f"installed: {', '.join(sorted(names()))}")


def names() -> Iterator[str]:
    from importlib.metadata import entry_points

    yield from {"native", *(point.name for point in entry_points(group=GROUP))}


def _check_contract(name: str, provider: object) -> None:
    version = getattr(provider, "contract", None)
    if version != CONTRACT:
        raise EngineError(
            f"provider {name!r} speaks contract {version}, this Hutch speaks {CONTRACT}",
            remedy=f"install a release of {name!r} made for contract {CONTRACT}",
        )
