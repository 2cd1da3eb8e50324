"""Templates: what `templateID` names, as the spec of a box."""

from hutch.errors import NotFound
from hutch.keeper.keeper import Keeper
from hutch.model.spec import NetworkMode, Spec

HOME = "/home/user"
BUILT_IN = {"base": "e2b", "code-interpreter-v1": "e2b", "desktop": "desktop"}
"""From each template of the SDKs to the profile that it is a box of."""


async def resolve(keeper: Keeper, template: str) -> Spec:
    """Return the spec of a template: a built-in one, or a profile of the configuration.

    Raises NotFound for any other.
    """
    if template in BUILT_IN:
        return await _fitted(keeper, Spec(profile=BUILT_IN[template], workdir=HOME, user="user"))
    if template in keeper.config.profiles:
        return await _fitted(keeper, Spec(profile=template, workdir=HOME))
    raise unknown(template)


def unknown(template: str) -> NotFound:
    return NotFound(
        f"template '{template[:100]}' not found",
        remedy=f"templates are {', '.join(BUILT_IN)}, profiles of the server's configuration, and snapshots",
    )


async def _fitted(keeper: Keeper, spec: Spec) -> Spec:
    """Leave out the network that the template would like, where this machine has none for boxes."""
    profile = keeper.config.resolve_profile(spec.profile or "")
    able = await keeper.engines.capabilities(profile.provider or keeper.config.provider)
    if profile.network not in able.networks:
        spec = spec.but(network=NetworkMode.OFF)
    return spec
