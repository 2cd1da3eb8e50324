"""Commands about a server: serve boxes, manage the keys that open it, and ask whether boxes can be made."""

import argparse
import asyncio
import sys
import time
from typing import Any

import msgspec

from hutch import logs
from hutch.cli.connect import load_config, not_linux, status_hutch
from hutch.cli.output import emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.config import Config, directories
from hutch.errors import Invalid, Unavailable
from hutch.keeper import keys
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.keys import Keys, Role
from hutch.keeper.store.open_store import open_store
from hutch.model import status
from hutch.model.units import format_seconds
from hutch.policy.rights import Action, CallerMaxima, RightsTable, check_table, narrowed

NOT_AVAILABLE = 1


class Serve(CliCommand):
    """Serve boxes to other processes over HTTP: on a Unix socket for this user, on TCP for everybody with a key."""

    epilog = """\
SIGTERM ends it gently: requests finish, boxes go on, and the next start takes them over.
The first start makes an admin key and says where it is; `hutch key` makes more.
"""
    json_help = "one JSON object on standard output as soon as it takes requests: where, and what works; errors too"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", metavar="ADDRESS", help='TCP address, 127.0.0.1 by default; "" for none')
        parser.add_argument("--port", type=int, help="TCP port, 7300 by default; 0 for any")
        parser.add_argument("--socket", metavar="PATH", help="Unix socket, server.sock in the run directory by default")
        parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM); TCP then speaks TLS")
        parser.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
        parser.add_argument(
            "--tls-wildcard", metavar="DOMAIN", help="speak TLS as DOMAIN and *.DOMAIN, by an authority of this machine"
        )
        parser.add_argument(
            "--private", action="store_true", help="end with standard input, and end the boxes too (`Hutch.launch`)"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        names = ("host", "port", "socket", "tls_cert", "tls_key")
        given: dict[str, Any] = {
            name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None
        }
        config = Config.load(arguments.config, server=given or None)
        if arguments.tls_wildcard:
            config = _with_wildcard(config, arguments.tls_wildcard)
        if sys.platform != "linux":
            raise not_linux()
        level = config.log_level if config.origin("log_level") != "default" else "info"
        logs.configure(level="debug" if arguments.verbose else level, format=config.log_format)
        try:
            from hutch.server.run import prepared, serve
        except ImportError as error:
            raise Unavailable(
                f"the server's parts are not installed: {error}", retryable=False, remedy="pip install 'hutch[server]'"
            ) from error
        ready = emit_json if arguments.json else None
        asyncio.run(serve(prepared(config), note, private=arguments.private, ready=ready))
        return 0


class Status(CliCommand):
    """Whether boxes can be made: here, or at the server that would be asked. The exit code is 0 only if they can."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with status_hutch(arguments) as hutch:
            server, found = getattr(hutch, "url", ""), await hutch.status()
        if arguments.json:
            emit_json({**found.to_plain(), "server": server or None})
        else:
            print("\n".join(_status_lines(server, found)))
        return 0 if found.available else NOT_AVAILABLE


def _status_lines(server: str, found: status.Status) -> list[str]:
    facts = {
        "state": str(found.state),
        "reason": printable(found.reason),
        "fix": printable(found.remedy),
        "server": server,
        "engine": found.provider,
        "version": found.version,
        "up": format_seconds(found.uptime_sec) if server and found.uptime_sec else "",
        "boxes": ", ".join(f"{count} {state}" for state, count in sorted(found.boxes.items())),
    }
    return [f"{name + ':':<9} {text}" for name, text in facts.items() if text]


def _with_wildcard(config: Config, domain: str) -> Config:
    """Serve TLS for a domain and every name below it, by a certificate of this machine's own authority."""
    from hutch.server.http.authority import wildcard_certificate

    table = config.server
    if table.tls_cert:
        raise Invalid("--tls-wildcard makes its own certificate", op="serve", remedy="leave out --tls-cert")
    if not table.port:
        raise Invalid("--tls-wildcard needs a port that is known before", op="serve", remedy="give --port")
    directories.make(config.state_dir)
    made = wildcard_certificate(config.state_dir, domain)
    print(f"hutch: clients have to trust {made.authority}", file=sys.stderr)
    hosts = tuple(dict.fromkeys((*table.hosts, domain, f"api.{domain}")))
    previews = table.previews or f"https://{domain}:{table.port}"
    return config.but(server=table.but(tls_cert=str(made.chain), tls_key=str(made.key), hosts=hosts, previews=previews))


class Key(CliCommand):
    """Create, list, show and revoke the keys that open a server; it need not run."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("action", choices=("create", "list", "show", "revoke"))
        parser.add_argument("id", nargs="?", help="show, revoke: which one")
        parser.add_argument("--role", choices=tuple(Role), default=str(Role.USER), help="create: what it may do")
        parser.add_argument("--owner", default=LOCAL_OWNER, help="create: whose boxes it sees")
        parser.add_argument("--name", default="", help="create: for people")
        parser.add_argument("--e2b", action="store_true", help="create: print it in the form that E2B's SDKs take")
        rights = parser.add_argument_group(
            "create: what a key of role user may have of its owner's rights (default: all)"
        )
        rights.add_argument("--profiles", type=_names, metavar="A,B", help="only these profiles")
        rights.add_argument(
            "--actions", type=_names, metavar="A,B", help=f"only these of {', '.join(Action)}; none: ''"
        )
        rights.add_argument("--no-root", action="store_true", help="nothing as the box's root")
        rights.add_argument("--no-pull", action="store_true", help="no image that would have to be fetched first")
        rights.add_argument(
            "--max", action="append", default=[], metavar="LIMIT=N", help="at most, such as memory_mb=512"
        )

    async def run_async(self, arguments: argparse.Namespace) -> int:
        if (arguments.action in ("show", "revoke")) != (arguments.id is not None):
            raise Invalid("show and revoke, and only these, take the id of a key", op="key", remedy="hutch key show ID")
        config = load_config(arguments)
        directories.make(config.state_dir)
        store, _ = open_store(config)
        try:
            known = Keys(store)
            if arguments.action == "create":
                rights = _rights(arguments)
                check_table(rights, config.profiles)
                key, text = await known.create(Role(arguments.role), arguments.owner, arguments.name, rights)
                if arguments.e2b:
                    from hutch.server.e2b.credentials import to_e2b_key

                    text = to_e2b_key(text)
                _show_new(key, text, as_json=arguments.json)
                _warn_without_admin(await known.all())
            elif arguments.action == "revoke":
                _show_revoked(await known.revoke(arguments.id), as_json=arguments.json)
            elif arguments.action == "show":
                _show_one(await known.get(arguments.id), config, as_json=arguments.json)
            else:
                _show_all(await known.all(), as_json=arguments.json)
        finally:
            await store.close()
        return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _rights(arguments: argparse.Namespace) -> RightsTable:
    """Collect the rights that were given; all others are the owner's."""
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


def _warn_without_admin(found: tuple[keys.Key, ...]) -> None:
    if not any(key.role is Role.ADMIN for key in found):
        print(
            "there is no admin's key yet: the next `hutch serve` makes the first, or use --role admin", file=sys.stderr
        )


def _show_new(key: keys.Key, text: str, *, as_json: bool) -> None:
    if as_json:
        emit_json({"key": key.to_plain(), "text": text})
    else:
        print(text)


def _show_revoked(key: keys.Key, *, as_json: bool) -> None:
    if as_json:
        emit_json({"key": key.to_plain()})
    else:
        print(f"{key.id} opens nothing any more")


def _show_all(found: tuple[keys.Key, ...], *, as_json: bool) -> None:
    if as_json:
        emit_json({"keys": [key.to_plain() for key in found]})
        return
    if not found:
        print("there is no key; `hutch key create` makes one, and `hutch serve` the first")
        return
    rows = [(key.id, key.role, key.owner, _day(key.created_at), _state(key), _own(key), key.name) for key in found]
    table(("ID", "ROLE", "OWNER", "CREATED", "STATE", "RIGHTS", "NAME"), rows)


def _show_one(key: keys.Key, config: Config, *, as_json: bool) -> None:
    """Show a key, and what it may ask of a server with this configuration."""
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


def _own(key: keys.Key) -> str:
    """Summarize the rights that a key has of its own."""
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


def _state(key: keys.Key) -> str:
    return "open" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
