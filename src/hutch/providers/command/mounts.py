"""Places of the machine that a box shows are the very inodes that policy looked at: before the start, and inside."""

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


def look(order: Order) -> None:
    """FileMissing or Refused before anything is made (B11)."""
    for place in _of(order):
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
    """A name may have been swapped between the look and the mount. Asked of the guest before any command has run."""
    mounted = [place for place in _of(order) if place is not order.places.image]
    if not mounted:
        return
    answer = await link.request("identities", paths=[place.target for place in mounted])
    for place, found in zip(mounted, checked(answer.get("found"), list[_Identity]), strict=True):
        if (found.dev, found.ino) != (place.dev, place.ino):
            raise Refused(f"{place.real} was replaced after it had been allowed", op="create")


def _of(order: Order) -> list[CheckedMount]:
    places = (order.places.image, order.places.workspace, *order.places.mounts)
    return [place for place in places if place is not None]
