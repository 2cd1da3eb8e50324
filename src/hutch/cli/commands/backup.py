"""`hutch backup` and `hutch restore`: a state directory as one file."""

import argparse
import asyncio
import time
from pathlib import Path

from hutch.cli.connect import load_config
from hutch.cli.live_output import progress
from hutch.cli.output import byte_size, emit_json, note
from hutch.cli.parsers import CliCommand
from hutch.model.units import format_seconds


class Backup(CliCommand):
    """Write the state directory to one private file: records, receipts, keys, volumes, skills, images and the files of
    persistent boxes. It works beside a running server; running boxes are in it as records without their processes.

    The file holds the key of the directory and every box's files, so keep it as safe as the directory itself.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="such as hutch.tar.gz; it must not exist yet")
        parser.add_argument("--no-images", action="store_true", help="leave out images, which can be pulled again")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        from hutch.keeper.archives.backup import write_backup

        config, file = load_config(arguments), Path(arguments.file)
        with progress(f"backing up {config.state_dir}") as state:
            manifest = await asyncio.to_thread(
                write_backup, config.state_dir, file, images=not arguments.no_images, progress=state.report
            )
        if arguments.json:
            emit_json({"file": str(file), **manifest.to_plain()})
            return 0
        print(f"{file}: {byte_size(file.stat().st_size)} of {config.state_dir}")
        if config.store.startswith("postgres"):
            note("records are in PostgreSQL and not in this file: back that up too, with pg_dump")
        return 0


class Restore(CliCommand):
    """Make a state directory of a file that `hutch backup` wrote. The directory must be empty or not there yet.

    Persistent boxes come back stopped, with their files; temporary ones are gone, as after a restart of the machine.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="a file of `hutch backup`")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        from hutch.keeper.archives.backup import read_backup

        config, file = load_config(arguments), Path(arguments.file)
        with progress(f"restoring {file}") as state:
            manifest = await asyncio.to_thread(read_backup, file, config.state_dir, progress=state.report)
        if arguments.json:
            emit_json({"state_dir": str(config.state_dir), **manifest.to_plain()})
            return 0
        age = format_seconds(time.time() - manifest.created_at)
        print(f"{config.state_dir}: {byte_size(manifest.size)}, as it was {age} ago")
        return 0
