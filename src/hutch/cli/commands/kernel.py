"""Prepared interpreters: with them, a box's Python kernel starts in milliseconds with its libraries imported."""

import argparse

from hutch.cli.connect import load_config
from hutch.cli.output import emit_json, note
from hutch.cli.parsers import CliCommand


class Prepare(CliCommand):
    """Install IPython, numpy, pandas, matplotlib and the packages you list, once for all boxes of this machine."""

    epilog = """\
examples:
  hutch kernel prepare
  hutch kernel prepare scikit-learn polars
  hutch kernel prepare --python /srv/analysis/.venv/bin/python   use an environment that exists
New boxes of the image `host` see the environment read-only; every other box uses its own python3.
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="more packages, as pip names them")
        parser.add_argument("--python", default="", metavar="PATH", help="use the environment of this interpreter")

    def run(self, arguments: argparse.Namespace) -> int:
        from hutch.kernels import environment

        config = load_config(arguments)
        made = environment.prepare(
            config.state_dir, arguments.packages, python=arguments.python, progress=note
        )  # fmt: skip
        if arguments.json:
            emit_json(made.to_plain())
        return 0


class Show(CliCommand):
    """Show the prepared environment and what it imports."""

    def run(self, arguments: argparse.Namespace) -> int:
        from hutch.kernels import environment

        found = environment.load(load_config(arguments).state_dir)
        if arguments.json:
            emit_json({"environment": found.to_plain() if found is not None else None})
        elif found is None:
            print("nothing is prepared: kernels start cold; `hutch kernel prepare` changes that")
        else:
            print(f"environment: {found.prefix}\npackages:    {' '.join(found.packages)}")
            print(f"imports:     {' '.join(found.libraries)}")
        return 0
