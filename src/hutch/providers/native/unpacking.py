"""Unpack an image archive once, into a directory named by the archive's digest.

How a stranger's archive is kept from doing harm is said in `hutch.images.unpacking`.
"""

import hashlib
import os

from hutch.errors import Invalid
from hutch.images import unpacking
from hutch.images.decompression import Unpacked
from hutch.images.settings import Bounds
from hutch.providers.native.prepared import prepared


def unpack(archive: str, cache: str, bounds: Bounds | None = None) -> str:
    """The directory; unpacked if it is not there yet."""
    with open(archive, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    final = os.path.join(cache, digest)
    if os.path.isdir(final):
        return final
    # Closed to others: on the host a set-user-id file of the archive would be just that.
    os.makedirs(cache, 0o700, exist_ok=True)
    bounds = bounds or Bounds()
    try:
        with prepared(final) as draft, open(archive, "rb") as packed:
            # `docker export` writes no deletions: a file that is called like one is just a file.
            unpacking.unpack(Unpacked(packed, bounds), draft, bounds, layered=False)
    except Invalid as error:
        raise Invalid(f"{archive}: {error.message}", op="create", remedy=error.remedy) from error
    return final
