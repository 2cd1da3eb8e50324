"""One HTTP request to a registry: TLS or, where allowed, plain; through the proxy that the environment names.

A host in the configuration may be anywhere; a host that only a registry named must have a public address. A registry
may redirect us, or send us elsewhere for a token. If that led to this machine, its network or a cloud's metadata
service, we would send requests there on the registry's behalf. So the address of such a host is resolved and checked
once, and the connection goes to that address: a name that is resolved twice may mean another machine the second time.
"""

import contextlib
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from hutch import __version__
from hutch.errors import ConfigError, EngineError, HutchError, Refused, Unavailable
from hutch.images.settings import RegistrySettings
from hutch.model.units import format_bytes

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_MAX_REDIRECTS = 5
_USER_AGENT = f"hutch/{__version__}"
TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)


class ConnectionRules(NamedTuple):
    """How a registry may be reached."""

    timeout: float
    known: Mapping[str, RegistrySettings]
    """Settings by HOST[:PORT], of the registry itself and of the hosts that the configuration has a table for."""


def dial(url: str, rules: ConnectionRules) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection for one request, and the request's target. Raises Refused for a host that is not allowed."""
    parts = urlsplit(url)
    host, known = parts.hostname or "", rules.known.get(parts.netloc)
    if parts.scheme not in ("http", "https") or not host:
        raise Refused(f"{url!r} is not a registry address")
    if parts.scheme == "http" and not (is_loopback(host) or (known is not None and known.insecure)):
        raise Refused(
            f"{parts.netloc} would be contacted without TLS",
            remedy=f'set insecure = true in [images.registries."{parts.netloc}"]',
        )
    context = _context(parts.netloc, known) if parts.scheme == "https" else None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxy = "" if is_loopback(host) or proxy_bypass(host) else getproxies().get(parts.scheme, "")
    if proxy:
        if known is None:
            _check_literal(parts)  # the proxy resolves the name
        return _via_proxy(proxy, parts, context, rules.timeout, target, url)
    connection = _new_connection(host, parts.port, context, rules.timeout)
    if known is None:
        connection.sock = _public_socket(parts, context, rules.timeout)
    return connection, target


def _new_connection(
    host: str, port: int | None, context: ssl.SSLContext | None, timeout: float
) -> http.client.HTTPConnection:
    if context is None:
        return http.client.HTTPConnection(host, port, timeout=timeout)
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def _via_proxy(
    proxy: str, parts: SplitResult, context: ssl.SSLContext | None, timeout: float, target: str, url: str
) -> tuple[http.client.HTTPConnection, str]:
    via = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    if not via.hostname:
        raise Refused(f"the proxy {proxy!r} of the environment is not an address")
    connection = _new_connection(via.hostname, via.port or 80, context, timeout)
    if context is None:
        return connection, url
    connection.set_tunnel(parts.hostname or "", parts.port or 443)
    return connection, target


def _public_socket(parts: SplitResult, context: ssl.SSLContext | None, timeout: float) -> socket.socket:
    host = parts.hostname or ""
    port = parts.port or (80 if context is None else 443)
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not all(map(is_public, found)):
        raise _not_public(parts.netloc)
    failure = OSError(f"{host} has no address")
    for address in found:
        try:
            sock = socket.create_connection((address, port), timeout)
        except OSError as error:
            failure = error
            continue
        return sock if context is None else context.wrap_socket(sock, server_hostname=host)
    raise failure


def _check_literal(parts: SplitResult) -> None:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(parts.hostname or "")
        if not is_public(parts.hostname or ""):
            raise _not_public(parts.netloc)


def _not_public(netloc: str) -> Refused:
    return Refused(
        f"a registry refers us to {netloc}, which is on this machine or on a network that is not public",
        remedy=f'if it should be contacted, add the table [images.registries."{netloc}"]',
    )


def _context(netloc: str, known: RegistrySettings | None) -> ssl.SSLContext:
    """Trust the authority of the host's own table; without one, those that the system trusts."""
    authority = known.authority if known is not None else ""
    try:
        return ssl.create_default_context(cafile=authority or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the authority of registry {netloc} cannot be read: {authority}: {error}",
            remedy=f'name a PEM file in [images.registries."{netloc}"]',
        ) from error


