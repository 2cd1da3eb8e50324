"""The endpoint of an engine: a Unix socket or TCP, with or without TLS, configured or found in the usual places."""

import hashlib
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hutch.errors import ConfigError, Unavailable


class Endpoint(NamedTuple):
    """The address at which one engine listens."""

    path: str = ""
    """The path of a Unix socket, or "" if it is TCP."""
    host: str = ""
    port: int = 0
    certificates: str = ""
    """The directory with ca.pem, cert.pem and key.pem, or "" without TLS."""

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"tcp://{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        return bool(self.path)

    def tls(self) -> ssl.SSLContext | None:
        if not self.certificates:
            return None
        place = Path(self.certificates)
        try:
            context = ssl.create_default_context(cafile=place / "ca.pem")
            context.load_cert_chain(place / "cert.pem", place / "key.pem")
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"the certificates in {place} cannot be used: {error}", op="connect") from error
        return context


def parse(text: str, certificates: str = "") -> Endpoint:
    """Parse `unix:///path`, an absolute path, or `tcp://host:port`."""
    kind, separator, rest = text.partition("://")
    if not separator:
        kind, rest = "unix", text
    if kind == "unix" and rest.startswith("/"):
        return Endpoint(path=rest)
    if kind in ("tcp", "http", "https"):
        host, _, port = rest.rstrip("/").rpartition(":")
        if host and port.isdecimal():
            return Endpoint(host=host.strip("[]"), port=int(port), certificates=certificates)
    raise ConfigError(f"{text!r} is no address of an engine", remedy="write unix:///path/to/socket or tcp://host:port")


def docker(environment: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Look at DOCKER_HOST, then the command line's current context, then the usual sockets, rootful first."""
    home = Path(environment.get("HOME") or "/")
    if asked := environment.get("DOCKER_HOST"):
        verify = environment.get("DOCKER_TLS_VERIFY")
        return parse(asked, (environment.get("DOCKER_CERT_PATH") or str(home / ".docker")) if verify else "")
    if found := _context(Path(environment.get("DOCKER_CONFIG") or home / ".docker"), environment):
        return parse(found)
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return _first("/var/run/docker.sock", f"{runtime}/docker.sock", str(home / ".docker/run/docker.sock"))


def podman(environment: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Look at CONTAINER_HOST, then the usual sockets: root's own, an ordinary user's own."""
    if asked := environment.get("CONTAINER_HOST"):
        return parse(asked)
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    rootful, rootless = "/run/podman/podman.sock", f"{runtime}/podman/podman.sock"
    return _first(rootful, rootless) if os.getuid() == 0 else _first(rootless, rootful)


def _first(*paths: str) -> Endpoint | None:
    for path in paths:
        if os.path.exists(path) and os.access(path, os.R_OK | os.W_OK):
            return Endpoint(path=path)
    return None


def _context(config: Path, environment: Mapping[str, str]) -> str:
    """Return the address of the context that `docker context use` has chosen, or "" for its default."""
    try:
        name = environment.get("DOCKER_CONTEXT") or json.loads((config / "config.json").read_text())["currentContext"]
        folder = hashlib.sha256(name.encode()).hexdigest()
        meta = json.loads((config / "contexts/meta" / folder / "meta.json").read_text())
        return str(meta["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
