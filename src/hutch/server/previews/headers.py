"""The headers that enter a box with a request, and those that leave it with the answer. Its program is not trusted.

A request takes in no credentials of the server: no key of Hutch, no token of the preview, no header by which the server
is told something. Its answer brings out no headers that would act beyond the preview's own origin. Between two servers
of one store everything passes (`Passage`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]

PASSED_ON = b"hutch-passed-on"
"""Marks a request that another server has passed on. It is not passed on again, so no two send one in circles."""
COOKIE = "hutch_preview"
"""Holds the token on the preview's origin after the first visit."""
TOKEN_HEADER = b"hutch-preview"
_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip
"""RFC 9110, section 7.6.1: they speak of one connection, and the two ends of a proxy have different ones."""
_OURS = frozenset(
    {b"host", b"content-length", b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-host",
     b"x-forwarded-proto", b"x-forwarded-port", b"x-forwarded-prefix", b"x-real-ip", b"cookie"}
)  # fmt: skip
"""The proxy writes these itself, or leaves them out."""
_WEBSOCKET = frozenset(
    {b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
     b"sec-websocket-accept"}
)  # fmt: skip
_ORIGIN_WIDE = frozenset(
    {b"set-cookie", b"strict-transport-security", b"service-worker-allowed", b"nel", b"report-to",
     b"reporting-endpoints", b"access-control-allow-origin", b"access-control-allow-credentials",
     b"access-control-expose-headers", b"referrer-policy", b"www-authenticate"}
)  # fmt: skip
"""In the path form the origin of an answer is the server's own, and these would act on all of it: browsers send the
password that they asked for in the name of one program to every other program of that origin that asks for it."""
SANDBOX = b"sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads"
"""Without `allow-same-origin`, a page has an opaque origin: no storage, no cookies, and the API refuses its calls."""
_SITE_WIDE = frozenset({b"clear-site-data", b"alt-svc"})
"""`Clear-Site-Data` removes the cookies of the whole registrable domain, and `Alt-Svc` leads to other ports."""
_OUR_COOKIES = (COOKIE.encode(), b"hutch-dashboard")
"""How the names of the server's own cookies begin."""
_SECRET = re.compile(rb"hutch_k[0-9a-f]{12}_|p[0-9a-f]{16}\.[0-9a-f]{48}", re.IGNORECASE)
"""A key of Hutch, or the token of a preview."""
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00\r\n]*")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1"})


