"""Commands about the ports of a box: what listens, an address for browsers, and a way in from this machine."""

import argparse
import asyncio
import time

from hutch.api import Box, PortConnection
from hutch.cli.connect import attach_box, open_hutch
from hutch.cli.options import add_box, duration
from hutch.cli.output import columns, emit_json, note
from hutch.cli.parsers import CliCommand
from hutch.errors import HutchError, Invalid, Unavailable

READ_BYTES = 1 << 18


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a number from 1 to 65535")
    return int(text)


class Ports(CliCommand):
    """Show which TCP ports the programs in a box listen on."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--wait", type=duration, default=0.0, metavar="TIME", help="wait until the ports of its spec listen"
        )
        add_box(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            found = await (await attach_box(hutch, arguments)).ports(wait=arguments.wait)
        if arguments.json:
            emit_json({"ports": [each.to_plain() for each in found]})
        elif found:
            rows = [(str(each.port), each.address, each.process or "?", str(each.pid or "?")) for each in found]
            print("\n".join(columns(("PORT", "ADDRESS", "PROGRAM", "PID"), rows)))
        else:
            note("nothing listens in this box")
        return 0


class Url(CliCommand):
    """Print an address at which a browser sees a port of a box, at an origin of its own. A server serves it.

    Whoever has the address gets in, until it ends. --public makes one without a token, --revoke ends one.
    """

    epilog = """\
examples:
  hutch box url dev 5173                           for an hour
  hutch box url --ttl 5m --public dev 8000         for five minutes, for everybody who knows the name
  hutch box url --list dev
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ttl", type=duration, default=3600.0, metavar="TIME", help="how long: 5m, 2h, 0 (1h)")
        parser.add_argument("--public", action="store_true", help="no token: the name alone opens it")
        parser.add_argument("--path", action="store_true", help="the form without a host name of its own")
        parser.add_argument(
            "--list", action="store_true", dest="show", help="the previews of the box that have not ended"
        )
        parser.add_argument("--revoke", metavar="ID", help="end this preview now")
        add_box(parser)
        parser.add_argument("port", nargs="?", type=_port, help="the port inside the box")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            if arguments.show:
                await _show_previews(box, as_json=arguments.json)
            elif arguments.revoke:
                await box.revoke(arguments.revoke)
            elif arguments.port is None:
                raise Invalid("there is no port", op="url", remedy="for example: hutch box url BOX 5173")
            else:
                preview = await box.url(arguments.port, public=arguments.public, ttl_sec=arguments.ttl)
                if arguments.json:
                    emit_json(preview.to_plain())
                else:
                    print(preview.path_url if arguments.path or not preview.url else preview.url)
        return 0


async def _show_previews(box: Box, *, as_json: bool) -> None:
    found = await box.previews()
    if as_json:
        emit_json({"previews": [each.to_plain() for each in found]})
        return
    now = time.time()
    rows = [
        (each.id, str(each.port or "all"), "everybody" if each.public else "token",
         f"{each.expires_at - now:.0f} s" if each.expires_at else "as the box")
        for each in found
    ]  # fmt: skip
    print("\n".join(columns(("ID", "PORT", "FOR", "ENDS"), rows)))


class Forward(CliCommand):
    """Let a port of this machine lead to a port of a box, until it is interrupted. Only this machine can connect."""

    epilog = """\
examples:
  hutch box forward dev 5432                       psql -h 127.0.0.1 -p 5432
  hutch box forward dev 5432 --local 0             prints the port that was free
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--local", type=int, metavar="PORT", help="the port here (the same; 0: any free one)")
        add_box(parser)
        parser.add_argument("port", type=_port, help="the port inside the box")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        local = arguments.port if arguments.local is None else arguments.local
        async with open_hutch(arguments) as hutch:
            forwarder = Forwarder(await attach_box(hutch, arguments), arguments.port)
            try:
                server = await asyncio.start_server(forwarder.serve, "127.0.0.1", local)
            except (OSError, OverflowError) as error:
                raise Unavailable(
                    f"port {local} of this machine cannot be used: {error}", op="forward",
                    remedy="name another one with --local, or 0 for any",
                ) from error  # fmt: skip
            async with server:
                bound: int = server.sockets[0].getsockname()[1]
                if arguments.json:
                    emit_json({"local": bound, "port": arguments.port})
                else:
                    print(f"127.0.0.1:{bound} leads to port {arguments.port} of the box; Ctrl-C ends it", flush=True)
                await server.serve_forever()
        return 0


class Forwarder:
    """Carries connections from this machine into one port of a box."""

    def __init__(self, box: Box, port: int) -> None:
        self._box = box
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        try:
            async with await self._box.connect(self._port) as inner, asyncio.TaskGroup() as both:
                both.create_task(_carry_in(reader, inner))
                both.create_task(_carry_out(inner, writer))
        except* HutchError as errors:
            note(str(errors.exceptions[0]))
        except* OSError:
            pass  # The program here closed its connection.
        finally:
            writer.close()


async def _carry_in(reader: asyncio.StreamReader, inner: PortConnection) -> None:
    while data := await reader.read(READ_BYTES):
        await inner.send(data)
    await inner.end()


async def _carry_out(inner: PortConnection, writer: asyncio.StreamWriter) -> None:
    while data := await inner.receive():
        writer.write(data)
        await writer.drain()
    writer.write_eof()
