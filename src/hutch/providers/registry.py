"""Which engines there are: the built-in ones by name, third parties through the entry point group `hutch.providers`."""

from collections.abc import Iterator
from importlib import import_module

from hutch.errors import EngineError, NotFound
from hutch.providers.base import CONTRACT, Provider

GROUP = "hutch.providers"
BUILT_IN = {
    "native": "hutch.providers.native.provider:NativeProvider",
    "docker": "hutch.providers.docker.provider:DockerProvider",
    "podman": "hutch.providers.docker.provider:PodmanProvider",
    "nsjail": "hutch.providers.nsjail.provider:NsjailProvider",
    "e2b": "hutch.providers.e2b.provider:E2BProvider",
    "boxlite": "hutch.providers.boxlite.provider:BoxLiteProvider",
    "kubernetes": "hutch.providers.kubernetes.provider:KubernetesProvider",
    "host": "hutch.providers.host.provider:HostProvider",
}
"""Where each is: imported when it is first asked for, and without the 10 ms that reading entry points costs."""


def find(name: str) -> type[Provider]:
    """The class registered under `name`; NotFound lists what there is."""
    if name in BUILT_IN:
        module, _, kind = BUILT_IN[name].partition(":")
        return getattr(import_module(module), kind)  # type: ignore[no-any-return]
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        provider = point.load()
        _check_contract(name, provider)
        return provider  # type: ignore[no-any-return]
    raise NotFound(f"no provider {name!r}", op="create", remedy=f"installed: {', '.join(sorted(names()))}")


def names() -> Iterator[str]:
    from importlib.metadata import entry_points

    yield from {*BUILT_IN, *(point.name for point in entry_points(group=GROUP))}


def _check_contract(name: str, provider: object) -> None:
    version = getattr(provider, "contract", None)
    if version != CONTRACT:
        raise EngineError(
            f"provider {name!r} speaks contract {version}, this Hutch speaks {CONTRACT}",
            remedy=f"install a release of {name!r} made for contract {CONTRACT}",
        )
