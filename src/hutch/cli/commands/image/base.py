"""`hutch image base`: make the images of E2B's templates by one command."""

import argparse
import asyncio
import os

from hutch.cli.commands.image.build import Build
from hutch.cli.commands.image.store import open_images
from hutch.cli.connect import load_config
from hutch.cli.output import note, printable
from hutch.cli.parsers import CliCommand
from hutch.images import base


class Base(CliCommand):
    """Make the image on which E2B's template `base` stands: a Debian with `user`, Python, git, curl and bash.

    As root it is made with debootstrap, from this machine's own mirror; else, or with --from, from an image. A second
    call finds what the first one made. Without this image the template stands on this machine's own programs.
    """

    epilog = """\
examples:
  hutch image base
  hutch image base --interpreter
  hutch image base --desktop
  hutch image base --from debian:12
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--interpreter",
            action="store_const",
            const=base.INTERPRETER,
            dest="which",
            help="that of `code-interpreter-v1`: also IPython, pandas, matplotlib, Node, TypeScript",
        )
        which.add_argument(
            "--desktop",
            action="store_const",
            const=base.DESKTOP,
            dest="which",
            help="that of `desktop`: also a virtual screen, XFCE, VNC",
        )
        parser.add_argument("--from", dest="base", metavar="IMAGE", help="begin with this image of a Debian")
        parser.add_argument("--release", metavar="NAME", help="of Debian (default: this machine's, or stable)")
        parser.add_argument("--mirror", metavar="URL", help="where its packages are (default: this machine's)")
        parser.add_argument("--no-cache", action="store_true", help="make everything anew")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        name = arguments.which or base.BASE
        source = arguments.base or await asyncio.to_thread(self._bootstrap, arguments, name)
        parser = argparse.ArgumentParser()
        build = Build()
        build.add_options(parser)
        # A Debian that debootstrap made has every package; another one may have to fetch some.
        network = "on" if arguments.base else "off"
        steps = ["--copy", f"{base.SUDO}:/usr/bin/sudo", "--run", base.setup_script(name), "--workdir", "/home/user"]
        options = parser.parse_args([name, "--from", source, "--net", network, *steps])
        merged = {**vars(arguments), **vars(options), "no_cache": arguments.no_cache}
        return await build.run_async(argparse.Namespace(**merged))

    def _bootstrap(self, arguments: argparse.Namespace, name: str) -> str:
        here = base.this_distribution()
        where = base.Distribution(arguments.release or here.release, arguments.mirror or here.mirror)
        with _Progress(quiet=arguments.json) as progress:
            store = open_images(load_config(arguments))
            return base.bootstrap(store, name, where, progress.show, anew=arguments.no_cache)


class _Progress:
    """Shows the present step: on one line of a terminal, elsewhere a line for each kind of step."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = not quiet and os.isatty(2) and os.environ.get("TERM") != "dumb"
        self._kind = ""

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            os.write(2, b"\r\x1b[K")

    def show(self, step: str) -> None:
        if self._terminal:
            os.write(2, f"\r\x1b[K{printable(step)[:100]}".encode())
            return
        kind = step.partition(" ")[0]
        if kind != self._kind and not self._quiet:
            note(printable(step)[:100])
        self._kind = kind
