"""Pull an image from a registry; layers that are here already are not fetched again.

A password is read from standard input, from the environment (HUTCH_REGISTRY for its host, HUTCH_REGISTRY_USERNAME and
HUTCH_REGISTRY_PASSWORD), from the configuration or from the files that `docker login` and `podman login` write; never
from the command line.
"""

import argparse
import sys

from hutch.cli.image import text
from hutch.cli.image.open_store import store_of
from hutch.cli.image.progress import Watch
from hutch.cli.output import emit_json
from hutch.errors import Invalid
from hutch.images import manifests
from hutch.images.credentials import Credentials
from hutch.images.pull import Pulling, pull


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="NAME[:TAG], HOST[:PORT]/NAME[:TAG] or NAME@sha256:…")
    parser.add_argument("--platform", metavar="OS/ARCH", help="of several, take this one (default: this machine's)")
    parser.add_argument("--username", "-u", metavar="NAME", help="who you are to the registry")
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    parser.add_argument("--insecure", action="store_true", help="plain HTTP, also to another machine")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    with Watch(quiet=arguments.json or arguments.quiet) as watch:
        how = Pulling(
            platform=manifests.platform_of(arguments.platform) if arguments.platform else None,
            credentials=_credentials(arguments),
            insecure=arguments.insecure,
            listener=watch.tell,
        )
        image = pull(store, arguments.name, how)
    if arguments.json:
        emit_json(text.full(store, image))
    else:
        print(f"{text.short(store, image.stored.name)} {image.digest}")
    return 0


def _credentials(arguments: argparse.Namespace) -> Credentials | None:
    if not arguments.username and not arguments.password_stdin:
        return None
    if not arguments.username or not arguments.password_stdin:
        raise Invalid("--username and --password-stdin belong together", remedy="give both, or `docker login` first")
    return Credentials(arguments.username, sys.stdin.readline().rstrip("\r\n"))
