"""The entry point of `hutch`: it finds the command and turns every error into a message and an exit code.

The module of a command (`commands/` lists them) is imported when it is called, because `hutch run` has to start fast.
"""

import gc
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from hutch.cli.commands import COMMANDS, GROUPS

if TYPE_CHECKING:
    from hutch.cli.bundle import Bundle

KEEPS_BOXES = (
    "run", "shell", "box", "volume", "image", "skill", "events", "receipts",
    "prune", "providers", "conformance", "serve", "mcp", "key",
)  # fmt: skip
"""Commands that need a keeper, and so the locks and signals of a Unix."""
FAILED = 125
"""The exit code if Hutch itself failed. docker, env and timeout use it too; commands rarely do."""
INTERRUPTED = 130
BROKEN_PIPE = 141

_bundles: "list[Bundle]" = []

HELP = """\
usage: hutch COMMAND [OPTIONS]

Isolated boxes for AI agents that start in milliseconds.

commands:
{commands}

options of every command:
  --config FILE      read this hutch.toml instead of the usual ones
  --json             one JSON object on standard output, errors too
  --verbose          log to standard error what is done
  -h, --help         this text, or that of the command
  --version          print the version

examples:
  hutch run -- python3 -c 'print(6 * 7)'          one command, then the box is gone
  hutch run --net on -- curl -sI https://example.org
  hutch run --mount ./data:/data:ro --memory 256 -- wc -l /data/log.csv
  echo 'hello' | hutch run -- tr a-z A-Z           input, output and exit code as usual
  hutch shell --profile code                       look around inside
  hutch box create --name dev                      a box that stays; then: hutch box exec dev -- ls
  hutch doctor                                     can this machine do it, and if not, why

exit codes: the command's own; 128+N if signal N ended it; 124 timeout; 125 Hutch failed;
126 the program cannot be executed; 127 there is no such program.
"""


def main() -> NoReturn:
    """Run the command of this process, and exit without the interpreter's teardown: everything is closed by then."""
    _fill_standard_descriptors()
    try:
        code = command(sys.argv[1:])
        for bundle in _bundles:
            bundle.save()
    except KeyboardInterrupt:  # also while we are still importing
        code = INTERRUPTED
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code or BROKEN_PIPE
    os._exit(code)


def _fill_standard_descriptors() -> None:
    """Open 0, 1 and 2 if the caller closed them; else the next socket would get that number, and our output."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def command(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    leading, name, rest = split(argv)
    if name in ("run", "shell"):
        gc.disable()  # until the box runs (`run_in_new_box`): collections during the imports cost a tenth of the start
        _start_engine(rest)
        _use_bundle()
        _import_libraries_lightly()
    elif (name == "mcp" or (name == "box" and rest[:1] == ["create"])) and not _remote(argv):
        _start_engine(rest)
    if not name:
        return _without_command(leading)
    from hutch.errors import HutchError

    words = [*leading, *rest]
    try:
        return _dispatch(name, words)
    except HutchError as error:
        from hutch.cli.output import fail

        fail(error, as_json=_wants_json(words))
        return _code_of(error)
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:  # the boundary of the process reports a defect of ours without a bare traceback
        from hutch.cli.output import report_defect

        report_defect(error, as_json=_wants_json(words), verbose="--verbose" in words)
        return FAILED


def split(argv: list[str]) -> tuple[list[str], str, list[str]]:
    """Split into the options before the command, the command, and the rest."""
    position = 0
    while position < len(argv) and argv[position].startswith("-"):
        position += 2 if argv[position] in ("--config", "--server") else 1
    if position >= len(argv):
        return argv, "", []
    return argv[:position], argv[position], argv[position + 1 :]


def _remote(argv: list[str]) -> bool:
    """Tell whether a server is named, so that no engine is needed here."""
    return "HUTCH_SERVER" in os.environ or "--server" in argv


def _start_engine(words: list[str]) -> None:
    """Start the native engine's spawner while we import the rest; if it is not used, it ends with us."""
    own = words[: words.index("--")] if "--" in words else words
    if sys.platform != "linux" or os.environ.get("HUTCH_PROVIDER", "native") != "native":
        return
    if any(word.startswith("--provider") or word in ("-h", "--help") for word in own):
        return
    from hutch.providers.native.spawn.launch import launch_early

    launch_early()


def _use_bundle() -> None:
    """Import the modules of a run from one file, if we were started by the script beside the interpreter.

    With `python -m` another directory comes first on the path, which may give any name another meaning.
    """
    if sys.path[:1] == [os.path.dirname(sys.executable)]:
        from hutch.cli.bundle import Bundle

        compiled = os.path.dirname(__spec__.cached or __file__)
        _bundles.append(Bundle(os.path.join(compiled, f"run.{sys.implementation.cache_tag}.bundle")))
        _bundles[0].install()


