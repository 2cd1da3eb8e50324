"""Names and labels of our objects on an engine. Everything of a box can be found from its id alone."""

import hashlib
import os
import secrets

from hutch.model.spec import EffectiveSpec, Order

BOX = "hutch.box"
KEEPER = "hutch.keeper"
INSTANCE = "hutch.instance"
"""Names the Hutch on this engine: one with another state directory has other keepers, which may be alive."""
CONFIG = "hutch.config"
"""A digest of the effective spec, by which a changed spec is recognised."""
GUEST = "hutch.guest"
"""A label of guest volumes: the digest of the bundle."""
STATE = "hutch.state"
"""A label of volumes with states of a box's files: the box."""
THROWAWAY = "hutch.throwaway"
"""A label of helper containers: the Unix time at which they were created."""


def container(box_id: str) -> str:
    return f"hutch-{box_id}"


def next_container(box_id: str) -> str:
    """The container that is about to take the place of the box's own."""
    return f"hutch-{box_id}-next"


def network(box_id: str) -> str:
    return f"hutch-{box_id}"


def volume(box_id: str, part: str, generation: str = "") -> str:
    """A part of a persistent box. Each time the box goes back to a state, its parts are new volumes."""
    return f"hutch-{box_id}-{part}-{generation}" if generation else f"hutch-{box_id}-{part}"


def generation(name: str) -> str:
    """The generation of a volume, by its name."""
    return name.split("-", 3)[3] if name.count("-") == 3 else ""


def guest_volume(digest: str) -> str:
    return f"hutch-guest-{digest}"


def labels(order: Order, instance: str) -> dict[str, str]:
    return {BOX: order.box_id, KEEPER: order.keeper, INSTANCE: instance, CONFIG: config_digest(order.spec)}


def config_digest(spec: EffectiveSpec) -> str:
    return hashlib.sha256(spec.shown().to_json()).hexdigest()[:16]


def instance(state_dir: str) -> str:
    """Return the name of the Hutch with this state directory, made once, because two machines may use one engine."""
    if not state_dir:
        return "default"
    path = os.path.join(state_dir, "instance")
    try:
        with open(path) as file:
            return file.read().strip()
    except FileNotFoundError:
        os.makedirs(state_dir, 0o700, exist_ok=True)
    made = f"{path}.{secrets.token_hex(4)}"
    with open(made, "x") as file:
        file.write(secrets.token_hex(8))
    try:
        os.link(made, path)  # the first process decides for all
    except FileExistsError:
        pass
    finally:
        os.unlink(made)
    with open(path) as file:
        return file.read().strip()
