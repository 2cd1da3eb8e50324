"""`hutch image from-box`: an image of what a box's files are now, over the image that the box was made from."""

import argparse
import asyncio

from hutch.cli.commands.image.store import image_facts, open_images, short_name
from hutch.cli.connect import attach_box, load_config, open_hutch
from hutch.cli.options import add_box
from hutch.cli.output import emit_json
from hutch.cli.parsers import CliCommand
from hutch.errors import Unsupported
from hutch.images.build import ImageBuild
from hutch.keeper.access.handles import BoxHandle


class FromBox(CliCommand):
    """Make an OCI image of a box: the image it was made from, and one more layer with everything it has changed.

    The box keeps running. Mounts of the host and volumes are left out; /workspace is part of the image.
    """

    epilog = """\
examples:
  hutch box create --name dev --image oci:debian:12
  hutch image from-box dev tools:1
  hutch run --image oci:tools:1 -- ls /workspace
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box(parser)
        parser.add_argument("name", metavar="NAME", help="how the new image is called")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        config = load_config(arguments)
        store = open_images(config)
        store.reference(arguments.name)
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            if not isinstance(box, BoxHandle):
                raise Unsupported(
                    f"box {box.id} is kept by another process, which holds the images too",
                    op="image.from_box", remedy="stop the server, or export the box (`hutch box export`)",
                )  # fmt: skip
            kind, _, base = box.spec.image.partition(":")
            if kind != "oci":
                raise Unsupported(
                    f"box {box.id} was made from {box.spec.image!r}, which is no image of the store",
                    op="image.from_box", remedy="make the box from an oci: image (`hutch image pull`, `import`)",
                )  # fmt: skip
            with store.lock_shared():
                build = ImageBuild(store, store.open(base))
                with store.work_directory() as work:
                    path = f"{work}/changes"
                    await box.write_layer(path)
                    step = await asyncio.to_thread(build.make_layer_of, path)
                build.add_layer(step)
                image = await asyncio.to_thread(build.finish, arguments.name)
        if arguments.json:
            emit_json(image_facts(store, image))
        else:
            print(f"{short_name(store, image.stored.name)} {image.digest}")
        return 0