def is_public(address: str) -> bool:
    """Return whether this is a public address, also if it is an IPv4 address embedded in IPv6."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in _NAT64:
            inner = ipaddress.IPv4Address(found.packed[-4:])
        if inner is not None:
            return inner.is_global and not inner.is_multicast
    return found.is_global and not found.is_multicast


def is_loopback(host: str) -> bool:
    """Return whether traffic to this host stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class TransientError(Exception):
    """The connection failed; the same request may succeed later."""


class Response:
    """A response whose body the caller reads and closes."""

    def __init__(self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, url: str) -> None:
        self._response = response
        self._connection = connection
        self.url = url
        self.status = response.status

    def header(self, name: str) -> str:
        return self._response.headers.get(name) or ""

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes; empty at the end. Raises TransientError if the body is shorter than promised."""
        try:
            data = self._response.read(count)
        except (http.client.HTTPException, OSError) as error:
            raise TransientError(_reason(error)) from error
        # http.client does not report a body that ends too early when it is read in pieces.
        if not data and self._response.length:
            raise TransientError(f"the connection ended {self._response.length} bytes too early")
        return data

    def read_all(self, limit: int, what: str) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while data := self.read(1 << 16):
            size += len(data)
            if size > limit:
                raise EngineError(f"{what} is larger than {format_bytes(limit)}, which no honest one is")
            pieces.append(data)
        return b"".join(pieces)

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def request(
    url: str, rules: ConnectionRules, headers: dict[str, str], *, method: str = "GET", body: bytes | None = None
) -> Response:
    """Send a request and follow redirects where `dial` permits. Credentials go only to the host they are for."""
    origin = _host_of(url)
    for _ in range(_MAX_REDIRECTS):
        response = _send(url, rules, headers, method, body)
        if response.status not in (301, 302, 303, 307, 308) or not response.header("Location"):
            return response
        following = urljoin(url, response.header("Location"))
        response.close()
        if _host_of(following) != origin:
            headers = {name: value for name, value in headers.items() if name != "Authorization"}
            method, body = "GET", None  # the body posted for a token is a secret too
        url = following
    raise EngineError(f"{origin[1]} redirected us more than {_MAX_REDIRECTS} times")


def _host_of(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _send(url: str, rules: ConnectionRules, headers: dict[str, str], method: str, body: bytes | None) -> Response:
    parts = urlsplit(url)
    connection: http.client.HTTPConnection | None = None
    try:
        connection, target = dial(url, rules)
        connection.request(
            method, target, body=body, headers={"User-Agent": _USER_AGENT, "Host": parts.netloc, **headers}
        )
        return Response(connection.getresponse(), connection, url)
    except ssl.SSLCertVerificationError as error:
        _close(connection)
        raise Unavailable(
            f"{parts.netloc} cannot be trusted: {error.verify_message}",
            retryable=False,
            remedy=f'name the file of its authority in [images.registries."{parts.netloc}"], or add it to the system',
        ) from error
    except ssl.SSLError as error:
        _close(connection)
        if "WRONG_VERSION_NUMBER" in str(error) or "HTTP_REQUEST" in str(error):
            raise Unavailable(
                f"{parts.netloc} does not speak TLS",
                retryable=False,
                remedy=f'set insecure = true in [images.registries."{parts.netloc}"], or use --insecure',
            ) from error
        raise TransientError(_reason(error)) from error
    except HutchError:
        raise  # some HutchErrors are OSErrors too
    except ValueError as error:  # a port out of range, or a name that cannot be encoded
        _close(connection)
        raise Refused(f"{url!r} is not a registry address") from error
    except (http.client.HTTPException, OSError) as error:
        _close(connection)
        raise TransientError(_reason(error)) from error


def _close(connection: http.client.HTTPConnection | None) -> None:
    if connection is not None:
        connection.close()


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"DNS knows no such host, or does not answer here ({error.strerror})"
    return str(error) or type(error).__name__
