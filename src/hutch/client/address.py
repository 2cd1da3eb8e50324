"""Where a server is: `http://host:port`, `https://host:port`, or `unix:/path` of its socket."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hutch.client.http import Connection, Unreached
from hutch.errors import Invalid

if TYPE_CHECKING:
    import ssl

CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Address:
    """One door of one server."""

    url: str
    """As people write it."""
    path: str = ""
    """Of the Unix socket; empty: TCP."""
    host: str = ""
    port: int = 0
    tls: bool = False
    ca: str = ""
    """Certificates that vouch for the server (PEM); empty: those of this machine."""

    @property
    def named(self) -> str:
        """For the Host header."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @cached_property
    def _tls(self) -> "ssl.SSLContext | None":
        if not self.tls:
            return None
        import ssl  # slow to load, and most servers are on this machine

        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:  # ssl.SSLError is one too
            raise Invalid(f"the certificates in {self.ca} cannot be used: {error}", remedy="check `ca`") from error

    async def connect(self, done: Callable[[Connection], None]) -> Connection:
        """A new connection; Unreached if there is none to be had."""
        loop = asyncio.get_running_loop()
        tls = self._tls
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self.path:
                    _, made = await loop.create_unix_connection(lambda: Connection(done), self.path)
                else:
                    _, made = await loop.create_connection(lambda: Connection(done), self.host, self.port, ssl=tls)
        except OSError as error:  # TimeoutError and ssl.SSLError are some too
            raise Unreached(
                f"no server answers at {self.url}: {error or 'it took too long'}",
                remedy="start one (`hutch serve`), or check the address",
            ) from error
        return made


def address_of(url: str, ca: str = "") -> Address:
    """What `url` means; Invalid if it means nothing."""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if path:
            return Address(url=url, path=path)
    else:
        try:
            parts = urlsplit(url)
            plain = not (parts.path.strip("/") or parts.query or parts.username)
            if parts.scheme in ("http", "https") and parts.hostname and plain:
                tls = parts.scheme == "https"
                port = parts.port or (443 if tls else 80)
                return Address(url=url, host=parts.hostname, port=port, tls=tls, ca=ca)
        except ValueError:  # a port that is none
            pass
    raise Invalid(
        f"{url!r} is no address of a server", remedy="write http://HOST:PORT, https://HOST:PORT or unix:/PATH"
    )
