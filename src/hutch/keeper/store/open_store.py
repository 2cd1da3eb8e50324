"""Opens the store that the setting `store` names, with the liveness, ledger and key that belong to it."""

from typing import TYPE_CHECKING

from hutch.config import Config
from hutch.errors import ConfigError
from hutch.keeper.store.store import MemoryStore, Store
from hutch.keeper.takeover.liveness import Liveness, LockLiveness, lock_directories
from hutch.logs import log

if TYPE_CHECKING:
    from hutch.keeper.receipts.ledger import Ledger
    from hutch.keeper.store.state_key import StateKey


def open_store(config: Config) -> tuple[Store, Liveness]:
    """Open the configured store. Nothing is written while Hutch is switched off; drivers are loaded when needed."""
    directories = lock_directories(config.state_dir, config.run_dir)
    if not config.enabled or config.store == "memory":
        return MemoryStore(), LockLiveness(directories)
    if not config.store:
        from hutch.keeper.store.seal import Seal
        from hutch.keeper.store.sqlite import SqliteStore

        return SqliteStore(config.state_dir / "hutch.db", Seal(open_key(config))), LockLiveness(directories)
    if not is_shared(config):
        # The value is not shown: it may be a mistyped address that holds a password.
        raise ConfigError(
            f"{config.origin('store')}: the setting `store` names no store",
            remedy='leave it empty for SQLite, or write "memory" or postgresql://…',
            details={"field": "store"},
        )
    try:
        from hutch.keeper.store.postgres import PostgresStore
        from hutch.keeper.takeover.heartbeat import Heartbeat
    except ImportError as error:
        raise ConfigError(
            f"{config.origin('store')}: the store is PostgreSQL, and its driver cannot be loaded: {error}",
            remedy="pip install 'hutch[postgres]'",
            details={"field": "store"},
        ) from error
    from hutch.keeper.store.seal import Seal

    seal = Seal(open_key(config)) if config.state_key_file else None
    if seal is None:
        log("store").info("environments of boxes are stored in plain text in the database", remedy="set state_key_file")
    store = PostgresStore(config.store, seal)
    return store, Heartbeat(store.connections, directories, url=config.server.advertise.rstrip("/"))


def open_ledger(config: Config, store: Store) -> "Ledger":
    """Open the ledger for receipts of the boxes in `store`."""
    from hutch.keeper.receipts.ledger import MemoryLedger

    if isinstance(store, MemoryStore):
        return MemoryLedger()
    if is_shared(config):
        from hutch.keeper.receipts.ledger_postgres import PostgresLedger
        from hutch.keeper.store.postgres import PostgresStore

        assert isinstance(store, PostgresStore)
        return PostgresLedger(store.connections)
    from hutch.keeper.receipts.ledger_sqlite import SqliteLedger

    return SqliteLedger(config.state_dir / "receipts.db", synced=config.receipts == "strict")


def open_key(config: Config) -> "StateKey":
    """Return the configured key, else the state directory's. Records in memory need none that lasts."""
    from hutch.keeper.store.state_key import FILE, StateKey

    if not config.enabled or config.store == "memory":
        return StateKey()
    return StateKey(config.state_key_file or config.state_dir / FILE)


def is_shared(config: Config) -> bool:
    """Whether keepers on other machines can see the records."""
    return config.store.startswith(("postgresql://", "postgres://"))
