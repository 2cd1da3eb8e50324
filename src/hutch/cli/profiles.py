"""Show the profiles a box can have: the built-in ones and those of the configuration."""

import argparse

from hutch.cli.embedded import configuration
from hutch.cli.output import emit_json, table
from hutch.policy.profiles import BUILT_IN, Profile


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--names", action="store_true", help="only their names, one on each line")


def run(arguments: argparse.Namespace) -> int:
    config = configuration(arguments)
    found = [config.resolve_profile(name) for name in (*BUILT_IN, *sorted(config.profiles))]
    if arguments.json:
        emit_json({"default": config.profile, "profiles": [profile.to_plain() for profile in found]})
    elif arguments.names:
        print("\n".join(profile.name for profile in found))
    else:
        header = ("PROFILE", "NET", "CPUS", "MEMORY", "PIDS", "DISK", "ROOT", "WORKSPACE", "TIMEOUT", "FOR")
        table(header, [_row(profile) for profile in found])
    return 0


def _row(profile: Profile) -> tuple[str, ...]:
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
