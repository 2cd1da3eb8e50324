"""The dashboard's files, as a door: one page for every view, assets that browsers keep for ever, and a strict policy.

The files are built by `make setup` and carried by the wheel. They hold nothing secret, so they are served to anybody;
everything that a page shows comes from the API with the browser's session.
"""

import asyncio
import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hutch.server.request import Receive, Scope, Send, headers_of

BUILT = Path(__file__).parent / "static"
PAGES = frozenset(
    ("", "sign-in", "boxes", "apps", "approvals", "skills", "mcp-servers", "tools", "keys", "audit", "profiles")
)
"""First parts of the paths at which the one page is served; the page itself decides what it shows there."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
IMMUTABLE = "public, max-age=31536000, immutable"
NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Hutch</title>
<h1>The dashboard is not built</h1>
<p>This copy of Hutch was installed from its source without Node. Run <code>make dashboard</code> in the source tree
(it needs Node 20.19 or newer), or install the released wheel, which carries the dashboard.</p>
<p>The API is at <code>/v1</code> and works without it.</p></html>"""


@dataclass(frozen=True)
class Asset:
    """One file, with its compressed form."""

    data: bytes
    packed: bytes
    type: str
    cache: str


class DashboardDoor:
    """Serves the dashboard's page and its assets."""

    name = "dashboard"

    def claims(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return False
        path: str = scope["path"]
        return path.startswith("/assets/") or path == "/THIRD_PARTY.txt" or path.split("/", 2)[1] in PAGES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assets = await asyncio.to_thread(load)
        path: str = scope["path"]
        named = path.startswith("/assets/") or path == "/THIRD_PARTY.txt"
        asset = assets.get(path if named else "/index.html")
        headers = headers_of(scope)
        if asset is None and not named:
            asset = Asset(NOT_BUILT, NOT_BUILT, TYPES[".html"], "no-store")
        if asset is None:
            await _answer(send, 404, b"", [(b"content-length", b"0")])
            return
        packed = "gzip" in headers.get("accept-encoding", "") and len(asset.packed) < len(asset.data)
        body = asset.packed if packed else asset.data
        listed = [
            (b"content-type", asset.type.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", asset.cache.encode()),
            (b"vary", b"Accept-Encoding"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"content-security-policy", CONTENT_POLICY.encode()),
        ]
        if packed:
            listed.append((b"content-encoding", b"gzip"))
        await _answer(send, 200, b"" if scope["method"] == "HEAD" else body, listed)

    async def start(self) -> None:
        """There is nothing to resume."""

    async def drain(self, seconds: float) -> None:
        """Nothing of it outlives a request."""


CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "style-src-attr 'unsafe-inline'",
        "img-src 'self' data: blob:", "font-src 'self'", "connect-src 'self'", "frame-src 'self'", "base-uri 'none'",
        "form-action 'none'", "frame-ancestors 'none'",
    )
)  # fmt: skip
"""Everything comes from this origin. The terminal colours its cells by style attributes, which no text of a box can
reach, since the pages never write markup; style elements and scripts in the page stay forbidden. Frames are previews
in the path form, which are answered with a sandbox, so their pages have an opaque origin."""


@cache
def load(directory: Path = BUILT) -> dict[str, Asset]:
    """Read and compress every built file, once, by the path at which it is served; empty if nothing was built."""
    if not (directory / "index.html").is_file():
        return {}
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.suffix in TYPES:
            data, where = path.read_bytes(), "/" + path.relative_to(directory).as_posix()
            lasting = IMMUTABLE if where.startswith("/assets/") else "no-cache"
            found[where] = Asset(data, gzip.compress(data, mtime=0), TYPES[path.suffix], lasting)
    return found


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
