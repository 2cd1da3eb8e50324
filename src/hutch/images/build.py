"""An image under construction: a configuration and layers that grow step by step, each state an image of the store."""

import hashlib
import os
import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from hutch.images import build_cache, manifests
from hutch.images.build_cache import Step
from hutch.images.layers.install import assemble, place
from hutch.images.manifests import Config, Descriptor, RootFs, RunConfig, Stored
from hutch.images.store import Image, Store

Write = Callable[[BinaryIO], object]
"""Writes a layer's tar."""


class Site:
    """Where an image is built. Used inside `store.adding`, so that nobody collects what has no name yet."""

    def __init__(self, store: Store, base: Image) -> None:
        self.store = store
        self._config = base.config
        self._layers = list(base.manifest.layers)

    @property
    def run(self) -> RunConfig:
        return self._config.config or RunConfig()

    @property
    def diff_ids(self) -> list[str]:
        return list(self._config.rootfs.diff_ids)

    @property
    def directories(self) -> tuple[str, ...]:
        """Topmost first."""
        return tuple(self.store.layer_path(diff_id) for diff_id in reversed(self.diff_ids))

    def settle(self, run: RunConfig) -> None:
        self._config = _but(self._config, run=run)

    def set_env(self, name: str, value: str) -> None:
        old = [text for text in self.run.env or [] if text.partition("=")[0] != name]
        self.settle(_run_but(self.run, env=[*old, f"{name}={value}"]))

    def set(self, **changes: object) -> None:
        """Fields of `RunConfig`."""
        self.settle(_run_but(self.run, **changes))

    def layer(self, write: Write) -> Step:
        """Make a layer; it is not yet part of the image."""
        with self.store.draft() as work:
            path = os.path.join(work, "layer")
            with open(path, "x+b") as file:
                write(file)
                size = file.tell()
                file.seek(0)
                digest = f"sha256:{_digest(file)}"
            if not self.store.has_blob(digest):
                self.store.add_file(path, digest)
        place(self.store, digest, digest)
        return Step(blob=digest, diff_id=digest, size=size)

    def add(self, step: Step) -> None:
        self._layers.append(Descriptor(media_type=manifests.LAYER, digest=step.blob, size=step.size))
        self._config = _but(self._config, diff_ids=[*self.diff_ids, step.diff_id])

    def known(self, *parts: str) -> tuple[str, Step | None]:
        """The key of a step over this state, and what it made before."""
        key = build_cache.key(self.diff_ids, *parts)
        return key, build_cache.known(self.store, key)

    def state(self) -> str:
        """The digest of the image as it is now."""
        return assemble(self.store, self._config, self._layers)

    def finish(self, name: str) -> Image:
        stored = Stored(name=str(self.store.reference(name)), manifest=self.state(), source="build", at=time.time())
        image = self.store.load(stored)
        self.store.name(stored)
        return image


def _but(config: Config, *, run: RunConfig | None = None, diff_ids: list[str] | None = None) -> Config:
    return Config(
        rootfs=RootFs(diff_ids if diff_ids is not None else list(config.rootfs.diff_ids)),
        architecture=config.architecture,
        os=config.os,
        variant=config.variant,
        config=run or config.config or RunConfig(),
    )


def _run_but(run: RunConfig, **changes: object) -> RunConfig:
    changed: RunConfig = msgspec.structs.replace(run, **changes)
    return changed


def _digest(file: BinaryIO) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has what is needed
