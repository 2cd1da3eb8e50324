"""`hutch version`, in a file of its own because it needs nothing of the rest."""

import argparse
import platform

from hutch import __version__
from hutch.cli.output import emit_json
from hutch.cli.parsers import CliCommand


class Version(CliCommand):
    """Print the versions that a report of a defect needs."""

    def run(self, arguments: argparse.Namespace) -> int:
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
            system = f"{facts['system']} {facts['kernel']}, {facts['machine']}"
            print(f"hutch {__version__} (Python {facts['python']}, {system})")
        return 0
