"""The sources of settings: one file, the environment, keyword arguments. Each one overrides those before it.

Relative paths in a file start at that file's directory, all others at the working directory.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hutch.config import file, server
from hutch.config.decode import Source, decode, unknown_key
from hutch.config.mcp import McpTable
from hutch.config.server import ServerTable
from hutch.errors import ConfigError
from hutch.images.settings import ImageSettings
from hutch.model.record import Record
from hutch.policy.profiles import ProfileTable
from hutch.policy.quotas import Quota
from hutch.policy.rights import RightsTable

if TYPE_CHECKING:
    from hutch.policy.permissions import AgentPermissions

T = TypeVar("T")


class Written(Record, frozen=True, kw_only=True):
    """The settings of one source; None for those that it does not set."""

    enabled: bool | None = None
    state_dir: str | None = None
    run_dir: str | None = None
    provider: str | None = None
    fallback: tuple[str, ...] | None = None
    profile: str | None = None
    image: str | None = None
    mount_roots: tuple[str, ...] | None = None
    mount_refused: tuple[str, ...] | None = None
    max_boxes: int | None = None
    orphan_grace_sec: float | None = None
    store: str | None = None
    lease_sec: float | None = None
    queue_sec: float | None = None
    idle_action: str | None = None
    strict: bool | None = None
    state_key_file: str | None = None
    receipts: str | None = None
    receipts_days: float | None = None
    receipts_rows: int | None = None
    checkpoints_max: int | None = None
    checkpoints_days: float | None = None
    checkpoints_mb: int | None = None
    log_level: str | None = None
    log_format: str | None = None
    server_url: str | None = None
    server_ca: str | None = None
    key_file: str | None = None


KEYS = Written.__struct_fields__
_TABLES = ("profiles", "providers", "quotas", "rights", "pool", "server", "images", "permissions", "mcp")
_VARIABLES = frozenset({"HUTCH_CONFIG", "HUTCH_KEY"})
"""Variables of Hutch that are no settings."""
_LISTS = ("mount_roots", "mount_refused", "fallback")
_PATHS = ("state_dir", "run_dir", "mount_roots", "mount_refused", "server_ca", "key_file", "state_key_file")


class Loading:
    """Collects values from one source after the other; each overwrites what came before."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.profiles: dict[str, ProfileTable] = {}
        self.providers: dict[str, dict[str, Any]] = {}
        self.quotas: dict[str, Quota] = {}
        self.rights: dict[str, RightsTable] = {}
        self.pool: dict[str, int] = {}
        self.permissions: dict[str, AgentPermissions] = {}
        self.server: dict[str, Any] = {}
        self.images: dict[str, Any] = {}
        self.mcp: dict[str, Any] = {}

    def add_file(self, found: file.ConfigFile) -> None:
        source = Source(origin=found.origin)
        self._add(found.plain, source, base=Path(found.path).parent)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Add variables that are not empty. One that nearly names a setting is an error: a typo must not fail open."""
        variables = {f"HUTCH_{key.upper()}": key for key in KEYS} | {"HUTCH_SERVER": "server_url"}
        tables = {f"HUTCH_SERVER_{key.upper()}": key for key in ServerTable.__struct_fields__}
        given: dict[str, Any] = {}
        for variable, value in environ.items():
            key = variables.get(variable)
            if key is not None and value:
                given[key] = value.split(os.pathsep) if key in _LISTS else value
            elif variable in tables and value:
                given.setdefault("server", {})[tables[variable]] = server.from_text(tables[variable], value)
            elif key is None and variable.startswith("HUTCH_") and variable not in _VARIABLES | tables.keys():
                _check_near(variable, [*variables, *tables])
        self._add(given, Source(origin=_variable, text=True), base=self.cwd)

    def add_arguments(self, arguments: Mapping[str, Any]) -> None:
        given = {key: value for key, value in arguments.items() if value is not None}
        self._add(given, Source(origin=lambda *key: "argument"), base=self.cwd)

    def _add(self, plain: Mapping[str, Any], source: Source, base: Path) -> None:
        if unknown := next((key for key in plain if key not in KEYS and key not in _TABLES), None):
            raise unknown_key((unknown,), (*KEYS, *_TABLES), source)
        written = decode(Written, {key: plain[key] for key in plain if key in KEYS}, source)
        for key in KEYS:
            value = getattr(written, key)
            if value is None:
                continue
            self.values[key] = _absolute(value, base) if key in _PATHS else value
            self.origins[key] = source.origin(key)
        for name, table in decode(dict[str, dict[str, Any]], plain.get("profiles", {}), source, "profiles").items():
            self.profiles[name] = decode(ProfileTable, table, source, "profiles", name)
            self.origins[f"profiles.{name}"] = source.origin("profiles", name)
            self._remember_fields(source, table, name)
        for name, table in decode(dict[str, dict[str, Any]], plain.get("providers", {}), source, "providers").items():
            self.providers[name] = self.providers.get(name, {}) | table
            self.origins[f"providers.{name}"] = source.origin("providers", name)
        for name, table in decode(dict[str, dict[str, Any]], plain.get("quotas", {}), source, "quotas").items():
            self.quotas[name] = decode(Quota, table, source, "quotas", name)
            self.origins[f"quotas.{name}"] = source.origin("quotas", name)
        for name, table in decode(dict[str, dict[str, Any]], plain.get("rights", {}), source, "rights").items():
            self.rights[name] = decode(RightsTable, table, source, "rights", name)
            self.origins[f"rights.{name}"] = source.origin("rights", name)
        self.pool |= decode(dict[str, int], plain.get("pool", {}), source, "pool")
        if "permissions" in plain:
            self._add_permissions(plain["permissions"], source)
        if "server" in plain:
            written_server = decode(ServerTable, plain["server"], source, "server")
            self.server |= {key: getattr(written_server, key) for key in plain["server"]}
            self.origins["server"] = source.origin("server")
        if "images" in plain:
            decode(ImageSettings, plain["images"], source, "images")
            self.images |= plain["images"]
            self.origins["images"] = source.origin("images")
        if "mcp" in plain:
            decode(McpTable, plain["mcp"], source, "mcp")
            self.mcp |= plain["mcp"]
            self.origins["mcp"] = source.origin("mcp")

    def _add_permissions(self, rules: object, source: Source) -> None:
        from hutch.policy.permissions import AgentPermissions

        for name, table in decode(dict[str, dict[str, Any]], rules, source, "permissions").items():
            self.permissions[name] = decode(AgentPermissions, table, source, "permissions", name)
            self.origins[f"permissions.{name}"] = source.origin("permissions", name)

    def _remember_fields(self, source: Source, table: Mapping[str, Any], name: str) -> None:
        for field, value in table.items():
            self.origins[f"profiles.{name}.{field}"] = source.origin("profiles", name, field)
            for part in value if isinstance(value, Mapping) else ():
                self.origins[f"profiles.{name}.{field}.{part}"] = source.origin("profiles", name, field, str(part))


def decode_table(kind: type[T], written: dict[str, Any], name: str) -> T:
    """Decode what all sources wrote into a table; mostly nothing, and then no decoder is built."""
    return decode(kind, written, Source(origin=lambda *key: name), name) if written else kind()


def _absolute(value: str | tuple[str, ...], base: Path) -> Path | tuple[Path, ...]:
    if isinstance(value, tuple):
        return tuple(Path(os.path.normpath(base / Path(each).expanduser())) for each in value)
    return Path(os.path.normpath(base / Path(value).expanduser()))


def _variable(*key: str) -> str:
    """Return the name of a key's environment variable."""
    if key == ("server",):
        return "HUTCH_SERVER_*"
    return "_".join(("HUTCH", *key)).upper() if key else "environment"


def _check_near(variable: str, known: list[str]) -> None:
    from difflib import get_close_matches

    if near := get_close_matches(variable, known, n=1, cutoff=0.88):
        raise ConfigError(f"{variable} in the environment is no setting", remedy=f"did you mean {near[0]}?")
