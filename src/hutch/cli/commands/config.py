"""Commands about the configuration: the settings and the profiles in use."""

import argparse
import os
from pathlib import Path

from hutch.cli.connect import load_config
from hutch.cli.output import emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.config import Config
from hutch.errors import Invalid
from hutch.policy.profiles import BUILT_IN, Profile


class Configuration(CliCommand):
    """Show the configuration in use: every setting, its value, and where the value came from.

    A hutch.toml in the working directory counts once you have accepted it (`trust`), and until it changes: code in a
    box that works in that directory could have written it.
    """

    epilog = """\
examples:
  hutch config show                      every setting, and where it comes from
  hutch config trust                     accept ./hutch.toml as it is now
  hutch config untrust ../old/hutch.toml
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        actions = ("show", "trust", "untrust")
        parser.add_argument("action", choices=actions, nargs="?", default="show", help="default: show")
        parser.add_argument("file", metavar="FILE", nargs="?", help="trust, untrust: which one (default: ./hutch.toml)")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.action == "show":
            return _show(arguments)
        return _trust(Path(arguments.file or "hutch.toml").absolute(), arguments.action, as_json=arguments.json)


def _show(arguments: argparse.Namespace) -> int:
    if arguments.file:
        raise Invalid("show takes no file", remedy=f"hutch --config {arguments.file} config show")
    config = load_config(arguments)
    shown = config.show()
    if arguments.json:
        emit_json({"settings": [setting.to_plain() for setting in shown], **_files(config)})
        return 0
    table(("SETTING", "VALUE", "FROM"), [(setting.key, _text(setting.value), setting.origin) for setting in shown])
    if config.config_pinned:
        note(f"{config.config_file} counts as it is: you have accepted it (`hutch config trust`)")
    if config.config_ignored:
        note(f"{config.config_ignored} is ignored; look at it, then: hutch config trust {config.config_ignored}")
    return 0


def _files(config: Config) -> dict[str, object]:
    return {
        "file": str(config.config_file) if config.config_file else None,
        "trusted": config.config_pinned,
        "ignored": config.config_ignored or None,
    }


def _trust(path: Path, action: str, *, as_json: bool) -> int:
    from hutch.config import file, trust

    if action == "untrust":
        changed = trust.forget(path, os.environ)
        outcome = f"{path} counts no longer" if changed else f"{path} had not been accepted"
    else:
        content = file.content_of(path, own=False)
        keys = file.parse(path, content).plain  # what cannot be read is not accepted
        trust.trust(path, content, os.environ)
        outcome = f"{path} counts until it changes; it sets {', '.join(map(str, keys)) or 'nothing'}"
    if as_json:
        emit_json({"file": str(path), "trusted": action == "trust"})
    else:
        print(printable(outcome))
    return 0


def _text(value: object) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(map(_text, value)) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_text(each)}" for key, each in value.items()) or "–"
    return str(value)


class Profiles(CliCommand):
    """Show the profiles a box can have: the built-in ones and those of the configuration."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--names", action="store_true", help="only their names, one on each line")

    def run(self, arguments: argparse.Namespace) -> int:
        config = load_config(arguments)
        found = [config.resolve_profile(name) for name in (*BUILT_IN, *sorted(config.profiles))]
        if arguments.json:
            emit_json({"default": config.profile, "profiles": [profile.to_plain() for profile in found]})
        elif arguments.names:
            print("\n".join(profile.name for profile in found))
        else:
            header = ("PROFILE", "NET", "CPUS", "MEMORY", "PIDS", "DISK", "ROOT", "WORKSPACE", "TIMEOUT", "FOR")
            spare = ("WORKSPACE", "DISK", "PIDS", "ROOT", "MEMORY", "CPUS")
            table(header, [_profile_row(profile) for profile in found], spare)
        return 0


def _profile_row(profile: Profile) -> tuple[str, ...]:
    limits = profile.limits
    most = f"{limits.max_timeout_sec:g}" if limits.max_timeout_sec else "any"
    return (
        profile.name,
        str(profile.network) + (" (locked)" if profile.locks("network") else ""),
        f"{limits.cpus:g}",
        f"{limits.memory_mb} MB",
        str(limits.pids),
        f"{limits.disk_mb} MB",
        "read-only" if profile.read_only_root else "writable",
        str(profile.workspace.mode),
        f"{limits.timeout_sec:g} / {most} s",
        profile.description,
    )
