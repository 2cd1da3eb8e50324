"""Pulling an image: manifest, configuration, layers side by side, and the name only when all of it is there."""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from hutch.errors import HutchError, Refused
from hutch.images import credentials, manifests, prune
from hutch.images.connection import Answer, Cut
from hutch.images.credentials import Credentials
from hutch.images.layers.install import place
from hutch.images.manifests import Descriptor, Platform, Stored
from hutch.images.references import Reference
from hutch.images.registry import PastTheEnd, Registry
from hutch.images.store import Image, Store

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


class News(NamedTuple):
    """How far one layer is. Steps: waiting, fetching, unpacking, done, there (it was there before)."""

    layer: str
    step: str
    done: int
    total: int


Listener = Callable[[News], None]


class Stopped(Exception):
    """Another layer has failed, or the caller has left: this one need not go on."""


class Pulling(NamedTuple):
    """How an image is pulled."""

    platform: Platform | None = None
    credentials: Credentials | None = None
    insecure: bool = False
    listener: Listener = lambda news: None


def pull(store: Store, text: str, how: Pulling | None = None, stop: threading.Event | None = None) -> Image:
    """The image, whole and verified. `stop` is set by a caller who no longer wants it."""
    how = how or Pulling()
    reference = store.reference(text)
    found = credentials.find(reference.registry, store.settings, given=how.credentials)
    registry = Registry(reference, store.settings, found, insecure=how.insecure)
    with prune.tidied(store), store.adding():
        prune.sweep(store)
        digest, data = _manifest(registry, reference, how.platform or manifests.here())
        manifest = manifests.manifest_of(data, store.settings.bounds.layers)
        _check_size(manifest.config)
        download(store, registry, manifest.config, lambda done: None)
        config = manifests.config_of(store.read_blob(manifest.config.digest), manifest)
        jobs = list(zip(manifest.layers, config.rootfs.diff_ids, strict=True))
        _fetch_layers(store, registry, jobs, how.listener, stop or threading.Event())
        store.add_document(data)
        stored = Stored(name=str(reference), manifest=digest, source=reference.registry, at=time.time())
        store.name(stored)
        return store.load(stored)


def _manifest(registry: Registry, reference: Reference, platform: Platform) -> tuple[str, bytes]:
    """The manifest for this platform, by way of an index if there is one, each verified by its digest."""
    data = registry.manifest(reference.wanted)
    _check_digest(data, reference.digest)
    digest = manifests.digest_of(data)
    if manifests.kind_of(data) in manifests.INDEXES:
        chosen = manifests.choose(manifests.decode(manifests.Index, data, "index"), platform)
        data = registry.manifest(chosen.digest)
        _check_digest(data, chosen.digest)
        digest = chosen.digest
    return digest, data


def _check_digest(data: bytes, wanted: str) -> None:
    if wanted and manifests.digest_of(data) != wanted:
        raise Refused(
            f"the registry sent {manifests.digest_of(data)} as the manifest {wanted}",
            op="pull",
            remedy="the registry or something on the way has changed it: do not use it",
        )


def _check_size(config: Descriptor) -> None:
    if config.size > manifests.MOST_BYTES:
        raise Refused(f"the configuration of the image has {config.size} bytes, more than any needs", op="pull")


def _fetch_layers(
    store: Store, registry: Registry, jobs: list[tuple[Descriptor, str]], tell: Listener, stop: threading.Event
) -> None:
    """All of them, or the first failure after every worker has stopped."""

    def fetch(layer: Descriptor, diff_id: str) -> None:
        def progress(done: int) -> None:
            if stop.is_set():
                raise Stopped
            tell(News(layer.digest, "fetching", done, layer.size))

        progress(0)
        fetched = download(store, registry, layer, progress)
        if stop.is_set():
            raise Stopped
        tell(News(layer.digest, "unpacking", layer.size, layer.size))
        unpacked = place(store, layer.digest, diff_id)
        tell(News(layer.digest, "done" if fetched or unpacked else "there", layer.size, layer.size))

    for layer, _ in jobs:
        tell(News(layer.digest, "waiting", 0, layer.size))
    with ThreadPoolExecutor(store.settings.concurrency, thread_name_prefix="hutch-pull") as pool:
        unique = {diff_id: (layer, diff_id) for layer, diff_id in jobs}
        futures: list[Future[None]] = [pool.submit(fetch, *job) for job in unique.values()]
        try:
            _, going = wait(futures, return_when=FIRST_EXCEPTION)
            if going:
                stop.set()
        except BaseException:
            stop.set()
            raise
    failures = [error for future in futures if (error := future.exception()) is not None]
    real = [error for error in failures if not isinstance(error, Stopped)]
    if failures:
        raise next((error for error in real if isinstance(error, HutchError)), (real or failures)[0])
