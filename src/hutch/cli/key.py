"""Create, list, show and revoke the keys that open a server; it need not run."""

import argparse
import asyncio
import sys
import time

import msgspec

from hutch.cli.embedded import configuration
from hutch.cli.output import emit_json, table
from hutch.config import Config, directories
from hutch.errors import Invalid
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.keys import Key, Keys, Role
from hutch.keeper.store.open_store import open_store
from hutch.policy.rights import Action, CallerMaxima, RightsTable, check_table, narrowed


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("create", "list", "show", "revoke"))
    parser.add_argument("id", nargs="?", help="show, revoke: which one")
    parser.add_argument("--role", choices=tuple(Role), default=str(Role.USER), help="create: what it may do")
    parser.add_argument("--owner", default=LOCAL_OWNER, help="create: whose boxes it sees")
    parser.add_argument("--name", default="", help="create: for people")
    rights = parser.add_argument_group("create: what a key of role user may have of its owner's rights (default: all)")
    rights.add_argument("--profiles", type=_names, metavar="A,B", help="only these profiles")
    rights.add_argument("--actions", type=_names, metavar="A,B", help=f"only these of {', '.join(Action)}; none: ''")
    rights.add_argument("--no-root", action="store_true", help="nothing as the box's root")
    rights.add_argument("--no-pull", action="store_true", help="no image that would have to be fetched first")
    rights.add_argument("--max", action="append", default=[], metavar="LIMIT=N", help="at most, such as memory_mb=512")


def run(arguments: argparse.Namespace) -> int:
    if (arguments.action in ("show", "revoke")) != (arguments.id is not None):
        raise Invalid("show and revoke, and only these, take the id of a key", op="key", remedy="hutch key show ID")
    config = configuration(arguments)
    return asyncio.run(_do(config, arguments))


async def _do(config: Config, arguments: argparse.Namespace) -> int:
    directories.make(config.state_dir)
    store, _ = open_store(config)
    try:
        keys = Keys(store)
        if arguments.action == "create":
            rights = _rights(arguments)
            check_table(rights, config.profiles)
            key, text = await keys.create(Role(arguments.role), arguments.owner, arguments.name, rights)
            _show_new(key, text, as_json=arguments.json)
            _warn_without_admin(await keys.all())
        elif arguments.action == "revoke":
            _show_revoked(await keys.revoke(arguments.id), as_json=arguments.json)
        elif arguments.action == "show":
            _show_one(await keys.get(arguments.id), config, as_json=arguments.json)
        else:
            _show_all(await keys.all(), as_json=arguments.json)
    finally:
        await store.close()
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _rights(arguments: argparse.Namespace) -> RightsTable:
    """As it was asked; what was not is left to the owner's rights."""
    most = dict(text.partition("=")[::2] for text in arguments.max)
    plain = {
        "profiles": arguments.profiles, "actions": arguments.actions, "root": False if arguments.no_root else None,
        "pull": False if arguments.no_pull else None,
    }  # fmt: skip
    try:
        return msgspec.convert({**plain, "maxima": most}, type=RightsTable, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"no such right: {error}", op="key", remedy=f"actions are {', '.join(Action)}; "
            f"--max takes {', '.join(CallerMaxima.__struct_fields__)}, such as --max memory_mb=512",
        ) from error  # fmt: skip


def _warn_without_admin(keys: tuple[Key, ...]) -> None:
    if not any(key.role is Role.ADMIN for key in keys):
        print(
            "there is no admin's key yet: the next `hutch serve` makes the first, or use --role admin", file=sys.stderr
        )


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
    rows = [(key.id, key.role, key.owner, _day(key.created_at), _state(key), _own(key), key.name) for key in keys]
    table(("ID", "ROLE", "OWNER", "CREATED", "STATE", "RIGHTS", "NAME"), rows)


def _show_one(key: Key, config: Config, *, as_json: bool) -> None:
    """The key, and what it may ask of a server with this configuration."""
    holds = narrowed(config.rights_of(key.owner), key.id, key.rights) if key.role is Role.USER else None
    if as_json:
        emit_json({"key": key.to_plain(), "rights": holds.to_plain() if holds else None})
        return
    rows = [("id", key.id), ("name", key.name), ("role", key.role), ("owner", key.owner), ("state", _state(key)),
            ("created", _day(key.created_at))]  # fmt: skip
    if holds is not None:
        rows += [
            ("profiles", "all" if holds.profiles is None else ", ".join(holds.profiles)),
            ("actions", ", ".join(action for action in Action if action in holds.actions) or "none"),
            ("root", "yes" if holds.root else "only where the profile has it"),
            ("private ranges", ", ".join(holds.allow_private or ()) or "only those of the profile"),
            ("images", "any" if holds.pull else "those that are here, and the operator's"),
            ("at most", _maxima(holds.maxima) or "what profile and quota allow"),
        ]
    table(("WHAT", "VALUE"), rows)


def _own(key: Key) -> str:
    """The rights that a key has of its own, in a few words."""
    rights, words = key.rights, []
    if rights.profiles is not None:
        words.append("profiles " + ",".join(rights.profiles))
    if rights.actions is not None:
        words.append("actions " + (",".join(action for action in Action if action in rights.actions) or "none"))
    if rights.root is False:
        words.append("no root")
    if rights.pull is False:
        words.append("no pull")
    if most := _maxima(rights.maxima):
        words.append(f"max {most}")
    return "; ".join(words) or ("all" if key.role is Role.ADMIN else "owner's" if key.role is Role.USER else "look")


def _maxima(maxima: CallerMaxima) -> str:
    named = {field: getattr(maxima, field) for field in maxima.__struct_fields__}
    return " ".join(f"{field}={value:g}" for field, value in named.items() if value is not None)


def _state(key: Key) -> str:
    return "open" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
