"""The registry: which MCP servers an owner has, in one private file of the state directory, and those of hutch.toml."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hutch.errors import Conflict, NotFound, Refused
from hutch.logs import conceal, log, redact_field, reveal
from hutch.model.mcp import McpServer
from hutch.model.record import Record
from hutch.policy import mcp_servers
from hutch.policy.rights import UNBOUND, Rights

REGISTERED = "registry"
LOCAL = "local"
"""The owner of whoever uses this machine's Hutch without a key."""
FILE = "servers.json"
OWNER = "owner"
_SHORTEST_SECRET = 8


def directory(state_dir: Path, owner: str = LOCAL) -> Path:
    """Where an owner's registry lies: by a digest, because an owner's name may hold anything; the name lies beside."""
    place = state_dir / "mcp" / hashlib.sha256(owner.encode()).hexdigest()[:24]
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    (place / OWNER).write_text(owner)
    return place


def owners(state_dir: Path) -> frozenset[str]:
    """Those that have registered any server."""
    return frozenset((place.parent / OWNER).read_text() for place in (state_dir / "mcp").glob(f"*/{FILE}"))


class Entry(Record, frozen=True, kw_only=True):
    """A server with where it was defined, and which host files its box may show."""

    server: McpServer
    roots: tuple[str, ...] = ()
    """Host paths that whoever registered it has opened for this server's box alone."""
    origin: str = REGISTERED
    rights: Rights | None = None
    """Of the caller who registered it: its box gets no more than they allow, and no more than its owner may have when
    the box is made. None: it was registered before they were written down, so only the owner's hold."""


class Registry:
    """Of one owner. The file holds secrets, as every client's does: it is readable by this user only."""

    def __init__(self, path: Path, configured: Mapping[str, Entry] | None = None) -> None:
        self._path = path
        self._configured = dict(configured or {})
        self._entries = self._configured | _read(path)
        for entry in self._entries.values():
            conceal(_secrets(entry.server))

    def all(self) -> dict[str, Entry]:
        return dict(sorted(self._entries.items()))

    def get(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"no MCP server {name}", remedy="`hutch mcp-server list` shows those there are")
        return entry

    def add(
        self, name: str, server: McpServer, roots: tuple[str, ...] = (), *, replace: bool = False,
        rights: Rights = UNBOUND,
    ) -> Entry:  # fmt: skip
        """`server` has been read (`servers.read`), so that what it says in plain text means what it says."""
        mcp_servers.check(name, server)
        there = self._entries.get(name)
        if there is not None and there.origin != REGISTERED:
            raise Conflict(f"MCP server {name} is defined in {there.origin}", remedy="change it there")
        if there is not None and not replace:
            raise Conflict(f"there is an MCP server {name} already", remedy="replace it, or choose another name")
        entry = Entry(server=server, roots=roots, rights=rights)
        conceal(_secrets(server))
        self._write({**self._registered(), name: entry})
        self._entries[name] = entry
        if there is not None:
            reveal(_secrets(there.server))
        log("mcp").info("server registered", server=name, roots=list(roots), replaced=there is not None)
        return entry

    def remove(self, name: str) -> Entry:
        entry = self.get(name)
        if entry.origin != REGISTERED:
            raise Refused(f"MCP server {name} is defined in {entry.origin}", remedy="remove it there")
        self._write({other: each for other, each in self._registered().items() if other != name})
        del self._entries[name]
        reveal(_secrets(entry.server))
        log("mcp").info("server removed", server=name)
        return entry

    def _registered(self) -> dict[str, Entry]:
        return {name: entry for name, entry in self._entries.items() if entry.origin == REGISTERED}

    def _write(self, entries: Mapping[str, Entry]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        plain = {name: entry.to_plain() for name, entry in sorted(entries.items())}
        # mkstemp makes it 0600 from the start: no moment in which another user could read it.
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".servers-")
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({"servers": plain}, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except BaseException:
            os.unlink(temporary)
            raise


def _read(path: Path) -> dict[str, Entry]:
    try:
        plain = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {name: Entry.from_plain(each) for name, each in plain["servers"].items()}


def _secrets(server: McpServer) -> list[str]:
    """What no line may show. A short plain value (`1`, `debug`) would blot out half of every log."""
    pairs = [*server.env.items(), *server.headers.items()]
    told = [value for key, value in pairs if len(value) >= _SHORTEST_SECRET or redact_field(key, value or "-") == "***"]
    return told + [text.strip() for text in server.secret_files.values()]
