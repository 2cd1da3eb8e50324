"""Web applications from templates, each in a box of its own.

An app is a box with a program and a port: `hutch box` works on it too. Whoever keeps the boxes keeps the apps, so a
preview address needs a server (`hutch serve`); without one `hutch box forward` shows the app.
"""

import argparse
from contextlib import aclosing

from hutch.api.apps import ANSWER_SECONDS
from hutch.cli import stdio
from hutch.cli.connect import keeps_boxes, open_hutch
from hutch.cli.options import add_box_options, add_session, duration, spec_of
from hutch.cli.output import emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.errors import HutchError
from hutch.model.apps import AppInfo


class New(CliCommand):
    """Make an app in a new box, wait until it answers, and print the address of its preview.

    Its files are in /workspace of the box; a directory given by --workspace that has an application is taken as it is.
    """

    epilog = """\
examples:
  hutch app new react shop
  hutch app new fastapi api --workspace ./api      work on files of this machine
  hutch app new static --no-wait
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=0, help="where the search for a free port in the box begins")
        parser.add_argument(
            "--wait", type=duration, default=ANSWER_SECONDS, metavar="TIME", help="how long it may take (10m)"
        )
        parser.add_argument("--no-wait", action="store_true", help="come back as soon as its program is started")
        add_box_options(parser)
        add_session(parser)
        parser.add_argument("template", help="react, vue, next, express, fastapi, flask or static")
        parser.add_argument("name", nargs="?", default="", help="a name for it, which no other box has")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            app = await hutch.apps.create(
                arguments.template, arguments.name, port=arguments.port, **spec_of(arguments)
            )  # fmt: skip
            called = app.name or app.box_id
            if not arguments.no_wait:
                try:
                    app = await hutch.apps.wait(app.box_id, arguments.wait)
                except HutchError as error:
                    _show_log(error)
                    raise
            if keeps_boxes(hutch):
                note(f"`hutch box forward {called} {app.port}` shows it; a preview address needs a server: hutch serve")
                url = ""
            else:
                preview = await hutch.apps.url(app.box_id)
                url = preview.url or preview.path_url
        if arguments.json:
            emit_json({**app.to_plain(), "url": url})
        else:
            print(url or app.box_id)
        return 0


def _show_log(error: HutchError) -> None:
    """Show the end of a failed app's log; as JSON it is among the details of the error."""
    lines = error.details.get("log")
    for line in lines if isinstance(lines, list) else ():
        note(printable(str(line)))


class List(CliCommand):
    """Show the apps there are. Listing does not use their boxes: no clock is reset."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            apps = await hutch.apps.all()
        if arguments.json:
            emit_json({"apps": [app.to_plain() for app in apps]})
        elif apps:
            table(("BOX", "NAME", "TEMPLATE", "STATE", "PORT", "REASON"), [_row(app) for app in apps])
        else:
            print("there is no app; `hutch app new` makes one")
        return 0


def _row(app: AppInfo) -> tuple[str, ...]:
    return app.box_id, app.name or "–", app.template, app.state, str(app.port), printable(app.reason)


class Templates(CliCommand):
    """Show the templates there are."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            found = await hutch.apps.templates()
        if arguments.json:
            emit_json({"templates": [each.to_plain() for each in found]})
        else:
            rows = [(each.name, str(each.port), " ".join(each.programs), each.description) for each in found]
            table(("TEMPLATE", "PORT", "NEEDS", "WHAT IT IS"), rows)
        return 0


class AppCommand(CliCommand):
    """A command about one app."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_session(parser)
        parser.add_argument("app", help="its name, or the id of its box")


class Logs(AppCommand):
    """Show the newest lines that an app's programs wrote."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-n", "--lines", type=int, default=200, help="how many (200)")
        parser.add_argument("-f", "--follow", action="store_true", help="go on until the app ends")
        super().add_options(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            if arguments.follow:
                app = await hutch.apps.get(arguments.app)
                job = await (await hutch.observe(app.box_id)).job(app.job)
                sink = stdio.Sink(1)
                try:
                    async with aclosing(job.follow()) as output:  # type: ignore[type-var]
                        async for name, data in output:
                            if name == "stdout":
                                await sink.write(data)
                finally:
                    sink.close()
                return 0
            lines = await hutch.apps.logs(arguments.app, arguments.lines)
        if arguments.json:
            emit_json({"lines": lines})
        else:
            for line in lines:
                print(printable(line))
        return 0


class Url(AppCommand):
    """Print an address at which a browser sees an app. A server serves it; see `hutch box url` for more."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ttl", type=duration, default=3600.0, metavar="TIME", help="how long: 5m, 2h, 0 (1h)")
        parser.add_argument("--public", action="store_true", help="no token: the name alone opens it")
        super().add_options(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            preview = await hutch.apps.url(arguments.app, public=arguments.public, ttl_sec=arguments.ttl)
        if arguments.json:
            emit_json(preview.to_plain())
        else:
            print(preview.url or preview.path_url)
        return 0


class Start(AppCommand):
    """Start a stopped or failed app again, and wait until it answers."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            app = await hutch.apps.start(arguments.app)
            try:
                app = await hutch.apps.wait(app.box_id)
            except HutchError as error:
                _show_log(error)
                raise
        _show(app, as_json=arguments.json)
        return 0


class Stop(AppCommand):
    """End an app's program. Its box and files stay until their clocks end them; `hutch box destroy` ends them now."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            app = await hutch.apps.stop(arguments.app)
        _show(app, as_json=arguments.json)
        return 0


def _show(app: AppInfo, *, as_json: bool) -> None:
    if as_json:
        emit_json(app.to_plain())
    else:
        print(app.state)
