"""Create, list and revoke the keys that open a server; it need not run."""

import argparse
import asyncio
import time

from hutch.cli.opening import configuration
from hutch.cli.output import emit_json, table
from hutch.config import Config, directories
from hutch.errors import Invalid
from hutch.keeper.keys import Key, Keys, Role
from hutch.keeper.opening import open_store
from hutch.keeper.records import LOCAL_OWNER


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("create", "list", "revoke"))
    parser.add_argument("id", nargs="?", help="revoke: which one")
    parser.add_argument("--role", choices=tuple(Role), default=str(Role.USER), help="create: what it may do")
    parser.add_argument("--owner", default=LOCAL_OWNER, help="create: whose boxes it sees")
    parser.add_argument("--name", default="", help="create: for people")


def run(arguments: argparse.Namespace) -> int:
    if (arguments.action == "revoke") != (arguments.id is not None):
        raise Invalid("revoke, and only revoke, takes the id of a key", op="key", remedy="hutch key revoke ID")
    config = configuration(arguments)
    return asyncio.run(_do(config, arguments))


async def _do(config: Config, arguments: argparse.Namespace) -> int:
    directories.make(config.state_dir)
    store, _ = open_store(config)
    try:
        keys = Keys(store)
        if arguments.action == "create":
            key, text = await keys.create(Role(arguments.role), arguments.owner, arguments.name)
            _show_new(key, text, as_json=arguments.json)
        elif arguments.action == "revoke":
            _show_revoked(await keys.revoke(arguments.id), as_json=arguments.json)
        else:
            _show_all(await keys.all(), as_json=arguments.json)
    finally:
        await store.close()
    return 0


def _show_new(key: Key, text: str, *, as_json: bool) -> None:
    if as_json:
        emit_json({"key": key.to_plain(), "text": text})
    else:
        print(text)


def _show_revoked(key: Key, *, as_json: bool) -> None:
    if as_json:
        emit_json({"key": key.to_plain()})
    else:
        print(f"{key.id} opens nothing any more")


def _show_all(keys: tuple[Key, ...], *, as_json: bool) -> None:
    if as_json:
        emit_json({"keys": [key.to_plain() for key in keys]})
        return
    if not keys:
        print("there is no key; `hutch key create` makes one, and `hutch serve` the first")
        return
    rows = [(key.id, key.role, key.owner, _day(key.created_at), _state(key), key.name) for key in keys]
    table(("ID", "ROLE", "OWNER", "CREATED", "STATE", "NAME"), rows)


def _state(key: Key) -> str:
    return "open" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
