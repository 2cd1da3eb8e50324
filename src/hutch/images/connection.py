"""One HTTP request to a registry: TLS or, where allowed, plain; through the proxy that the environment names."""

import http.client
import ipaddress
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from hutch import __version__
from hutch.errors import EngineError, Refused, Unavailable

_MOST_REDIRECTS = 5
_AGENT = f"hutch/{__version__}"
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class Cut(Exception):
    """The connection failed; the same request may succeed."""


class Answer:
    """What came back; the body is read by whoever asked, who then closes it."""

    def __init__(self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, url: str) -> None:
        self._response = response
        self._connection = connection
        self.url = url
        self.status = response.status

    def header(self, name: str) -> str:
        return self._response.headers.get(name) or ""

    def read(self, count: int) -> bytes:
        """Empty at the end. Cut if the end came before the length that was promised."""
        try:
            data = self._response.read(count)
        except (http.client.HTTPException, OSError) as error:
            raise Cut(_reason(error)) from error
        # http.client is silent about a body that ends too early when it is read in pieces.
        if not data and self._response.length:
            raise Cut(f"the connection ended {self._response.length} bytes too early")
        return data

    def read_all(self, most: int, what: str) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while data := self.read(1 << 16):
            size += len(data)
            if size > most:
                raise EngineError(f"{what} has more than {most} bytes")
            pieces.append(data)
        return b"".join(pieces)

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class Rules(NamedTuple):
    """How a registry may be reached."""

    insecure: bool
    """Plain HTTP to another machine is allowed, by configuration."""
    timeout: float
    local: bool = False
    """The registry is on this machine. One that is not must not send us, by a redirect or for a token, to services that
    only this machine can reach."""


def request(
    url: str, rules: Rules, headers: dict[str, str], *, method: str = "GET", body: bytes | None = None
) -> Answer:
    """Follows redirects. Credentials go to the host they are for and to no other."""
    origin = urlsplit(url).netloc
    for _ in range(_MOST_REDIRECTS):
        answer = _once(url, rules, headers, method, body)
        if answer.status not in (301, 302, 303, 307, 308) or not answer.header("Location"):
            return answer
        following = urljoin(url, answer.header("Location"))
        answer.close()
        if urlsplit(following).netloc != origin:
            headers = {name: value for name, value in headers.items() if name != "Authorization"}
            method, body = "GET", None  # what is posted for a token is a secret too
        url = following
    raise EngineError(f"{origin} sent us from one place to the next more than {_MOST_REDIRECTS} times")


def _once(url: str, rules: Rules, headers: dict[str, str], method: str, body: bytes | None) -> Answer:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise Refused(f"{url!r} is no address of a registry")
    if parts.scheme == "http" and not (rules.insecure or is_loopback(host)):
        raise Refused(
            f"{parts.netloc} would be asked without TLS", remedy=f'set insecure = true in [images.registries."{host}"]'
        )
    if is_loopback(host) and not rules.local:
        raise Refused(f"a registry of another machine sends us to {parts.netloc} on this one")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection, target = _connect(parts.scheme, host, parts.port, target, url, rules.timeout)
    try:
        connection.request(method, target, body=body, headers={"User-Agent": _AGENT, "Host": parts.netloc, **headers})
        return Answer(connection.getresponse(), connection, url)
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise Unavailable(
            f"{parts.netloc} cannot be trusted: {error.verify_message}",
            retryable=False,
            remedy="add its authority to the system's certificates, or name a file in SSL_CERT_FILE",
        ) from error
    except ssl.SSLError as error:
        connection.close()
        if "WRONG_VERSION_NUMBER" in str(error) or "HTTP_REQUEST" in str(error):
            raise Unavailable(
                f"{parts.netloc} does not speak TLS",
                retryable=False,
                remedy=f'set insecure = true in [images.registries."{parts.netloc}"], or use --insecure',
            ) from error
        raise Cut(_reason(error)) from error
    except (http.client.HTTPException, OSError) as error:
        connection.close()
        raise Cut(_reason(error)) from error


def _connect(
    scheme: str, host: str, port: int | None, target: str, url: str, timeout: float
) -> tuple[http.client.HTTPConnection, str]:
    proxy = "" if is_loopback(host) or proxy_bypass(host) else getproxies().get(scheme, "")
    if not proxy:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout), target
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context()), target
    via = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    if not via.hostname:
        raise Refused(f"the proxy {proxy!r} of the environment is no address")
    if scheme == "http":
        return http.client.HTTPConnection(via.hostname, via.port or 80, timeout=timeout), url
    tunnel = http.client.HTTPSConnection(
        via.hostname, via.port or 80, timeout=timeout, context=ssl.create_default_context()
    )
    tunnel.set_tunnel(host, port or 443)
    return tunnel, target


def is_loopback(host: str) -> bool:
    """Whether what is said to this host stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name cannot be resolved ({error.strerror})"
    return str(error) or type(error).__name__
