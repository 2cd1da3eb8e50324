"""What a visitor of a preview sees when there is nothing to see: a page for people, JSON for programs."""

import html
import json

from hutch.logs import redact
from hutch.server.previews.headers import Headers
from hutch.server.request import Scope, Send, headers_of

RELOAD_SECONDS = 2
_RELOADED = frozenset({"port_closed"})
"""Problems that end by themselves, so a page tries again."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">{reload}
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 36rem; margin: 15vh auto; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.3rem; }} p.small {{ color: #666; font-size: .9rem; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #181818; color: #ddd; }} }}
</style></head><body>
<h1>{title}</h1><p>{message}</p><p>{remedy}</p><p class="small">Hutch preview · {code}</p>
</body></html>
"""
_TITLES = {
    "port_closed": "Nothing answers on this port yet",
    "unauthenticated": "This link does not open the preview",
    "gone": "This box is gone",
    "not_found": "There is no such preview",
}


async def send_page(
    scope: Scope, send: Send, *, status: int, code: str, message: str, remedy: str = "", headers: Headers | None = None
) -> None:
    """Answer a request or a WebSocket's handshake with what is wrong."""
    message, remedy = redact(message), redact(remedy)
    wants_page = "text/html" in headers_of(scope).get("accept", "")
    if wants_page:
        reload = f'<meta http-equiv="refresh" content="{RELOAD_SECONDS}">' if code in _RELOADED else ""
        text = _PAGE.format(
            reload=reload, title=_TITLES.get(code, "This preview does not work now"), message=html.escape(message),
            remedy=html.escape(remedy), code=html.escape(code),
        )  # fmt: skip
    else:
        text = json.dumps({"error": {"code": code, "message": message, "remedy": remedy}}) + "\n"
    body = text.encode()
    listed: Headers = [
        (b"content-type", b"text/html; charset=utf-8" if wants_page else b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        # These pages are ours: nothing can run in them. Without `allow-scripts` they could not reload themselves.
        (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; sandbox allow-scripts"),
        (b"hutch-error", code.encode()),
        *(headers or []),
    ]
    kind = "websocket.http" if scope["type"] == "websocket" else "http"
    await send({"type": f"{kind}.response.start", "status": status, "headers": listed})
    await send({"type": f"{kind}.response.body", "body": b"" if scope.get("method") == "HEAD" else body})
