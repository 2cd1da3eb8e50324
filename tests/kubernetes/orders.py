"""Orders of boxes as the keeper gives them to the provider."""

from typing import Any

from hutch.model.limits import Limits
from hutch.model.spec import NetworkMode, Order
from hutch.providers.command.provider import canary


def order(*, image: str = "oci:debian:12", owner: str = "ann", **changes: Any) -> Order:
    """Return the order of a small box with these fields of its spec changed. Limits may be given flat."""
    limits = {name: changes.pop(name) for name in Limits.__struct_fields__ if name in changes}
    plain = canary("kubernetes", image)
    spec = plain.spec.but(limits=plain.spec.limits.but(**limits), **changes)
    return plain.but(spec=spec, owner=owner, keeper="keeper-1")


def online(**changes: Any) -> Order:
    return order(network=NetworkMode.ON, **changes)
