"""The store's schema, and the steps from each version to the next."""

import sqlite3

from hutch.errors import Unavailable

STEPS = (
    """
    CREATE TABLE boxes (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, keeper TEXT NOT NULL, state TEXT NOT NULL,
        version INTEGER NOT NULL, key TEXT, body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX boxes_by_key ON boxes (owner, key) WHERE key IS NOT NULL;
    CREATE INDEX boxes_by_keeper ON boxes (keeper);
    CREATE TABLE tombstones (id TEXT PRIMARY KEY, at REAL NOT NULL, body BLOB NOT NULL);
    CREATE INDEX tombstones_by_time ON tombstones (at);
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, box_id TEXT NOT NULL, at REAL NOT NULL, body BLOB NOT NULL
    );
    CREATE TABLE notes (kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, key));
    """,
)


def migrate(db: sqlite3.Connection) -> None:
    """Bring the file to this release's schema; a newer file is refused, not guessed at."""
    db.execute("BEGIN IMMEDIATE")
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(STEPS):
        db.execute("ROLLBACK")
        raise Unavailable(
            f"the store has schema {version}, this release knows {len(STEPS)}",
            retryable=False,
            remedy="use the release that wrote it, or another state directory",
        )
    for step in STEPS[version:]:
        for statement in step.split(";"):
            if statement.strip():
                db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(STEPS)}")
    db.execute("COMMIT")
