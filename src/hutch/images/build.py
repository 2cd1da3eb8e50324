"""An image under construction: a configuration and layers that grow step by step; each state can be stored."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from hutch.images import build_cache, manifests
from hutch.images.build_cache import Step
from hutch.images.layers.install import assemble, install_layer
from hutch.images.manifests import Config, Descriptor, RootFs, RunConfig, Stored
from hutch.images.store import Image, Store

Write = Callable[[BinaryIO], object]
"""Writes the tar of a layer."""


class ImageBuild:
    """One build. It must run inside `store.lock_shared`, because parts of it that have no name yet would be removed."""

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
    def layer_directories(self) -> tuple[str, ...]:
        """Layer directories, topmost first."""
        return tuple(self.store.layer_path(diff_id) for diff_id in reversed(self.diff_ids))

    def set_run_config(self, run: RunConfig) -> None:
        self._config = _with(self._config, run=run)

    def set_env(self, name: str, value: str) -> None:
        old = [text for text in self.run.env or [] if text.partition("=")[0] != name]
        self.set_run_config(_replaced(self.run, env=[*old, f"{name}={value}"]))

    def set(self, **changes: object) -> None:
        """Replace fields of `RunConfig`."""
        self.set_run_config(_replaced(self.run, **changes))

    def make_layer_of(self, path: str) -> Step:
        """Create a layer in the store of the tar in a file."""

        def write(out: BinaryIO) -> None:
            with open(path, "rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)

        return self.make_layer(write)

    def make_layer(self, write: Write) -> Step:
        """Create a layer in the store; `add_layer` makes it part of the image."""
        with self.store.work_directory() as work:
            path = os.path.join(work, "layer")
            with open(path, "x+b") as file:
                write(file)
                size = file.tell()
                file.seek(0)
                digest = f"sha256:{_digest(file)}"
            if not self.store.has_blob(digest):
                self.store.add_file(path, digest)
        install_layer(self.store, digest, digest)
        return Step(blob=digest, diff_id=digest, size=size)

    def add_layer(self, step: Step) -> None:
        self._layers.append(Descriptor(media_type=manifests.LAYER, digest=step.blob, size=step.size))
        self._config = _with(self._config, diff_ids=[*self.diff_ids, step.diff_id])

    def cached_step(self, *parts: str) -> tuple[str, Step | None]:
        """Return the key of a step on top of the current layers, and its cached result if there is one."""
        key = build_cache.step_key(self.diff_ids, *parts)
        return key, build_cache.find(self.store, key)

    def store_manifest(self) -> str:
        """Store the image as it is now, and return its digest."""
        return assemble(self.store, self._config, self._layers)

    def finish(self, name: str) -> Image:
        stored = Stored(
            name=str(self.store.reference(name)), manifest=self.store_manifest(), source="build", at=time.time()
        )
        image = self.store.load(stored)
        self.store.set_name(stored)
        return image


def _with(config: Config, *, run: RunConfig | None = None, diff_ids: list[str] | None = None) -> Config:
    return Config(
        rootfs=RootFs(diff_ids if diff_ids is not None else list(config.rootfs.diff_ids)),
        architecture=config.architecture,
        os=config.os,
        variant=config.variant,
        config=run or config.config or RunConfig(),
    )


def _replaced(run: RunConfig, **changes: object) -> RunConfig:
    changed: RunConfig = msgspec.structs.replace(run, **changes)
    return changed


def _digest(file: BinaryIO) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has what is needed
