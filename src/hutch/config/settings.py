"""`Config`: every setting, its meaning, its value and where the value came from.

Later sources win: default, `hutch.toml` (one file, see `file.find`; never one that a box may have written), `HUTCH_*`,
keyword arguments. `sources` reads them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from hutch.config import directories, file
from hutch.config.mcp import McpTable
from hutch.config.server import ServerTable
from hutch.config.sources import KEYS, Loading, decode_table
from hutch.errors import ConfigError, HutchError, Invalid, NotFound
from hutch.images.settings import ImageSettings
from hutch.logs import FORMATS, HIDDEN, LEVELS, redact_field
from hutch.model.ids import is_name
from hutch.model.record import Record
from hutch.model.spec import CheckedMount
from hutch.policy import mounts, profiles
from hutch.policy.profiles import Profile, ProfileTable
from hutch.policy.quotas import Quota
from hutch.policy.rights import Rights, RightsTable, check_table, of_owner

if TYPE_CHECKING:
    from hutch.policy.permissions import AgentPermissions


_PASSWORD = r"(://[^:/@]*:)[^/@]*(?=@)|([?&]password=)[^&]*"
"""Finds the password in an address: `scheme://user:HERE@host/name?password=HERE`."""


class Shown(Record, frozen=True, kw_only=True):
    """One line of `hutch config show`; a value whose key names a secret is hidden."""

    key: str
    value: Any
    origin: str


class Config(Record, frozen=True, kw_only=True):
    """All settings of a process, made by `Config.load` and never changed."""

    enabled: bool = True
    """False switches Hutch off: it starts no process, opens no connection, and every call raises Disabled."""
    state_dir: Path
    """Records, persistent boxes, volumes. Default: $XDG_STATE_HOME/hutch; root: /var/lib/hutch."""
    run_dir: Path
    """Sockets of running boxes; at most 79 bytes long. Default: $XDG_RUNTIME_DIR/hutch; root: /run/hutch."""
    provider: str = "native"
    """The engine of a box whose caller and profile name none."""
    fallback: tuple[str, ...] = ()
    """Engines that may stand in for it, in this order. One that cannot enforce what a profile needs is skipped."""
    profile: str = "default"
    """The profile of a box whose caller names none."""
    image: str | None = None
    """The image of a box whose caller names none; it wins over the profile's."""
    mount_roots: tuple[Path, ...] = ()
    """Host directories below which files may be mounted. Default: the working directory."""
    mount_refused: tuple[Path, ...] = ()
    """Trees that are never mounted, besides the fixed ones (`policy.mounts`)."""
    max_boxes: int = 1024
    """Most boxes at once; 0 for no limit."""
    orphan_grace_sec: float = 10.0
    """Seconds that a box lives without any keeper."""
    store: str = ""
    """Where records are kept: empty for `hutch.db` in the state directory, "memory", or postgresql://…"""
    state_key_file: Path | None = None
    """The key that seals values in records and proves commands in receipts. Default: `state.key` in the state
    directory. Servers that share a PostgreSQL database need the same one; without it they seal nothing."""
    lease_sec: float = 600.0
    """Seconds that a session holds a box after its last operation; 0 until it releases it."""
    queue_sec: float = 0.0
    """Seconds that a creation waits for capacity before it is refused."""
    idle_action: str = "destroy"
    """What happens to an idle box: destroy, or pause first and destroy after as long again."""
    strict: bool = False
    """Refuse a box whose limits are not held by a cgroup or a quota."""
    receipts: str = "on"
    """Whether each operation has a receipt: on, strict (the answer waits for it), or off."""
    receipts_days: float = 30.0
    """Days that the receipts of a destroyed box are kept."""
    receipts_rows: int = 1_000_000
    """Most receipts of each owner; past that, those of the boxes that ended first are removed."""
    checkpoints_max: int = 64
    """Most checkpoints of a box. Past that, the oldest automatic ones go; of others no more can be made."""
    checkpoints_days: float = 0.0
    """Days that a checkpoint is kept; 0 means as long as its box."""
    checkpoints_mb: int = 0
    """Most megabytes of the files of a box's checkpoints; 0 means any. Past that, the oldest automatic ones go."""
    log_level: str = "warning"
    """debug, info, warning, error or off."""
    log_format: str = "text"
    """text or json."""
    server_url: str = ""
    """The server to use (http://…, https://…, unix:/…); without one, only a server that owns the state directory. The
    environment variable is HUTCH_SERVER."""
    server_ca: Path | None = None
    """Certificates (PEM) that are trusted for the server; by default those of this machine."""
    key_file: Path | None = None
    """A file with the key for the server. HUTCH_KEY, the key itself, wins over it."""
    profiles: dict[str, ProfileTable] = msgspec.field(default_factory=dict)
    """`[profiles.NAME]`: profiles besides the built-in ones."""
    providers: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """`[providers.NAME]`: settings that are passed to that provider."""
    quotas: dict[str, Quota] = msgspec.field(default_factory=dict)
    """`[quotas.OWNER]`: what each owner's boxes may use together; `[quotas."*"]` for all others."""
    rights: dict[str, RightsTable] = msgspec.field(default_factory=dict)
    """`[rights.OWNER]`: what each owner's keys may ask of a server; `[rights."*"]` for all others."""
    pool: dict[str, int] = msgspec.field(default_factory=dict)
    """`[pool]`: how many boxes of each profile are kept ready."""
    permissions: "dict[str, AgentPermissions]" = msgspec.field(default_factory=dict)
    """`[permissions.AGENT]`: what each agent may do with its tools; `[permissions."*"]` for all others."""
    server: ServerTable = ServerTable()
    """`[server]`: settings of `hutch serve`."""
    images: ImageSettings = ImageSettings()
    """`[images]`: when images are pulled, from whom, and how large they may be."""
    mcp: McpTable = McpTable()
    """`[mcp]` and `[mcp.servers.NAME]`: MCP servers that run in boxes."""
    origins: dict[str, str] = msgspec.field(default_factory=dict)
    """Maps a key to where its value was written; an absent key has its default."""
    config_file: Path | None = None
    """The file that was read, if any."""
    config_pinned: bool = False
    """Whether that file is in the working directory and is used until it changes."""
    config_ignored: str = ""
    """A `hutch.toml` of the working directory that the user has not accepted (`hutch config trust`)."""
    config_dir: Path | None = None
    """The user's own configuration directory."""

    @classmethod
    def load(
        cls,
        config: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **arguments: Any,
    ) -> Self:
        """Load from the file `config`, the environment and `arguments`. Raises ConfigError, which names the place."""
        environ = os.environ if environ is None else environ
        cwd = cwd or Path.cwd()
        loading = Loading(cwd)
        found = file.find(config, environ, cwd)
        if found.file is not None:
            loading.add_file(found.file)
        loading.add_environment(environ)
        loading.add_arguments(arguments)
        values, origins = loading.values, loading.origins
        values.setdefault("state_dir", directories.state_dir(environ))
        values.setdefault("run_dir", directories.run_dir(environ))
        values.setdefault("mount_roots", (cwd,))
        made = cls(
            **values,
            profiles=loading.profiles,
            providers=loading.providers,
            quotas=loading.quotas,
            rights=loading.rights,
            pool=loading.pool,
            permissions=loading.permissions,
            server=decode_table(ServerTable, loading.server, "server"),
            images=decode_table(ImageSettings, loading.images, "images"),
            mcp=decode_table(McpTable, loading.mcp, "mcp"),
            origins=origins,
            config_file=Path(found.file.path) if found.file is not None else None,
            config_pinned=found.pinned,
            config_ignored=found.ignored,
            config_dir=directories.config_dir(environ),
        )
        made._check()
        return made

    def resolve_profile(self, name: str | None = None) -> Profile:
        """Return the profile of that name, or the default one, with all it inherits. Raises NotFound."""
        return profiles.resolve(name or self.profile, self.profiles)

    def rights_of(self, owner: str) -> Rights:
        """Return what the owner's keys of role user may ask for."""
        return of_owner(owner, self.rights, self.profile, self.profiles, pull=self.server.pulls == "user")

    def for_provider(self, name: str) -> dict[str, Any]:
        """Return what `Provider.configure` gets. The native engine keeps its boxes in our own directories."""
        table = dict(self.providers.get(name, {}))
        if name == "native":
            table = {"state_dir": str(self.state_dir), "run_dir": str(self.run_dir), "images": self.images} | table
        elif name in ("docker", "podman"):  # distinguishes an engine's containers from those of another Hutch
            table = {"state_dir": str(self.state_dir)} | table
        return table

    @property
    def never_mounted(self) -> tuple[Path, ...]:
        """Trees that `policy.mounts` refuses: our own directories (and so other boxes), and configured ones."""
        own = (self.state_key_file, self.config_dir)
        return (self.state_dir, self.run_dir, *(path for path in own if path is not None), *self.mount_refused)

    @property
    def never_writable(self) -> tuple[Path, ...]:
        """Files that boxes may only read: the file that configures us, unless it is pinned by its digest."""
        return () if self.config_file is None or self.config_pinned else (self.config_file,)

    def host_place(self, source: str, what: str) -> CheckedMount:
        """Check a path that a caller wants this process to read. Raises Refused if policy does not allow it."""
        return mounts.check_source(source, what, roots=self.mount_roots, refused=self.never_mounted)

    def origin(self, key: str) -> str:
        return self.origins.get(key, "default")

    def show(self) -> tuple[Shown, ...]:
        """Return every setting with its origin, with secrets hidden."""
        shown = [Shown(key=key, value=_plain(getattr(self, key)), origin=self.origin(key)) for key in KEYS]
        for name, profile in sorted(self.profiles.items()):
            written = msgspec.to_builtins(profile)
            defaults = msgspec.to_builtins(ProfileTable())
            changed = {key: value for key, value in written.items() if value != defaults[key]}
            shown.append(_shown_table(f"profiles.{name}", changed, self))
        shown += [_shown_table(f"providers.{name}", table, self) for name, table in sorted(self.providers.items())]
        shown += [_shown_table(f"rights.{name}", table.to_plain(), self) for name, table in sorted(self.rights.items())]
        if "server" in self.origins:
            shown.append(_shown_table("server", self.server.to_plain(), self))
        if "images" in self.origins:
            shown.append(_shown_table("images", self.images.to_plain(), self))
        if "mcp" in self.origins:
            shown.append(_shown_table("mcp", self.mcp.shown(), self))
        return tuple(shown)

    def _check(self) -> None:
        directories.check_run_dir(self.run_dir, self.origin("run_dir"))
        if self.log_level not in LEVELS:
            raise self._wrong("log_level", f"is none of {', '.join(LEVELS)}")
        if self.log_format not in FORMATS:
            raise self._wrong("log_format", f"is none of {', '.join(FORMATS)}")
        if self.max_boxes < 0:
            raise self._wrong("max_boxes", "is negative; 0 means no limit")
        if not 0 < self.orphan_grace_sec <= 86400:
            raise self._wrong("orphan_grace_sec", "is not a number of seconds from above 0 to 86400")
        if not is_name(self.provider):
            raise self._wrong("provider", "is not a name")
        if not all(is_name(name) for name in self.fallback):
            raise self._wrong("fallback", "is not a list of names")
        if "host" in self.fallback:
            raise self._wrong(
                "fallback", "names host, which isolates nothing", "a box on the host is asked for by name"
            )
        if self.lease_sec < 0 or self.queue_sec < 0:
            raise self._wrong("lease_sec" if self.lease_sec < 0 else "queue_sec", "is negative")
        if self.idle_action not in ("destroy", "pause"):
            raise self._wrong("idle_action", "is neither destroy nor pause")
        if self.receipts not in ("on", "strict", "off"):
            raise self._wrong("receipts", "is none of on, strict, off")
        if self.receipts_days <= 0 or self.receipts_rows <= 0:
            raise self._wrong("receipts_days" if self.receipts_days <= 0 else "receipts_rows", "is not above 0")
        if self.checkpoints_max < 1 or self.checkpoints_days < 0:
            raise self._wrong("checkpoints_max" if self.checkpoints_max < 1 else "checkpoints_days", "is too small")
        if self.checkpoints_mb < 0:
            raise self._wrong("checkpoints_mb", "is negative")
        self.server.check(self.origin("server"))
        self.images.check(self.origin("images"))
        self.mcp.check(self.origin("mcp"))
        for name, size in self.pool.items():
            if not 0 <= size <= 1000:
                raise ConfigError(f"pool.{name} = {size} is not a number from 0 to 1000", details={"field": "pool"})
            self.resolve_profile(name)
        if self.permissions:
            self._check_permissions()
        for name, rights in self.rights.items():
            try:
                check_table(rights, self.profiles)
            except Invalid as error:
                place = self.origin(f"rights.{name}")
                raise ConfigError(f"{place}: {error.message}", remedy=error.remedy, details=error.details) from error
        for name in self.profiles:
            try:
                profiles.resolve(name, self.profiles)
            except ConfigError as error:
                raise self._misplaced(error) from error
        try:
            self.resolve_profile()
        except NotFound as error:
            raise self._wrong("profile", "is no profile", error.remedy) from error

    def _check_permissions(self) -> None:
        from hutch.policy import permissions

        for name, rules in self.permissions.items():
            try:
                permissions.check(name, rules)
            except ConfigError as error:
                place = self.origin(f"permissions.{name}")
                raise ConfigError(f"{place}: {error.message}", remedy=error.remedy, details=error.details) from error

    def _wrong(self, key: str, why: str, remedy: str | None = None) -> ConfigError:
        return ConfigError(
            f"{self.origin(key)}: {key} = {getattr(self, key)!r} {why}", remedy=remedy, details={"field": key}
        )

    def _misplaced(self, error: HutchError) -> ConfigError:
        """Add to the error of a profile the place where the profile, or its field, was written."""
        profile, field = error.details.get("profile", ""), error.details.get("field", "")
        place = self.origins.get(f"profiles.{profile}.{field}") or self.origin(f"profiles.{profile}")
        return ConfigError(f"{place}: {error.message}", remedy=error.remedy, details=error.details)


def _shown_table(key: str, table: Mapping[str, Any], config: Config) -> Shown:
    return Shown(key=key, value=redact_field("", table), origin=config.origin(key))


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [str(each) for each in value]
    if isinstance(value, str):
        return re.sub(_PASSWORD, lambda found: f"{found[1] or found[2]}{HIDDEN}", value)
    return str(value) if isinstance(value, Path) else value
