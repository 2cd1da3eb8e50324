"""Show the configuration in use: every setting, its value, and where the value came from."""

import argparse

from hutch.cli.opening import configuration
from hutch.cli.output import emit_json, table


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("show",), nargs="?", help="print every setting with its origin")


def run(arguments: argparse.Namespace) -> int:
    shown = configuration(arguments).show()
    if arguments.json:
        emit_json({"settings": [setting.to_plain() for setting in shown]})
    else:
        table(
            ("SETTING", "VALUE", "FROM"),
            [(setting.key, _text(setting.value), setting.origin) for setting in shown],
        )
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
