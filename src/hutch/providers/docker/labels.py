"""What of an engine is ours, by name and by label. Everything of a box can be found from its id alone."""

import hashlib
import os
import secrets

from hutch.model.spec import EffectiveSpec, Order

BOX = "hutch.box"
KEEPER = "hutch.keeper"
INSTANCE = "hutch.instance"
"""Which Hutch on this engine: one that has another state directory has other keepers, of whose life we know nothing."""
CONFIG = "hutch.config"
"""A digest of the effective spec, by which a changed one is told."""
GUEST = "hutch.guest"
"""On volumes with a bundle guest: its digest."""
THROWAWAY = "hutch.throwaway"
"""On containers that live for one request of ours: when they were made, in Unix time."""


def container(box_id: str) -> str:
    return f"hutch-{box_id}"


def network(box_id: str) -> str:
    return f"hutch-{box_id}"


def volume(box_id: str, part: str) -> str:
    return f"hutch-{box_id}-{part}"


def guest_volume(digest: str) -> str:
    return f"hutch-guest-{digest}"


def labels(order: Order, instance: str) -> dict[str, str]:
    return {BOX: order.box_id, KEEPER: order.keeper, INSTANCE: instance, CONFIG: config_digest(order.spec)}


def config_digest(spec: EffectiveSpec) -> str:
    return hashlib.sha256(spec.shown().to_json()).hexdigest()[:16]


def instance(state_dir: str) -> str:
    """The name of the Hutch that has this state directory, made once: two machines may use one engine."""
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
        os.link(made, path)  # whoever is first names it for all
    except FileExistsError:
        pass
    finally:
        os.unlink(made)
    with open(path) as file:
        return file.read().strip()
