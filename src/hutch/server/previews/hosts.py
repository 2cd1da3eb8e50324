"""Names of ports: `5173-BOX.localhost` as a host name, `/preview/5173-BOX/TOKEN/` as a path. One parser for every door.

A host name is an origin of its own, so browsers keep its storage and cookies from every other preview and from the
server. The path form is for places without wildcard names; its pages get an opaque origin by a header (`headers.py`).
"""

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from hutch.errors import ConfigError
from hutch.model.ids import BoxId

PATH_PREFIX = "/preview/"
NO_TOKEN = "-"
"""Stands for the token in the path of a public preview."""
_HOST = re.compile(r"([A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_LABEL = re.compile(r"([1-9][0-9]{0,4})-([a-z0-9]{20})")


class PortName(NamedTuple):
    """The port of a box that a name stands for."""

    box_id: BoxId
    port: int

    @property
    def label(self) -> str:
        return f"{self.port}-{self.box_id}"


class PathName(NamedTuple):
    """A preview in the path form."""

    name: PortName
    token: str
    prefix: str
    """What the box does not see: `/preview/5173-BOX/TOKEN`, as the visitor wrote it."""


def parse_label(label: str) -> PortName | None:
    """Parse `PORT-BOX`; None if it is not the name of a port of a box."""
    match = _LABEL.fullmatch(label)
    if match is None or not 1 <= int(match[1]) <= 65535:
        return None
    return PortName(BoxId(match[2]), int(match[1]))


def parse_path(path: str) -> PathName | None:
    """Parse the path form; None if the path is not of that form."""
    if not path.startswith(PATH_PREFIX):
        return None
    label, _, rest = path.removeprefix(PATH_PREFIX).partition("/")
    token, _, _ = rest.partition("/")
    name = parse_label(label)
    if name is None or not token:
        return None
    return PathName(name, "" if token == NO_TOKEN else token, f"{PATH_PREFIX}{label}/{token}")


def host_name(host: str) -> str:
    """Return the name of a Host header in lower case, without port and final dot; empty if it is none.

    The program in the box gets the header as it is and may write it into links, so it is nothing but a name and a port.
    """
    match = _HOST.fullmatch(host)
    return match[1].lower().removesuffix(".") if match is not None else ""


class PreviewHosts:
    """The host names below one domain, and the addresses made of them."""

    def __init__(self, base: str, own: frozenset[str] = frozenset()) -> None:
        """`base` is the URL whose host is the domain of all previews; `own` are names below it that are the server's.

        Raises:
            ConfigError: It is no such URL.
        """
        try:
            parts = urlsplit(base)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if parts.scheme not in ("http", "https") or not parts.hostname or extra:
            raise ConfigError(
                f"server.previews = {base!r} is no address of previews",
                remedy="write http://DOMAIN:PORT or https://DOMAIN", details={"field": "server.previews"},
            )  # fmt: skip
        self.scheme = parts.scheme
        self.domain = parts.hostname.lower()
        self._suffix = f".{self.domain}"
        self._port = f":{port}" if port else ""
        self._own = own

    def covers(self, host: str) -> bool:
        """Whether a Host header names something below the domain. Nothing of the server itself is served there."""
        name = host_name(host)
        return name.endswith(self._suffix) and name not in self._own

    def parse(self, host: str) -> PortName | None:
        """Return the port that a Host header names; None if it names none."""
        name = host_name(host)
        return parse_label(name.removesuffix(self._suffix)) if name.endswith(self._suffix) else None

    def origin(self, name: PortName) -> str:
        """Return the origin at which browsers see this port."""
        return f"{self.scheme}://{name.label}{self._suffix}{self._port}"