class _Later(ModuleType):
    """Stands for a module in those that imported it, and loads it when they first use it."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # an importer takes a function for later
            return lambda *arguments, **named: getattr(self, name)(*arguments, **named)
        return getattr(import_module(self.__name__), name)


class _Untranslated(ModuleType):
    """Stands for `gettext` in argparse, whose words then stay English, as ours are, without a search for catalogues."""

    gettext = staticmethod(lambda message: message)
    ngettext = staticmethod(lambda one, many, number: one if number == 1 else many)


class _SystemName(ModuleType):
    """Stands for `platform` in uuid, which asks only this."""

    system = staticmethod(lambda: os.uname().sysname)


def _import_libraries_lightly() -> None:
    """Import what `hutch run` needs of other people, but not all that they import, which takes longer than they do.

    asyncio loads ssl (7 ms), and the native engine makes no TLS connection. msgspec loads typing_extensions (3 ms) and
    uses nothing of it that the typing of our oldest Python does not have. Both load modules for tracebacks, TLS and
    schemas (9 ms), and pathlib one for URLs (2 ms), of which they use functions only: they get them when they call one.
    Other modules import any of these as usual.
    """
    _import_lightly("argparse", _Untranslated("gettext"))
    _import_lightly("pathlib", _Later("urllib.parse"))
    tracing = (_Later(name) for name in ("inspect", "linecache", "traceback", "locale", "asyncio.sslproto"))
    _import_lightly("asyncio", *tracing, without="ssl")
    _import_lightly("uuid", _SystemName("platform"))
    schemas = (_Later(name) for name in ("msgspec.inspect", "msgspec._json_schema"))
    _import_lightly("msgspec", *schemas, without="typing_extensions")


def _import_lightly(name: str, *stand_ins: ModuleType, without: str = "") -> None:
    """Import a module that finds stand-ins in place of modules, and `without` an optional one, as if not installed."""
    if name in sys.modules or without in sys.modules:
        return
    placed: dict[str, ModuleType | None] = {
        each.__name__: each for each in stand_ins if each.__name__ not in sys.modules
    }
    if without:
        placed[without] = None
    sys.modules.update(placed)  # type: ignore[arg-type]
    try:
        import_module(name)
    finally:
        for each in placed:
            del sys.modules[each]


def _dispatch(name: str, words: list[str]) -> int:
    if name == "help":
        return _help()
    if sys.platform == "win32" and name in KEEPS_BOXES:
        from hutch.cli.connect import not_linux

        raise not_linux()
    from hutch.cli.parsers import parser_of

    action = ""
    if name in GROUPS:
        leading, action, rest = split(words)
        if not action:
            return _group_help(name)
        words = [*leading, *rest]
    found, parser = parser_of(name, action)
    if "logging" in sys.modules:  # asyncio loads it; without it no other code logs
        from hutch import logs

        logs.take_over()
    return found.run(parser.parse_args(words))


def _group_help(name: str) -> int:
    rows = "\n".join(f"  {action:<10} {text}" for action, (_, text) in GROUPS[name].items())
    about = (import_module(COMMANDS[name][0]).__doc__ or "").strip()
    sys.stdout.write(
        f"usage: hutch {name} COMMAND [OPTIONS]\n\n{about}\n\ncommands:\n{rows}\n\n"
        f"`hutch {name} COMMAND --help` shows its options.\n"
    )
    return 0


def _without_command(leading: list[str]) -> int:
    if "--version" in leading:
        return _dispatch("version", [word for word in leading if word != "--version"])
    if not leading or leading[0] in ("-h", "--help"):
        return _help()
    sys.stderr.write(f"hutch: no command after {' '.join(leading)}\n  try: hutch --help\n")
    return FAILED


def _help() -> int:
    rows = "\n".join(f"  {name:<12} {text}" for name, (_, text) in COMMANDS.items())
    sys.stdout.write(HELP.format(commands=rows))
    return 0


def _wants_json(words: list[str]) -> bool:
    """Look for --json in the words, because parsing them may have failed."""
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def _code_of(error: Exception) -> int:
    """Return 126 and 127 as shells do, so that scripts can tell "no such program" from "Hutch failed"."""
    details = getattr(error, "details", {})
    if getattr(error, "code", "") != "not_runnable" or details.get("what") != "program":
        return FAILED
    return 127 if details.get("errno") == "ENOENT" else 126


if __name__ == "__main__":
    main()
