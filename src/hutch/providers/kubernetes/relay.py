"""What runs beside a box in its Pod, in Hutch's own image: it unpacks the guest, and carries a keeper's bytes to it.

    python3 -m hutch.providers.kubernetes.relay unpack DIRECTORY
    python3 -m hutch.providers.kubernetes.relay serve SOCKET_DIRECTORY KEY_DIRECTORY PORT

A keeper connects by TLS and sends the box's token in one line; from then on the connection is the guest's socket. The
relay reads nothing else of what it carries. Where no keeper can reach the port, the cluster's exec API runs the relay
of `guest_bundle` in this container instead.
"""

import asyncio
import contextlib
import hmac
import resource
import ssl
import sys
from pathlib import Path

from hutch.logs import log
from hutch.providers.guest_bundle.listener import SOCKET_NAME
from hutch.providers.guest_bundle.pack import guest_bundle

TOKEN_BYTES = 64
_MOST_STRANGERS = 64
_MOST_DESCRIPTORS = 256
"""The box itself can reach the relay: without a bound it could fill the relay's memory with open connections."""
_TOKEN_SECONDS = 10.0
_GUEST_SECONDS = 60.0
_PIECE = 1 << 18


def main() -> None:
    match sys.argv[1:]:
        case ["unpack", directory]:
            unpack(Path(directory))
        case ["serve", place, keys, port]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_DESCRIPTORS, _MOST_DESCRIPTORS))
            asyncio.run(Relay(Path(place), Path(keys)).serve(int(port)))
        case _:
            sys.exit(__doc__)


def unpack(directory: Path) -> None:
    """Put the guest where the box's container finds it."""
    for name, content in guest_bundle().files:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name.startswith(("bin/", "lib/ld")) else 0o644)


class Relay:
    """Accepts keepers and connects each to the guest."""

    def __init__(self, place: Path, keys: Path) -> None:
        self._socket = place / SOCKET_NAME
        self._token = (keys / "token").read_bytes().strip()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self._tls.load_cert_chain(keys / "tls.crt", keys / "tls.key")
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """Callers that have sent no token yet, the oldest first."""
        self._guest_seconds = _GUEST_SECONDS
        """How long to wait for the guest's socket: only a guest that nobody has met yet may still be starting."""

    async def serve(self, port: int) -> None:
        server = await asyncio.start_server(
            self._serve_one, None, port, ssl=self._tls, ssl_handshake_timeout=_TOKEN_SECONDS, limit=_PIECE
        )
        async with server:
            await server.serve_forever()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= _MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            known = await self._is_keeper(reader)
            self._strangers.pop(writer, None)
            if known:
                await self._carry(reader, writer)
        except (OSError, ssl.SSLError) as error:
            log("kubernetes").info("a keeper's connection ended", error=error)
        finally:
            self._strangers.pop(writer, None)
            writer.close()

    async def _is_keeper(self, reader: asyncio.StreamReader) -> bool:
        try:
            async with asyncio.timeout(_TOKEN_SECONDS):
                sent = await reader.readexactly(TOKEN_BYTES + 1)
        except (TimeoutError, asyncio.IncompleteReadError):
            return False
        return hmac.compare_digest(sent, self._token + b"\n")

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry both directions until one end closes; then the other end is closed too."""
        guest_reader, guest_writer = await self._guest()
        copies = [
            asyncio.create_task(_copy(reader, guest_writer)),
            asyncio.create_task(_copy(guest_reader, writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            guest_writer.close()

    async def _guest(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the guest, which may have been started a moment ago."""
        deadline = asyncio.get_running_loop().time() + self._guest_seconds
        while True:
            try:
                connected = await asyncio.open_unix_connection(self._socket, limit=_PIECE)
                self._guest_seconds = 0.0
                return connected
            except (FileNotFoundError, ConnectionRefusedError):
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(0.01)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # the other end has gone, which ends both directions
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    main()
