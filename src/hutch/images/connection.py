"""One HTTP request to a registry: TLS or, where allowed, plain; through the proxy that the environment names."""

import http.client
import socket
import ssl
from urllib.parse import urljoin, urlsplit

from hutch import __version__
from hutch.errors import EngineError, HutchError, Refused, Unavailable
from hutch.images.connect import Rules, dial

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


def request(
    url: str, rules: Rules, headers: dict[str, str], *, method: str = "GET", body: bytes | None = None
) -> Answer:
    """Follows redirects, where `dial` lets us. Credentials go to the host they are for and to no other."""
    origin = _host_of(url)
    for _ in range(_MOST_REDIRECTS):
        answer = _once(url, rules, headers, method, body)
        if answer.status not in (301, 302, 303, 307, 308) or not answer.header("Location"):
            return answer
        following = urljoin(url, answer.header("Location"))
        answer.close()
        if _host_of(following) != origin:
            headers = {name: value for name, value in headers.items() if name != "Authorization"}
            method, body = "GET", None  # what is posted for a token is a secret too
        url = following
    raise EngineError(f"{origin[1]} sent us from one place to the next more than {_MOST_REDIRECTS} times")


def _host_of(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _once(url: str, rules: Rules, headers: dict[str, str], method: str, body: bytes | None) -> Answer:
    parts = urlsplit(url)
    connection: http.client.HTTPConnection | None = None
    try:
        connection, target = dial(url, rules)
        connection.request(method, target, body=body, headers={"User-Agent": _AGENT, "Host": parts.netloc, **headers})
        return Answer(connection.getresponse(), connection, url)
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
        raise Cut(_reason(error)) from error
    except HutchError:
        raise  # some are OSErrors too
    except ValueError as error:  # a port beyond all numbers, a name that no encoding knows
        _close(connection)
        raise Refused(f"{url!r} is no address of a registry") from error
    except (http.client.HTTPException, OSError) as error:
        _close(connection)
        raise Cut(_reason(error)) from error


def _close(connection: http.client.HTTPConnection | None) -> None:
    if connection is not None:
        connection.close()


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name cannot be resolved ({error.strerror})"
    return str(error) or type(error).__name__
