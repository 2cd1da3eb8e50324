"""The client's name, and whether its user can be asked. Clients send them in the handshake or in every request."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from mcp.server.context import ServerRequestContext
from mcp.types import ClientCapabilities
from mcp_types import CLIENT_INFO_META_KEY

Context = ServerRequestContext[Any, Any]

MAX_NAME = 40
UNNAMED = "client"


class Client(NamedTuple):
    name: str
    """Name in characters that session names and permission tables allow."""
    can_ask: bool
    """Whether it can show its user a question (elicitation)."""


def client_of(ctx: Context) -> Client:
    """Return the client of a request. In a handshake the request itself names it."""
    params = ctx.params or {}
    if ctx.method == "initialize":
        return Client(normalised_name(_name(params.get("clientInfo"))), _form(params.get("capabilities")))
    known = ctx.session.client_params
    meta = params.get("_meta")
    name = known.client_info.name if known is not None else _name(_entry(meta, CLIENT_INFO_META_KEY))
    return Client(normalised_name(name), _can_ask(ctx.session.client_capabilities))


def normalised_name(name: str) -> str:
    """Return a normalised name: `Claude Code` becomes `claude-code`."""
    return re.sub(r"[^a-z0-9_.]+", "-", name.lower()).strip("-.")[:MAX_NAME] or UNNAMED


def _can_ask(capabilities: ClientCapabilities | None) -> bool:
    elicitation = capabilities.elicitation if capabilities is not None else None
    # An empty object comes from clients that are older than the choice of modes. It means forms.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _form(capabilities: object) -> bool:
    elicitation = _entry(capabilities, "elicitation")
    return isinstance(elicitation, Mapping) and ("form" in elicitation or "url" not in elicitation)


def _name(info: object) -> str:
    name = _entry(info, "name")
    return name if isinstance(name, str) else ""


def _entry(of: object, key: str) -> object:
    return of.get(key) if isinstance(of, Mapping) else None
