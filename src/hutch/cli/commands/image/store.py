"""Commands about the images that are stored here, and how an image is shown, for people and as JSON."""

import argparse
import os
import secrets
import sys
import time
from typing import Any

from hutch.cli.connect import load_config
from hutch.cli.live_output import CountedFile, progress
from hutch.cli.output import byte_size, emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.config import Config
from hutch.errors import HutchError, Invalid
from hutch.images import manifests, prune, references, uses
from hutch.images.archives import export, import_path, import_stream, open_file
from hutch.images.manifests import Stored
from hutch.images.store import Image, Store
from hutch.model.units import format_seconds

HEADER = ("IMAGE", "DIGEST", "LAYERS", "SIZE", "BOXES", "AGE")
_SHORT = 12


def open_images(config: Config) -> Store:
    """Open the store of images in the configured state directory."""
    return Store(os.path.join(config.state_dir, "images"), config.images)


class List(CliCommand):
    """Show the images there are, their sizes, and how many boxes stand on each."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--names", action="store_true", help="only names, as --image takes them, one on each line")

    def run(self, arguments: argparse.Namespace) -> int:
        store = open_images(load_config(arguments))
        if arguments.names:
            for stored in store.names():
                print(f"oci:{stored.name}")
            return 0
        images = []
        for stored in store.names():
            try:
                images.append(_brief(store, stored, _boxes_of(store, stored.manifest)))
            except HutchError as error:
                note(f"{stored.name} cannot be used: {error}")
        if arguments.json:
            emit_json({"images": images})
        elif not images:
            print("there is no image; `hutch image pull NAME` fetches one")
        else:
            table(HEADER, [_row(image) for image in images])
        return 0


class Show(CliCommand):
    """Show one image: its layers, what its commands run with, and the boxes that stand on it."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="its name, or sha256: and the beginning of its digest")

    def run(self, arguments: argparse.Namespace) -> int:
        store = open_images(load_config(arguments))
        image = image_facts(store, store.open(arguments.name))
        if arguments.json:
            emit_json(image)
            return 0
        config = image["config"]
        facts = {
            "name": image["name"],
            "digest": image["digest"],
            "platform": image["platform"] or "unknown",
            "size": byte_size(image["bytes"]),
            "boxes": " ".join(image["boxes"]) or "none",
            "command": " ".join((*config["entrypoint"], *config["cmd"])) or "none",
            "workdir": config["workdir"] or "not set",
            "user": config["user"] or "not set",
        }
        for name, text in facts.items():
            print(f"{name + ':':<10} {printable(text)}")
        for name, value in config["env"].items():
            print(f"{'env:':<10} {printable(f'{name}={value}')}")
        for layer in image["layers"]:
            left_out = layer.get("devices_left_out", 0)
            devices = f", {left_out} device nodes left out" if left_out else ""
            print(f"{'layer:':<10} {layer['diff_id']} {byte_size(layer['bytes'] or 0)}{devices}")
        return 0


class Import(CliCommand):
    """Import images from an OCI layout (directory or tar), a `docker save` archive or the tar of a plain root."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("path", metavar="PATH", help="the directory or archive, packed or not; `-`: standard input")
        parser.add_argument("name", metavar="NAME", nargs="?", default="", help="how to call it, if it does not say")
        parser.add_argument("--platform", metavar="OS/ARCH", help="of several, take this one (default: this machine's)")

    def run(self, arguments: argparse.Namespace) -> int:
        store = open_images(load_config(arguments))
        platform = manifests.parse_platform(arguments.platform) if arguments.platform else None
        with progress(f"importing {arguments.path}") as state:
            if arguments.path == "-":
                images = import_stream(store, CountedFile(sys.stdin.buffer, state), arguments.name, platform)
            elif os.path.isdir(arguments.path):
                images = import_path(store, os.path.abspath(arguments.path), arguments.name, platform)
            else:
                with open_file(os.path.abspath(arguments.path)) as file:
                    state.total, state.last_step = os.fstat(file.fileno()).st_size, "unpacking its layers"
                    images = import_stream(store, CountedFile(file, state), arguments.name, platform)
        if arguments.json:
            emit_json({"images": [image_facts(store, image) for image in images]})
        else:
            for image in images:
                print(f"{short_name(store, image.stored.name)} {image.digest}")
        return 0


class Export(CliCommand):
    """Write an image as an OCI layout in one tar, which other engines can load."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="its name, or sha256: and the beginning of its digest")
        parser.add_argument("--output", "-o", metavar="FILE", help="where to (default: standard output)")

    def run(self, arguments: argparse.Namespace) -> int:
        store = open_images(load_config(arguments))
        image = store.open(arguments.name)
        if not arguments.output:
            if arguments.json or sys.stdout.isatty():
                raise Invalid("an archive is no text", remedy="name a file with --output")
            export(store, image, sys.stdout.buffer)
            return 0
        draft = f"{arguments.output}.{secrets.token_hex(4)}~"
        try:
            with open(draft, "xb") as file:
                export(store, image, file)
            os.rename(draft, arguments.output)
        except HutchError:
            raise  # some are OSErrors too
        except OSError as error:
            raise Invalid(f"{arguments.output} cannot be written: {error.strerror}") from error
        finally:
            if os.path.exists(draft):
                os.unlink(draft)
        if arguments.json:
            emit_json({"file": arguments.output, "digest": image.digest, "bytes": os.stat(arguments.output).st_size})
        return 0


