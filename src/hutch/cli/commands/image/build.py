"""`hutch image build`: make an image from another one, step by step, with a cache of finished steps."""

import argparse
import asyncio
import os
import shlex
from collections.abc import Sequence
from typing import Any

from hutch.cli.attach import Attachment, Signals
from hutch.cli.commands.image.pull import ensure_image
from hutch.cli.commands.image.store import image_facts, open_images, short_name
from hutch.cli.connect import load_config
from hutch.cli.options import add_limits, duration, limits_of, variable
from hutch.cli.output import emit_json, note, printable
from hutch.cli.parsers import CliCommand
from hutch.config import Config
from hutch.errors import EngineError, Invalid
from hutch.images import build_cache
from hutch.images.build import ImageBuild
from hutch.images.build_cache import Step
from hutch.images.layers import diff, merged_view
from hutch.linux.identity import inner_id
from hutch.model.ids import BoxId
from hutch.model.results import Cause, Result
from hutch.providers.base import Command

_SHOWN_LETTERS = 60
_DEFAULT_TIMEOUT = 1800.0
"""A command that waits for an unreachable network would wait for ever, and nobody may be watching."""


class Build(CliCommand):
    """Make an image from another one, step by step; a step that was made before over the same layers is not made again.

    Steps run in the order they are written. Commands run in a box on the image so far, as its user (root, if the image
    names none; the only user there is, if Hutch runs rootless), without network unless --net on.
    """

    epilog = """\
examples:
  hutch image build tools --from debian:12 --net on --run 'apt-get update && apt-get install -y jq'
  hutch image build app --from tools --copy ./src:/srv/app --workdir /srv/app --env MODE=live --cmd './serve --port 80'
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="how the new image is called")
        parser.add_argument("--from", dest="base", metavar="IMAGE", required=True, help="the image to begin with")
        how = parser.add_argument_group("steps, in their order")
        how.add_argument(
            "--run", action=_Step, metavar="COMMAND", help="run it under a shell; what it changes is a layer"
        )
        how.add_argument(
            "--copy", action=_Step, metavar="SRC:DST", help="copy a file, or what a directory holds; root's"
        )
        how.add_argument("--env", "-e", action=_Step, metavar="K=V", help="for later steps and for the image")
        how.add_argument("--workdir", "-w", action=_Step, metavar="DIR", help="for later steps and for the image")
        how.add_argument("--user", "-u", action=_Step, metavar="USER", help="for later steps and for the image")
        how.add_argument(
            "--entrypoint", action=_Step, metavar="COMMAND", help="what the image runs, as words of a shell"
        )
        how.add_argument("--cmd", action=_Step, metavar="COMMAND", help="what it runs, or gives to its entrypoint")
        made = parser.add_argument_group("how they are made")
        made.add_argument(
            "--net",
            "--network",
            choices=("off", "on"),
            default="off",
            dest="network",
            help="network of commands (off)",
        )
        made.add_argument("--no-cache", action="store_true", help="make every step anew")
        made.add_argument("--pull", choices=("missing", "always", "never"), help="when IMAGE is fetched (missing)")
        made.add_argument("--profile", default="code", help="limits of the boxes that commands run in (code)")
        made.add_argument(
            "--timeout", type=duration, default=_DEFAULT_TIMEOUT, metavar="TIME", help="of a command (30m; 0: none)"
        )
        add_limits(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        config = await ensure_image(arguments, load_config(arguments), arguments.base)
        store = open_images(config)
        store.reference(arguments.name)
        with store.lock_shared():
            builder = _Builder(arguments, config, ImageBuild(store, store.open(arguments.base)))
            wanted: Sequence[tuple[str, str]] = getattr(arguments, "steps", [])
            for number, (kind, text) in enumerate(wanted, 1):
                builder.step_text = f"step {number} of {len(wanted)}: {kind} {printable(text)[:_SHOWN_LETTERS]}"
                await builder.do(kind, text)
            image = await asyncio.to_thread(builder.image.finish, arguments.name)
        if arguments.json:
            emit_json({**image_facts(store, image), "cached_steps": builder.cached})
        else:
            print(f"{short_name(store, image.stored.name)} {image.digest}")
        return 0


class _Step(argparse.Action):
    """Collects options of different names in one list, because their order is the order of the steps."""

    def __call__(
        self, parser: argparse.ArgumentParser, space: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        space.steps = [*getattr(space, "steps", []), (self.dest, str(value))]


class _Builder:
    """Makes the steps of one build."""

    def __init__(self, arguments: argparse.Namespace, config: Config, image: ImageBuild) -> None:
        self._arguments = arguments
        self._config = config
        self.image = image
        self.step_text = ""
        self.cached = 0

    async def do(self, kind: str, text: str) -> None:
        site = self.image
        if kind == "run":
            await self._run(text)
        elif kind == "copy":
            await asyncio.to_thread(self._copy, text)
        elif kind == "env":
            site.set_env(*variable(text))
        elif kind == "workdir":
            site.set(working_dir=os.path.normpath(os.path.join(site.run.working_dir or "/", text)))
        elif kind == "user":
            site.set(user=text)
        elif kind == "entrypoint":
            site.set(entrypoint=shlex.split(text), cmd=None)
        else:
            site.set(cmd=shlex.split(text))

    def _note(self, what: str) -> None:
        if not self._arguments.json:
            note(f"{self.step_text}{what}")

    def _reuse(self, step: Step | None) -> bool:
        """Use the cached result of a step, if there is one; return whether there was."""
        if step is None or self._arguments.no_cache:
            self._note("")
            return False
        self._note(" (as before)")
        self.cached += 1
        self.image.add_layer(step)
        return True

    def _keep(self, key: str, step: Step) -> None:
        build_cache.save(self.image.store, key, step)
        self.image.add_layer(step)

    # --- files of this machine -------------------------------------------------------------------------------

    def _copy(self, text: str) -> None:
        source, colon, target = text.partition(":")
        if not source or not colon or not target:
            raise Invalid(f"--copy {text!r} is not SRC:DST", op="build", remedy="for example --copy ./app:/srv/app")
        target = os.path.join(self.image.run.working_dir or "/", target)
        copies = [(os.path.abspath(os.path.expanduser(source)), target)]
        content: list[str] = []
        step = self.image.make_layer(
            lambda out: content.append(diff.from_files(copies, self.image.layer_directories, out))
        )
        key, known = self.image.cached_step("copy", *content)
        if not self._reuse(known):
            self._keep(key, step)

    # --- commands --------------------------------------------------------------------------------------------

    async def _run(self, text: str) -> None:
        run, network = self.image.run, self._arguments.network
        key, known = self.image.cached_step(
            "run", text, network, *(run.env or []), run.working_dir or "", run.user or "", str(os.geteuid() == 0)
        )
        if not self._reuse(known):
            self._keep(key, await self._in_box(text))

    async def _in_box(self, text: str) -> Step:
        """Run the command in a box that keeps its files, and make a layer of what it has changed."""
        from hutch.keeper.embedded import Hutch
        from hutch.keeper.keeper import Keeper
        from hutch.keeper.store.store import MemoryStore

        keeper = Keeper(self._config, MemoryStore())
        with Signals() as signals:
            try:
                await keeper.start()
                hutch = Hutch(keeper=keeper)
                async with hutch.box(**self._spec()) as box:
                    order = Command(
                        command=text, timeout_sec=self._arguments.timeout or None, follow=not self._arguments.json
                    )
                    result = await Attachment(signals, stdin=None).run(box, order)
                    if result.verdict.cause is not Cause.OK:
                        raise self._failure(result)
                    await box.stop()
                    live = keeper.held(BoxId(box.id))
                    store = str(live.record.instance.data["store"]) if live else ""
                    upper = os.path.join(store, "0")
                    return await asyncio.to_thread(
                        self.image.make_layer, lambda out: diff.from_changes(upper, out, _owner)
                    )
            except asyncio.CancelledError:
                if signals.ended_by is None:
                    raise
                raise KeyboardInterrupt from None
            finally:
                await keeper.close()

    def _failure(self, result: Result) -> EngineError:
        remedy = result.verdict.remedy
        if result.verdict.cause is Cause.TIMEOUT:
            network = self._arguments.network
            waits = "it has no network (--net on)" if network == "off" else "does this machine reach where it asks?"
            remedy = f"give it longer with --timeout; if it waits for the network: {waits}"
        return EngineError(
            f"{self.step_text} failed: {result.verdict.message or result.verdict.cause}",
            op="build",
            remedy=remedy or None,
            details={"exit_code": result.exit_code, "stderr": result.stderr[-2000:]},
        )

    def _spec(self) -> dict[str, Any]:
        user = merged_view.box_user(self.image.run.user or "", self.image.layer_directories) or "root"
        return {
            "image": f"oci:{self.image.store_manifest()}",
            "profile": self._arguments.profile,
            "provider": "native",
            "network": self._arguments.network,
            "user": user if os.geteuid() == 0 else "user",
            "workdir": self.image.run.working_dir or "/",
            "workspace": {"source": "own", "mode": "none"},
            "read_only_root": False,
            "retention": "persistent",
            **limits_of(self._arguments),
        }


def _owner(number: int) -> int:
    """Translate an owner on disk to the owner in the image.

    Rootless, all files belong to one user, who is root in the image.
    """
    return inner_id(number) if os.geteuid() == 0 else 0
