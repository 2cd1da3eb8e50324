"""Show one image: its layers, what its commands run with, and the boxes that stand on it."""

import argparse

from hutch.cli.image import text as telling
from hutch.cli.image.open_store import store_of
from hutch.cli.output import emit_json, printable
from hutch.cli.tables import amount


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name, or sha256: and the beginning of its digest")


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    image = telling.full(store, store.open(arguments.name))
    if arguments.json:
        emit_json(image)
        return 0
    config = image["config"]
    facts = {
        "name": image["name"],
        "digest": image["digest"],
        "platform": image["platform"] or "not told",
        "size": amount(image["bytes"]),
        "boxes": " ".join(image["boxes"]) or "none",
        "command": " ".join((*config["entrypoint"], *config["cmd"])) or "none",
        "workdir": config["workdir"] or "not told",
        "user": config["user"] or "not told",
    }
    for name, text in facts.items():
        print(f"{name + ':':<10} {printable(text)}")
    for name, value in config["env"].items():
        print(f"{'env:':<10} {printable(f'{name}={value}')}")
    for layer in image["layers"]:
        left_out = layer.get("devices_left_out", 0)
        told = f", {left_out} device nodes left out" if left_out else ""
        print(f"{'layer:':<10} {layer['diff_id']} {amount(layer['bytes'] or 0)}{told}")
    return 0