@dataclass(frozen=True)
class Visit:
    """How a request came: the facts from which both directions are translated."""

    port: int
    host: str
    """The Host header that the box sees."""
    scheme: str
    """http or https, as the visitor's browser sees it."""
    prefix: str = ""
    """The part of the path that the box does not see; empty in the host form."""
    drop: frozenset[bytes] = frozenset()
    """More headers that do not go in, in lower case, such as those with which another door's callers show who they
    are."""
    origin: str = ""
    """The origin that the box sees instead of the visitor's own one; empty to pass it on."""
    private: bool = False
    """Whether answers are for this visitor alone, so that no cache on the way may keep them for others."""
    answer_seconds: float = 300.0
    """How long the head of the answer may take; a first build of a page may take minutes."""

    def request_headers(self, received: Iterable[tuple[bytes, bytes]], *, websocket: bool = False) -> Headers:
        """Return the headers of a request as the box gets them, beside those of its body."""
        pairs = [(name.lower(), value) for name, value in received]
        dropped = _HOP_BY_HOP | _OURS | self.drop | _named_by_connection(pairs)
        if websocket:
            dropped |= _WEBSOCKET
        kept: Headers = [(b"host", self.host.encode("latin-1"))]
        kept += [
            (name, value)
            for name, value in pairs
            if name not in dropped and not name.startswith(b"hutch-") and not _SECRET.search(value)
        ]
        if self.prefix:
            # The path form shares the server's host name, and so would its cookies and its address be shared.
            kept = [(name, value) for name, value in kept if name not in (b"referer", b"origin")]
            kept.append((b"x-forwarded-prefix", self.prefix.encode("latin-1")))
        else:
            cookies = _without_ours(b"; ".join(value for name, value in pairs if name == b"cookie"))
            if cookies:
                kept.append((b"cookie", cookies))
            if self.origin:
                own = f"{self.scheme}://{_host(pairs)}".encode("latin-1")
                kept = [(n, self.origin.encode() if n == b"origin" and v.lower() == own else v) for n, v in kept]
            kept.append((b"x-forwarded-host", _host(pairs).encode("latin-1")))
        kept.append((b"x-forwarded-proto", self.scheme.encode()))
        return kept

    def response_headers(self, received: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the headers of a box's answer as the visitor gets them."""
        pairs = [(name.lower(), value) for name, value in received]
        dropped = _HOP_BY_HOP | _SITE_WIDE | _named_by_connection(pairs) | {b"date"}
        if self.prefix:
            dropped |= _ORIGIN_WIDE
        kept: Headers = []
        for name, value in pairs:
            if name in dropped:
                continue
            if name == b"set-cookie":
                value = _host_only(value)
                if not value:
                    continue
            elif name == b"location":
                value = _location(value, self)
            kept.append((name, value))
        if self.prefix:
            kept += path_form_headers()
        if self.private:
            kept.append((b"cache-control", b"private"))  # Of two directives the stricter one holds (RFC 9111, 4.2.1).
        return kept


@dataclass(frozen=True)
class Passage(Visit):
    """A request that another server answers: both ways nothing changes but what concerns one connection."""

    def request_headers(self, received: Iterable[tuple[bytes, bytes]], *, websocket: bool = False) -> Headers:
        pairs = [(name.lower(), value) for name, value in received]
        dropped = _HOP_BY_HOP | _named_by_connection(pairs) | {b"host", b"content-length", b"expect"}
        if websocket:
            dropped |= _WEBSOCKET
        kept = [pair for pair in pairs if pair[0] not in dropped]
        return [(b"host", self.host.encode("latin-1")), *kept, (PASSED_ON, b"1")]

    def response_headers(self, received: Iterable[tuple[bytes, bytes]]) -> Headers:
        pairs = [(name.lower(), value) for name, value in received]
        dropped = _HOP_BY_HOP | _named_by_connection(pairs) | {b"date"}
        return [pair for pair in pairs if pair[0] not in dropped]


def as_written(name: bytes) -> bytes:
    """Return a header's name as people write it, for programs that compare names letter by letter."""
    return b"-".join(part.capitalize() for part in name.split(b"-"))


def path_form_headers() -> Headers:
    """Return the headers that give a page of the path form an opaque origin, and let it load its own parts."""
    return [
        (b"content-security-policy", SANDBOX),
        (b"referrer-policy", b"no-referrer"),
        (b"access-control-allow-origin", b"*"),
        (b"x-content-type-options", b"nosniff"),
    ]


def is_valid(name: bytes, value: bytes) -> bool:
    """Whether a header that a box sent can be passed on as one header."""
    return _TOKEN.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None


def own_cookies(header: str) -> list[str]:
    """Return all tokens among the cookies: another page may have set a second cookie with our name."""
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [value for name, _, value in pairs if name == COOKIE]


def _named_by_connection(pairs: Headers) -> frozenset[bytes]:
    named = b",".join(value for name, value in pairs if name == b"connection").lower().split(b",")
    return frozenset(each.strip() for each in named if each.strip())


def _without_ours(cookies: bytes) -> bytes:
    parts = [part.strip() for part in cookies.split(b";")]
    return b"; ".join(part for part in parts if part and not part.startswith(_OUR_COOKIES))


def _host_only(cookie: bytes) -> bytes:
    """Return a Set-Cookie for this host alone, because a Domain would reach other previews; empty to leave it out."""
    first, *attributes = cookie.split(b";")
    if first.partition(b"=")[0].strip() == COOKIE.encode():
        return b""
    kept = [part for part in attributes if part.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([first, *kept])


def _location(value: bytes, visit: Visit) -> bytes:
    """Return where a redirect leads for the visitor, whose localhost is another one than the box's."""
    try:
        parts = urlsplit(value.decode("ascii"))
        if parts.hostname in _LOOPBACK and (parts.port or 80) == visit.port:
            value = (parts._replace(scheme="", netloc="").geturl() or "/").encode()
    except ValueError:
        return value
    if visit.prefix and value.startswith(b"/") and not value.startswith(b"//"):
        value = visit.prefix.encode("latin-1") + value
    return value


def _host(pairs: Headers) -> str:
    return next((value.decode("latin-1") for name, value in pairs if name == b"host"), "")