class Remove(CliCommand):
    """Remove images, with the layers that no other image needs; refused while a box stands on one."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "images", metavar="NAME", nargs="+", help="its name, or sha256: and the beginning of its digest"
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="take the name away now; layers go when the last box that needs them does",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        store = open_images(load_config(arguments))
        freed, names = 0, []
        for text in arguments.images:
            stored, collected = prune.remove(store, text, force=arguments.force)
            freed += collected.bytes
            names.append(stored.name)
            if not arguments.json:
                print(stored.name)
        if arguments.json:
            emit_json({"removed": names, "freed_bytes": freed})
        elif freed:
            print(f"{byte_size(freed)} freed")
        return 0


class Prune(CliCommand):
    """Remove what no image and no box needs: layers without a name, results of build steps, cut downloads."""

    def run(self, arguments: argparse.Namespace) -> int:
        gone = prune.prune(open_images(load_config(arguments)))
        if arguments.json:
            emit_json({"blobs": gone.blobs, "layers": gone.layers, "freed_bytes": gone.bytes})
        else:
            print(f"{gone.layers} layers and {gone.blobs} blobs removed, {byte_size(gone.bytes)} freed")
        return 0


# --- how an image is shown ------------------------------------------------------------------------------------------


def short_name(store: Store, name: str) -> str:
    return store.reference(name).short if not references.is_digest(name) else name


def _brief(store: Store, stored: Stored, boxes: list[str]) -> dict[str, Any]:
    """Collect what the list shows of one image."""
    image = store.load(stored)
    sizes = [layer.bytes for diff_id in image.diff_ids if (layer := store.layer(diff_id))]
    return {
        "name": stored.name,
        "short": short_name(store, stored.name),
        "digest": stored.manifest,
        "layers": len(sizes),
        "bytes": sum(sizes),
        "boxes": boxes,
        "at": stored.at,
        "source": stored.source,
    }


def image_facts(store: Store, image: Image) -> dict[str, Any]:
    """Collect everything that is shown of one image, with each of its layers."""
    layers = [
        {"diff_id": diff_id, "blob": part.digest, "packed_bytes": part.size, **_layer_facts(store, diff_id)}
        for diff_id, part in zip(image.diff_ids, image.manifest.layers, strict=True)
    ]
    config = image.config
    return {
        **_brief(store, image.stored, _boxes_of(store, image.digest)),
        "platform": "/".join(part for part in (config.os, config.architecture, config.variant) if part),
        "created": config.created,
        "config": image.config.defaults().to_plain(),
        "layers": layers,
    }


def _row(image: dict[str, Any]) -> tuple[str, ...]:
    return (
        image["short"],
        image["digest"].partition(":")[2][:_SHORT],
        str(image["layers"]),
        byte_size(image["bytes"]),
        str(len(image["boxes"])),
        format_seconds(max(0.0, time.time() - image["at"])),
    )


def _boxes_of(store: Store, digest: str) -> list[str]:
    return [box_id for box_id, use in uses.live(store).items() if use.image == digest]


def _layer_facts(store: Store, diff_id: str) -> dict[str, Any]:
    found = store.layer(diff_id)
    if found is None:
        return {"bytes": None}
    return {
        "bytes": found.bytes, "entries": found.entries, "devices_left_out": found.devices, "one_owner": found.one_owner,
    }  # fmt: skip
