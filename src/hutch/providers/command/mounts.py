"""Checks that a box shows the very inodes that policy has allowed, before the box starts and again inside it."""

import os

import msgspec

from hutch.errors import FileMissing, NotFound, Refused
from hutch.model.spec import CheckedMount, Order
from hutch.providers.guest_client.answers import checked
from hutch.providers.guest_client.link import Link


class _Identity(msgspec.Struct, frozen=True):
    dev: int = 0
    ino: int = 0
    error: str = ""


def check_sources(order: Order) -> None:
    """Raise FileMissing or Refused before anything is made, so that every engine reports a bad mount alike (B11)."""
    for place in _checked_mounts(order):
        try:
            found = os.stat(place.real, follow_symlinks=False)
        except FileNotFoundError as error:
            if place is order.places.image:
                raise NotFound(f"there is no image {place.real}", op="create") from error
            raise FileMissing(f"cannot mount {place.real}: it is gone", op="create") from error
        except OSError as error:
            raise Refused(f"cannot mount {place.real}: {error.strerror}", op="create") from error
        if (found.st_dev, found.st_ino) != (place.dev, place.ino) or os.path.realpath(place.real) != place.real:
            raise Refused(f"{place.real} was replaced after it had been allowed", op="create")


async def verify(link: Link, order: Order) -> None:
    """Ask the guest, before any command runs: a name may have been swapped between the check and the mount."""
    mounted = [place for place in _checked_mounts(order) if place is not order.places.image]
    if not mounted:
        return
    answer = await link.request("identities", paths=[place.target for place in mounted])
    for place, found in zip(mounted, checked(answer.get("found"), list[_Identity]), strict=True):
        if (found.dev, found.ino) != (place.dev, place.ino):
            raise Refused(f"{place.real} was replaced after it had been allowed", op="create")


def _checked_mounts(order: Order) -> list[CheckedMount]:
    places = (order.places.image, order.places.workspace, *order.places.mounts)
    return [place for place in places if place is not None]
