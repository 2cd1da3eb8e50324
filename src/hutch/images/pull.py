"""Pulling an image: manifest, configuration, layers in parallel; the name is set only when everything is there."""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from hutch.errors import HutchError, Refused
from hutch.images import manifests, prune
from hutch.images.connection import Response, TransientError
from hutch.images.credentials import Credentials, find_credentials
from hutch.images.layers.install import install_layer
from hutch.images.manifests import Descriptor, Platform, Stored
from hutch.images.references import Reference
from hutch.images.registry import RangeNotSatisfiable, Registry
from hutch.images.store import Image, Store

_CHUNK = 1 << 18

Progress = Callable[[int], None]
"""Called with the number of bytes that have arrived."""


def download(store: Store, registry: Registry, blob: Descriptor, progress: Progress) -> bool:
    """Fetch a blob if it is missing; return whether it was. The caller holds `store.lock_shared`."""
    if store.has_blob(blob.digest):
        return False
    if blob.size > store.settings.bounds.blob_mb << 20:
        raise Refused(
            f"blob {blob.digest} has {blob.size >> 20} MB", remedy="if you trust it, raise images.bounds.blob_mb"
        )
    with store.lock_digest(blob.digest):
        if store.has_blob(blob.digest):
            return False
        path = store.path("partial", blob.hex)
        resumed = os.path.exists(path)
        try:
            registry.retry(lambda: _fetch(path, registry, blob, progress), f"blob {blob.digest}")
        except Refused:
            if not resumed:
                raise
            # Perhaps only the part from an earlier pull is wrong.
            registry.retry(lambda: _fetch(path, registry, blob, progress), f"blob {blob.digest}")
        store.add_file(path, blob.digest)
    return True


def _fetch(path: str, registry: Registry, blob: Descriptor, progress: Progress) -> None:
    """Try once; what arrives stays in the file."""
    with open(path, "ab") as file:
        sha = hashlib.sha256()
        done = _hash_partial(path, sha)
        if done < blob.size:
            try:
                response = registry.blob(blob.digest, done)
            except RangeNotSatisfiable:
                file.truncate(0)
                raise TransientError("what an earlier pull left is too long") from None
            try:
                if done and response.status == 200:  # the registry cannot resume
                    file.truncate(0)
                    sha, done = hashlib.sha256(), 0
                done = _receive(response, file.write, sha, blob, done, progress)
            finally:
                response.close()
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
    response: Response, write: Callable[[bytes], object], sha: "hashlib._Hash", blob: Descriptor, done: int,
    progress: Progress,
) -> int:  # fmt: skip
    while data := response.read(_CHUNK):
        done += len(data)
        if done > blob.size:
            return done  # more than was promised, so it is wrong in any case
        write(data)
        sha.update(data)
        progress(done)
    if done < blob.size:
        raise TransientError(f"the connection ended {blob.size - done} bytes too early")
    return done


def _hash_partial(path: str, sha: "hashlib._Hash") -> int:
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            sha.update(data)
        return file.tell()


class LayerProgress(NamedTuple):
    """Progress of one layer. Steps: waiting, fetching, unpacking, done, there (it was present before)."""

    layer: str
    step: str
    done: int
    total: int


ProgressListener = Callable[[LayerProgress], None]


class Stopped(Exception):
    """Another layer has failed, or the caller has left, so this download stops."""


class PullOptions(NamedTuple):
    """How an image is pulled."""

    platform: Platform | None = None
    credentials: Credentials | None = None
    insecure: bool = False
    listener: ProgressListener = lambda progress: None


def pull(store: Store, text: str, options: PullOptions | None = None, stop: threading.Event | None = None) -> Image:
    """Return the image, complete and verified. A caller who no longer wants it sets `stop`."""
    options = options or PullOptions()
    reference = store.reference(text)
    found = find_credentials(reference.registry, store.settings, given=options.credentials)
    registry = Registry(reference, store.settings, found, insecure=options.insecure)
    with prune.cleaned_on_refusal(store), store.lock_shared():
        prune.sweep(store)
        digest, data = _manifest(registry, reference, options.platform or manifests.this_platform())
        manifest = manifests.parse_manifest(data, store.settings.bounds.layers)
        _check_size(manifest.config)
        download(store, registry, manifest.config, lambda done: None)
        config = manifests.parse_config(store.read_blob(manifest.config.digest), manifest)
        jobs = list(zip(manifest.layers, config.rootfs.diff_ids, strict=True))
        _fetch_layers(store, registry, jobs, options.listener, stop or threading.Event())
        store.add_document(data)
        stored = Stored(name=str(reference), manifest=digest, source=reference.registry, at=time.time())
        store.set_name(stored)
        return store.load(stored)


def _manifest(registry: Registry, reference: Reference, platform: Platform) -> tuple[str, bytes]:
    """Fetch the manifest for this platform, through an index if there is one, and verify each by its digest."""
    data = registry.manifest(reference.wanted)
    _check_digest(data, reference.digest)
    digest = manifests.digest_of(data)
    if manifests.media_type_of(data) in manifests.INDEXES:
        chosen = manifests.choose_manifest(manifests.decode(manifests.Index, data, "index"), platform)
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
    if config.size > manifests.MAX_DOCUMENT_BYTES:
        raise Refused(f"the configuration of the image has {config.size} bytes, more than any needs", op="pull")


def _fetch_layers(
    store: Store,
    registry: Registry,
    jobs: list[tuple[Descriptor, str]],
    report: ProgressListener,
    stop: threading.Event,
) -> None:
    """Fetch all layers, or raise the first failure after every worker has stopped."""

    def fetch(layer: Descriptor, diff_id: str) -> None:
        def progress(done: int) -> None:
            if stop.is_set():
                raise Stopped
            report(LayerProgress(layer.digest, "fetching", done, layer.size))

        progress(0)
        fetched = download(store, registry, layer, progress)
        if stop.is_set():
            raise Stopped
        report(LayerProgress(layer.digest, "unpacking", layer.size, layer.size))
        unpacked = install_layer(store, layer.digest, diff_id)
        report(LayerProgress(layer.digest, "done" if fetched or unpacked else "there", layer.size, layer.size))

    for layer, _ in jobs:
        report(LayerProgress(layer.digest, "waiting", 0, layer.size))
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
