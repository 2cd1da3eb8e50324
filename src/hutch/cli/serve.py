"""Serve boxes to other processes over HTTP: on a Unix socket for this user, on TCP for whoever has a key."""

import argparse
import asyncio
import sys
from typing import Any

from hutch import logs
from hutch.cli.embedded import not_linux
from hutch.cli.output import emit_json, note
from hutch.config import Config
from hutch.errors import Unavailable

JSON = "one JSON object on standard output as soon as it takes requests: where, and what works; errors too"
EPILOG = """\
SIGTERM ends it gently: requests finish, boxes go on, and the next start takes them over.
The first start makes an admin key and says where it is; `hutch key` makes more.
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="ADDRESS", help='TCP address, 127.0.0.1 by default; "" for none')
    parser.add_argument("--port", type=int, help="TCP port, 7300 by default; 0 for any")
    parser.add_argument("--socket", metavar="PATH", help="Unix socket, server.sock in the run directory by default")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM); TCP then speaks TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    parser.add_argument(
        "--private", action="store_true", help="end with standard input, and end the boxes too (`Hutch.launch`)"
    )


def run(arguments: argparse.Namespace) -> int:
    names = ("host", "port", "socket", "tls_cert", "tls_key")
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    config = Config.load(arguments.config, server=given or None)
    if sys.platform != "linux":
        raise not_linux()
    level = config.log_level if config.origin("log_level") != "default" else "info"
    logs.configure(level="debug" if arguments.verbose else level, format=config.log_format)
    try:
        from hutch.server.run import prepared, serve
    except ImportError as error:
        raise Unavailable(
            f"the server's parts are not installed: {error}", retryable=False, remedy="pip install 'hutch[server]'"
        ) from error
    ready = emit_json if arguments.json else None
    asyncio.run(serve(prepared(config), note, private=arguments.private, ready=ready))
    return 0
