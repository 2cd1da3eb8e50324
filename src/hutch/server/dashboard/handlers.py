"""The dashboard over HTTP: sign in by a key or a one-time link, for a cookie that scripts cannot read; list tools."""

from typing import Annotated

import msgspec

from hutch.errors import Invalid, Unauthenticated
from hutch.keeper.keys import Role
from hutch.model.record import Record
from hutch.policy.rights import Action
from hutch.server.dashboard.sign_ins import LOCAL, Opened, cookie_name, cookie_of, csrf_of
from hutch.server.request import Call, Reply

Secret = Annotated[str, msgspec.Meta(max_length=200)]


class SignInBody(Record, frozen=True, kw_only=True):
    """A key, or the code of a one-time link."""

    key: Secret = ""
    code: Secret = ""


class SessionView(Record, frozen=True, kw_only=True):
    """Who is signed in, and what the pages may offer."""

    key_id: str
    name: str
    """The key's name, for people."""
    role: Role
    owner: str
    session: str
    """The session that holds the leases which the dashboard takes."""
    actions: tuple[Action, ...]
    profiles: tuple[str, ...] | None
    """Profiles that may be named; null for all."""
    expires_at: float | None
    """When the browser has to sign in again; null for a caller without a cookie."""
    csrf: str
    """The value of Hutch-Csrf that changes must carry; empty for a caller without a cookie."""


class LinkView(Record, frozen=True, kw_only=True):
    path: str
    """The path at which a browser signs in once, with the code behind `#`, where no server or proxy sees it."""
    expires_at: float


class EndQuery(Record, frozen=True, kw_only=True):
    all: bool = False
    """Sign out every browser that signed in with this key."""


class ToolView(Record, frozen=True, kw_only=True):
    name: str
    description: str
    origin: str
    """Empty for built-in tools, else `provider:NAME` or `skill:NAME`; only built-in tools can be switched off."""
    read_only: bool
    """The tool changes nothing."""


class ToolList(Record, frozen=True, kw_only=True):
    tools: tuple[ToolView, ...]


async def sign_in(call: Call, body: SignInBody) -> Reply:
    """Sign a browser in with a key or the code of a one-time link; the answer sets its cookie."""
    sign_ins = call.service.sign_ins
    if bool(body.key) == bool(body.code):
        raise Invalid("sign in with a key or with a code", op="sign in")
    if body.code:
        opened = await sign_ins.redeem(body.code)
    else:
        key = await call.service.keys.find(body.key.strip())
        if key is None:
            raise Unauthenticated("this key opens nothing", op="sign in", remedy="check it, or ask for a new one")
        opened = await sign_ins.open(key)
    found = await sign_ins.find(opened.cookie)
    if found is None:
        raise Unauthenticated("the key was revoked", op="sign in", remedy="ask for a new one")
    _, key = found
    rights = call.service.rights_of_key(key)
    view = SessionView(
        key_id=key.id, name=key.name, role=key.role, owner=key.owner, session=session_name(key.id),
        actions=_listed(rights.actions), profiles=rights.profiles, expires_at=opened.sign_in.expires_at,
        csrf=csrf_of(opened.cookie),
    )  # fmt: skip
    return Reply(view, headers={"set-cookie": _set_cookie(call, opened)})


async def get_session(call: Call) -> Reply:
    """Return who the caller is and what it may do."""
    caller, cookie = call.caller, cookie_of(call.headers)
    found = await call.service.sign_ins.find(cookie) if cookie else None
    view = SessionView(
        key_id=caller.key_id, name=found[1].name if found else "", role=caller.role, owner=caller.owner,
        session=caller.session, actions=_listed(caller.rights.actions), profiles=caller.rights.profiles,
        expires_at=found[0].expires_at if found else None, csrf=csrf_of(cookie) if found else "",
    )  # fmt: skip
    return Reply(view)


async def sign_out(call: Call, query: EndQuery) -> Reply:
    """End the browser's session, or all sessions of its key."""
    cookie, sign_ins = cookie_of(call.headers), call.service.sign_ins
    if cookie and (found := await sign_ins.find(cookie)):
        await sign_ins.end(found[0].id)
    if query.all:
        await sign_ins.end_all(call.caller.key_id)
    ended = f"{cookie_name(call.headers)}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
    return Reply(status=204, headers={"set-cookie": ended})


async def create_link(call: Call) -> Reply:
    """Create a link that signs one browser in as the caller, once, within minutes."""
    caller = call.caller
    key = await call.service.keys.known(caller.key_id) or LOCAL
    if key is LOCAL and caller.key_id != LOCAL.id:
        raise Unauthenticated("this key was revoked", op="link")
    link = call.service.sign_ins.create_link(key)
    return Reply(LinkView(path=link_path(link.code), expires_at=link.expires_at), status=201)


async def list_tools(call: Call) -> Reply:
    """List the tools that agents get, by origin: built in, brought by a provider for its own boxes, or by a skill."""
    from hutch.tools.provider_tools import installed_kits  # Only this page needs the tools' definitions.
    from hutch.tools.toolbox import TOOLS

    found = list(TOOLS)
    for provider, kit in sorted(installed_kits().items()):
        found += kit.with_origin(provider)
    shown = [_tool(tool.name, tool.description, tool.origin, read_only=tool.read_only) for tool in found]
    for skill in await call.own.skills.all():
        shown += [_tool(tool.name, tool.description, f"skill:{skill.name}") for tool in skill.tools]
    return Reply(ToolList(tools=tuple(shown)))


def _tool(name: str, description: str, origin: str, *, read_only: bool = False) -> ToolView:
    return ToolView(name=name, description=description, origin=origin, read_only=read_only)


def link_path(code: str) -> str:
    return f"/sign-in#{code}"


def session_name(key_id: str) -> str:
    """Return the session in whose name a browser acts, so that it shares no lease with the key's programs."""
    return f"dashboard-{key_id}"


def _listed(actions: frozenset[Action]) -> tuple[Action, ...]:
    return tuple(action for action in Action if action in actions)


def _set_cookie(call: Call, opened: Opened) -> str:
    seconds = int(opened.sign_in.expires_at - opened.sign_in.created_at)
    parts = [f"{cookie_name(call.headers)}={opened.cookie}", "Path=/", f"Max-Age={seconds}", "HttpOnly"]
    parts += ["SameSite=Strict", *(["Secure"] if call.secure else [])]
    return "; ".join(parts)
