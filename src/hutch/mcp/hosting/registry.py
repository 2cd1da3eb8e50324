"""The registry of an owner's MCP servers: a private file in the state directory, and the servers of hutch.toml."""

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
"""Owner of callers who use this machine's Hutch without a key."""
FILE = "servers.json"
OWNER_FILE = "owner"
_SHORTEST_SECRET = 8


def directory(state_dir: Path, owner: str = LOCAL) -> Path:
    """Return an owner's directory. Its name is a digest, because an owner's name may hold any character."""
    folder = state_dir / "mcp" / hashlib.sha256(owner.encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / OWNER_FILE).write_text(owner)
    return folder


def owners(state_dir: Path) -> frozenset[str]:
    """Return the owners that have registered a server."""
    return frozenset((folder.parent / OWNER_FILE).read_text() for folder in (state_dir / "mcp").glob(f"*/{FILE}"))


class Entry(Record, frozen=True, kw_only=True):
    """A server with its origin, and the host paths that its box may show."""

    server: McpServer
    roots: tuple[str, ...] = ()
    """Host paths that the registering caller opened for this server's box alone."""
    origin: str = REGISTERED
    rights: Rights | None = None
    """Rights of the caller who registered it, which bound its box together with the owner's. None if it was registered
    before rights were stored; then only the owner's rights apply."""


class Registry:
    """The registry of one owner. Its file holds secrets, so only this user can read it."""

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
        """Register a server that `mcp_servers.read` has normalised."""
        mcp_servers.check(name, server)
        existing = self._entries.get(name)
        if existing is not None and existing.origin != REGISTERED:
            raise Conflict(f"MCP server {name} is defined in {existing.origin}", remedy="change it there")
        if existing is not None and not replace:
            raise Conflict(f"there is an MCP server {name} already", remedy="replace it, or choose another name")
        entry = Entry(server=server, roots=roots, rights=rights)
        conceal(_secrets(server))
        self._write({**self._registered(), name: entry})
        self._entries[name] = entry
        if existing is not None:
            reveal(_secrets(existing.server))
        log("mcp").info("server registered", server=name, roots=list(roots), replaced=existing is not None)
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
        # mkstemp creates the file with mode 0600, so no other user can read it at any moment.
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
    """Return values that logs must not show. Short plain values such as `1` are omitted, or half of every log would be
    hidden."""
    pairs = [*server.env.items(), *server.headers.items()]
    values = [
        value for key, value in pairs if len(value) >= _SHORTEST_SECRET or redact_field(key, value or "-") == "***"
    ]
    return values + [text.strip() for text in server.secret_files.values()]
