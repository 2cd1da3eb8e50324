"""Pull images from registries: `hutch image pull`, and the image that a new box needs."""

import argparse
import asyncio
import os
import sys
import threading
import time
from types import TracebackType
from typing import Self

from hutch.cli.commands.image.store import image_facts, open_images, short_name
from hutch.cli.connect import load_config
from hutch.cli.output import byte_size, emit_json
from hutch.cli.parsers import CliCommand
from hutch.config import Config
from hutch.errors import Invalid, NotFound
from hutch.images import manifests
from hutch.images.credentials import Credentials
from hutch.images.pull import LayerProgress, PullOptions, pull

_BAR_WIDTH = 24
_REDRAW_SECONDS = 0.1
_SHORT = 12
_STEP_TEXTS = {
    "waiting": "waiting",
    "fetching": "fetching",
    "unpacking": "unpacking",
    "done": "done",
    "there": "already here",
}


class Pull(CliCommand):
    """Pull an image from a registry; layers that are here already are not fetched again.

    A password is read from standard input, from the environment (HUTCH_REGISTRY for its host, HUTCH_REGISTRY_USERNAME
    and HUTCH_REGISTRY_PASSWORD), from the configuration or from the files that `docker login` and `podman login` write;
    never from the command line.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="NAME[:TAG], HOST[:PORT]/NAME[:TAG] or NAME@sha256:…")
        parser.add_argument("--platform", metavar="OS/ARCH", help="of several, take this one (default: this machine's)")
        parser.add_argument("--username", "-u", metavar="NAME", help="who you are to the registry")
        parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
        parser.add_argument("--insecure", action="store_true", help="plain HTTP, also to another machine")
        parser.add_argument("--quiet", "-q", action="store_true", help="no progress")

    def run(self, arguments: argparse.Namespace) -> int:
        store = open_images(load_config(arguments))
        with PullProgress(quiet=arguments.json or arguments.quiet) as progress:
            how = PullOptions(
                platform=manifests.parse_platform(arguments.platform) if arguments.platform else None,
                credentials=_credentials(arguments),
                insecure=arguments.insecure,
                listener=progress.update,
            )
            image = pull(store, arguments.name, how)
        if arguments.json:
            emit_json(image_facts(store, image))
        else:
            print(f"{short_name(store, image.stored.name)} {image.digest}")
        return 0


def _credentials(arguments: argparse.Namespace) -> Credentials | None:
    if not arguments.username and not arguments.password_stdin:
        return None
    if not arguments.username or not arguments.password_stdin:
        raise Invalid("--username and --password-stdin belong together", remedy="give both, or `docker login` first")
    return Credentials(arguments.username, sys.stdin.readline().rstrip("\r\n"))


async def ensure_image(arguments: argparse.Namespace, config: Config, reference: str) -> Config:
    """Pull `reference` if the policy says so, before the box is made; the returned configuration pulls nothing."""
    policy = arguments.pull or config.images.pull or "missing"
    stop = threading.Event()
    if policy != "never":
        name = reference.removeprefix("oci:")
        try:
            await asyncio.to_thread(_pull_by_policy, config, name, policy, arguments.json, stop)
        except asyncio.CancelledError:
            stop.set()
            raise
    return config.but(images=config.images.but(pull="never"))


def _pull_by_policy(config: Config, name: str, policy: str, quiet: bool, stop: threading.Event) -> None:
    store = open_images(config)
    if policy == "missing":
        try:
            store.open(name)
            return
        except NotFound:
            pass  # the image or one of its layers is missing
    with PullProgress(quiet=quiet) as progress:
        pull(store, name, PullOptions(listener=progress.update), stop)


def image_command(config: Config, reference: str) -> tuple[str, ...]:
    """Return the command that the image names; raise Invalid if it names none."""
    image = open_images(config).open(reference.removeprefix("oci:"))
    command = image.defaults().command
    if not command:
        raise Invalid(
            f"there is no command to run, and {reference} names none", op="run", remedy="write one after `--`"
        )
    return command


class PullProgress:
    """Shows the progress of a pull: bars on a terminal, a line for each layer elsewhere, nothing beside JSON."""

    def __init__(self, *, quiet: bool) -> None:
        self._terminal = not quiet and os.isatty(2) and os.environ.get("TERM") != "dumb"
        self._quiet = quiet
        self._layers: dict[str, LayerProgress] = {}
        # Protects the state of the layers: they are pulled by several threads, and any of them draws.
        self._lock = threading.Lock()
        self._drawn = 0
        self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal:
            with self._lock:
                self._draw()

    def update(self, news: LayerProgress) -> None:
        if self._quiet:
            return
        with self._lock:
            before = self._layers.get(news.layer)
            self._layers[news.layer] = news
            if not self._terminal:
                if (before is None or before.step != news.step) and news.step != "waiting":
                    print(f"hutch: {self._line(news)}", file=sys.stderr, flush=True)
            elif time.monotonic() - self._last > _REDRAW_SECONDS:
                self._draw()

    def _draw(self) -> None:
        width, height = os.get_terminal_size(2)
        lines = [self._bar(news)[: max(1, width - 1)] for news in self._layers.values()][: max(1, height - 1)]
        back = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        sys.stderr.write(back + "".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
        self._drawn = len(lines)
        self._last = time.monotonic()

    def _bar(self, news: LayerProgress) -> str:
        if news.step != "fetching" or not news.total:
            return self._line(news)
        full = _BAR_WIDTH * min(news.done, news.total) // news.total
        bar = f"[{'#' * full}{' ' * (_BAR_WIDTH - full)}]"
        return f"{_short(news.layer)}  {bar} {byte_size(news.done)} of {byte_size(news.total)}"

    def _line(self, news: LayerProgress) -> str:
        return f"{_short(news.layer)}  {_STEP_TEXTS[news.step]}, {byte_size(news.total)}"


def _short(digest: str) -> str:
    return digest.partition(":")[2][:_SHORT]
