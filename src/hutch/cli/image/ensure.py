"""The image of a new box, fetched before the box is made, so that people see how far it is."""

import argparse
import asyncio
import threading

from hutch.cli.image.open_store import store_in
from hutch.cli.image.progress import Watch
from hutch.config import Config
from hutch.errors import Invalid, NotFound
from hutch.images.pull import Pulling, pull


async def ensure(arguments: argparse.Namespace, config: Config, reference: str) -> Config:
    """Pull `reference` if the policy says so; in the configuration that comes back nobody pulls it again."""
    policy = arguments.pull or config.images.pull or "missing"
    stop = threading.Event()
    if policy != "never":
        name = reference.removeprefix("oci:")
        try:
            await asyncio.to_thread(_ensure, config, name, policy, arguments.json, stop)
        except asyncio.CancelledError:
            stop.set()
            raise
    return config.but(images=config.images.but(pull="never"))


def _ensure(config: Config, name: str, policy: str, quiet: bool, stop: threading.Event) -> None:
    store = store_in(config)
    if policy == "missing":
        try:
            store.open(name)
            return
        except NotFound:
            pass  # it, or a part of it, is not here
    with Watch(quiet=quiet) as watch:
        pull(store, name, Pulling(listener=watch.tell), stop)


def command_of(config: Config, reference: str) -> tuple[str, ...]:
    """What the image runs by itself; Invalid if it names nothing."""
    image = store_in(config).open(reference.removeprefix("oci:"))
    command = image.defaults().command
    if not command:
        raise Invalid(
            f"there is no command to run, and {reference} names none", op="run", remedy="write one after `--`"
        )
    return command
