"""Print the versions that a report of a defect needs."""

import argparse
import platform

from hutch import __version__
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    facts = {
        "hutch": __version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    if arguments.json:
        emit_json(facts)
    else:
        print(
            f"hutch {__version__} (Python {facts['python']}, {facts['system']} {facts['kernel']}, {facts['machine']})"
        )
    return 0
