"""One blob from a registry into the store: resumed where a connection was cut, verified to the last byte.

What has arrived stays in `partial/` when all tries fail, and the next pull goes on from there. It is nothing but bytes
until its digest is right: wrong bytes are removed at once.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable

from hutch.errors import Refused
from hutch.images.connection import Answer, Cut
from hutch.images.manifests import Descriptor
from hutch.images.registry import PastTheEnd, Registry
from hutch.images.store import Store

_PIECE = 1 << 18

Progress = Callable[[int], None]
"""Told how many bytes there are now."""


def download(store: Store, registry: Registry, blob: Descriptor, progress: Progress) -> bool:
    """Whether it had to be fetched. Inside `store.adding`."""
    if store.has_blob(blob.digest):
        return False
    if blob.size > store.settings.bounds.blob_mb << 20:
        raise Refused(
            f"blob {blob.digest} has {blob.size >> 20} MB", remedy="if you trust it, raise images.bounds.blob_mb"
        )
    with store.working_on(blob.digest):
        if store.has_blob(blob.digest):
            return False
        path = store.path("partial", blob.hex)
        resumed = os.path.exists(path)
        try:
            registry.trying(lambda: _fetch(path, registry, blob, progress), f"blob {blob.digest}")
        except Refused:
            if not resumed:
                raise
            # Perhaps only what was left of an earlier pull is wrong.
            registry.trying(lambda: _fetch(path, registry, blob, progress), f"blob {blob.digest}")
        store.add_file(path, blob.digest)
    return True


def _fetch(path: str, registry: Registry, blob: Descriptor, progress: Progress) -> None:
    """One try: whatever arrives stays in the file."""
    with open(path, "ab") as file:
        sha = hashlib.sha256()
        done = _hash_what_is_there(path, sha)
        if done < blob.size:
            try:
                answer = registry.blob(blob.digest, done)
            except PastTheEnd:
                file.truncate(0)
                raise Cut("what an earlier pull left is too long") from None
            try:
                if done and answer.status == 200:  # it cannot resume
                    file.truncate(0)
                    sha, done = hashlib.sha256(), 0
                done = _receive(answer, file.write, sha, blob, done, progress)
            finally:
                answer.close()
    if done != blob.size or sha.hexdigest() != blob.hex:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        raise Refused(
            f"the registry sent {done} bytes as {blob.digest}, and they are sha256:{sha.hexdigest()}",
            op="pull",
            remedy="the registry or something on the way has changed them: do not use it",
        )
    progress(done)


def _receive(
    answer: Answer, write: Callable[[bytes], object], sha: "hashlib._Hash", blob: Descriptor, done: int,
    progress: Progress,
) -> int:  # fmt: skip
    while data := answer.read(_PIECE):
        done += len(data)
        if done > blob.size:
            return done  # more than was promised: wrong, whatever it is
        write(data)
        sha.update(data)
        progress(done)
    if done < blob.size:
        raise Cut(f"the connection ended {blob.size - done} bytes too early")
    return done


def _hash_what_is_there(path: str, sha: "hashlib._Hash") -> int:
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            sha.update(data)
        return file.tell()
