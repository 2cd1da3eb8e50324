"""`hutch dashboard`: open the web page of the server that keeps the boxes, signed in by a one-time link."""

import argparse
import os
import webbrowser

from hutch.cli.connect import client_of, load_config
from hutch.cli.output import emit_json, note
from hutch.cli.parsers import CliCommand
from hutch.config import announcement
from hutch.errors import Unavailable


class Dashboard(CliCommand):
    """Print a link that signs one browser in, once, within minutes, and open it if there is a screen."""

    epilog = """\
The link stands for whoever runs this command: this machine's user at its own server, else the key in use.
Whoever opens it first is signed in, so treat it like a key until then.
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--no-open", action="store_true", help="only print the link")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        config = load_config(arguments)
        client = client_of(arguments, config)
        if client is None:
            raise Unavailable(
                "no server runs here, and the dashboard is served by one", op="dashboard", retryable=False,
                remedy="start one: hutch serve",
            )  # fmt: skip
        async with client:
            path = await client.dashboard_path()
        base = client.url if client.url.startswith("http") else announcement.read(config.state_dir).get("url", "")
        if not base:
            raise Unavailable(
                "the server listens on its Unix socket only, which browsers cannot reach", op="dashboard",
                retryable=False, remedy="give it an address: hutch serve --host 127.0.0.1",
            )  # fmt: skip
        link = announcement.browser_url(base.rstrip("/")) + path
        if arguments.json:
            emit_json({"url": link})
        else:
            print(link)
        if not arguments.no_open and _has_screen() and not webbrowser.open(link):
            note("no browser could be started: open the link yourself")
        return 0


def _has_screen() -> bool:
    """Return whether a browser could show anything here; elsewhere `webbrowser` would take over the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
