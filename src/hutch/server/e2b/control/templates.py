"""Templates: what `templateID` names, as the spec of a box. Snapshots and checkpoints are in `snapshots.py`."""

from hutch.errors import HutchError, NotFound, Unsupported
from hutch.images import base
from hutch.images.store import Store
from hutch.keeper.keeper import Keeper
from hutch.model.spec import NetworkMode, Spec

HOME = "/home/user"
PROFILE = "e2b"
DESKTOP = "desktop"
BUILT_IN = {"base": base.BASE, "code-interpreter-v1": base.INTERPRETER, DESKTOP: base.DESKTOP}
"""From each template of the SDKs to the image that `hutch image base` makes for it."""
IMAGE = "oci:"


async def resolve(keeper: Keeper, template: str) -> Spec:
    """Return the spec of a template: a built-in one, a profile of the configuration, or an image.

    Raises NotFound for any other, and Unsupported for what this server cannot be.
    """
    images = Store(keeper.config.state_dir / "images", keeper.config.images)
    if template == DESKTOP and not _has(images, base.DESKTOP):
        raise Unsupported("there is no desktop on this server", remedy="make one: hutch image base --desktop")
    if template in BUILT_IN:
        image = next((name for name in (BUILT_IN[template], base.BASE) if _has(images, name)), None)
        spec = Spec(profile=PROFILE, workdir=HOME, user="user", image=None if image is None else IMAGE + image)
        return await _fitted(keeper, spec)
    if template in keeper.config.profiles:
        return await _fitted(keeper, Spec(profile=template, workdir=HOME))
    if template.startswith(IMAGE) or _has(images, template):
        return await _fitted(keeper, Spec(profile=PROFILE, workdir=HOME, image=IMAGE + template.removeprefix(IMAGE)))
    raise unknown(template)


def unknown(template: str) -> NotFound:
    return NotFound(
        f"template '{template[:100]}' not found",
        remedy=f"templates are {', '.join(BUILT_IN)}, profiles of the server's configuration, images that it has, "
        "snapshots, and checkpoints as BOX:CHECKPOINT",
    )


def _has(images: Store, name: str) -> bool:
    """Whether the server has an image of this name; what is no name of an image is none."""
    try:
        images.find(name)
    except HutchError:
        return False
    return True


async def _fitted(keeper: Keeper, spec: Spec) -> Spec:
    """Leave out the network that the template would like, where this machine has none for boxes."""
    profile = keeper.config.resolve_profile(spec.profile or "")
    able = await keeper.engines.capabilities(profile.provider or keeper.config.provider)
    if profile.network not in able.networks:
        spec = spec.but(network=NetworkMode.OFF)
    return spec
