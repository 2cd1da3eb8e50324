"""Unpacks an image archive once, into a directory named by the archive's digest.

`hutch.images.layers.unpack` says how an untrusted archive is kept from doing harm.
"""

import hashlib
import os
from typing import BinaryIO

from hutch.errors import Invalid
from hutch.host_files import open_as_user, open_checked
from hutch.images.layers import unpack as unpacking
from hutch.images.layers.decompression import DecompressedStream
from hutch.images.settings import Bounds
from hutch.model.spec import CheckedMount
from hutch.providers.native.rootfs.prepared import prepared


def unpack(archive: str, cache: str, bounds: Bounds | None = None, place: CheckedMount | None = None) -> str:
    """Unpack the archive unless that was done before, and return its directory.

    `place` is the archive as policy has allowed it to a caller.
    """
    with open_as_user(archive) if place is None else open_checked(place) as tree, os.fdopen(tree.open(), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        final = os.path.join(cache, digest[:32])
        if os.path.isdir(final):
            return final
        # Threat: on the host, a set-user-id file of the archive would be effective, so others may not enter.
        os.makedirs(cache, 0o700, exist_ok=True)
        bounds = bounds or Bounds()
        packed = _Digested(file)
        try:
            with prepared(final) as draft:
                # `docker export` writes no whiteouts, so a file with such a name is an ordinary file.
                unpacking.unpack(DecompressedStream(packed, bounds), draft, bounds, layered=False)
                packed.check(digest)
        except Invalid as error:
            raise Invalid(f"{archive}: {error.message}", op="create", remedy=error.remedy) from error
    return final


class _Digested:
    """A file that is hashed while it is read.

    Threat: somebody who writes it meanwhile, perhaps a box, would have content stored under another archive's digest.
    """

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self._file = file
        self._sha = hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(count)
        self._sha.update(data)
        return data

    def check(self, digest: str) -> None:
        while self.read(1 << 20):
            pass
        if self._sha.hexdigest() != digest:
            raise Invalid("it changed while it was unpacked", remedy="let nobody write it meanwhile")
