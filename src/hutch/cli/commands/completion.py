"""`hutch completion`: scripts for shells, generated from the parsers of the commands."""

import argparse
import posixpath
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from hutch.cli.commands import COMMANDS, GROUPS
from hutch.cli.output import emit_json
from hutch.cli.parsers import CliCommand, parser_of
from hutch.errors import HutchError
from hutch.model.files import FileKind

SHELLS = ("bash", "zsh", "fish")

_FILE_ARGUMENTS = ("config", "mount", "workspace", "image")
_VALUE_COMMANDS = {
    "profile": "hutch profiles --names",
    "provider": "hutch providers --names",
    "box": "hutch box list --names",
    "boxes": "hutch box list --names",
    "image": "hutch image list --names",
}
"""Commands that list the values of an argument when it is completed: configuration and store decide them."""
_IMAGE_NAMES = "hutch image list --names | sed s/^oci://"
_VALUE_COMMANDS_OF = {
    "image show": {"name": _IMAGE_NAMES},
    "image export": {"name": _IMAGE_NAMES},
    "image remove": {"images": _IMAGE_NAMES},
    "image build": {"base": _IMAGE_NAMES},
}
"""The same for arguments whose names mean something else in other commands."""
_WITH_PATHS = "box cp"
"""The command whose arguments may be BOX:PATH; their values depend on the word that is being completed."""
MAX_PATHS = 1000


class Completion(CliCommand):
    """Print a completion script for your shell: commands, options and their values, generated from the parsers."""

    epilog = """\
install:
  bash   hutch completion bash > ~/.local/share/bash-completion/completions/hutch
  zsh    hutch completion zsh > "${fpath[1]}/_hutch"
  fish   hutch completion fish > ~/.config/fish/completions/hutch.fish
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=SHELLS, nargs="?", default="bash")
        parser.add_argument("--paths", metavar="WORD", help="list what BOX:PATH can go on with; the scripts ask this")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        if arguments.paths is not None:
            return await _list_paths(arguments)
        script = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell]()
        if arguments.json:
            emit_json({"shell": arguments.shell, "script": script})
        else:
            print(script, end="")
        return 0


async def _list_paths(arguments: argparse.Namespace) -> int:
    """Print the words that a beginning of BOX:PATH can become: boxes, or entries of a directory in a box.

    A person who completes a word wants no error messages, so there is just nothing to choose from.
    """
    from hutch.cli.connect import open_hutch

    box_name, colon, path = arguments.paths.partition(":")
    found: list[str] = []
    with suppress(HutchError):
        async with open_hutch(arguments) as hutch:
            if not colon:
                names = [name for box in await hutch.boxes() for name in (box.spec.name, box.id) if name]
                found = [f"{name}:" for name in names if name.startswith(box_name)]
            else:
                directory, slash, beginning = path.rpartition("/")
                box = await hutch.observe((await hutch.find(box_name)).id)
                entries = await box.files.list(f"{directory}{slash}" or ".")
                found = [
                    f"{box_name}:{directory}{slash}{name}{'/' if entry.kind is FileKind.DIRECTORY else ''}"
                    for entry in entries
                    if (name := posixpath.basename(entry.path)).startswith(beginning)
                    and (beginning or not name.startswith("."))
                ]
    shown = [word for word in found[:MAX_PATHS] if word.isprintable()]
    if arguments.json:
        emit_json({"paths": shown})
    else:
        sys.stdout.writelines(f"{word}\n" for word in shown)
    return 0


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command, or (without flags) the values of its positional argument."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...] = ()
    value_command: str = ""
    files: bool = False
    paths: bool = False
    """Whether it is BOX:PATH or a local path."""


def commands() -> list[str]:
    """List every command that has options; one of a group is written as "box exec"."""
    alone = [name for name in COMMANDS if name not in GROUPS]
    return alone + [f"{group} {action}" for group, actions in GROUPS.items() for action in actions]


def options(command: str) -> Iterator[Option]:
    _, parser = parser_of(*command.split())
    for action in parser._actions:  # argparse has no public way to ask a parser what it knows
        name = action.dest
        value_commands = {**_VALUE_COMMANDS, **_VALUE_COMMANDS_OF.get(command, {})}
        yield Option(
            flags=tuple(action.option_strings),
            help=(action.help or "").replace("'", "").replace("%%", "%"),
            takes_value=action.nargs != 0,
            values=tuple(map(str, action.choices or ())),
            value_command=value_commands.get(name, ""),
            files=name in _FILE_ARGUMENTS,
            paths=command == _WITH_PATHS and not action.option_strings,
        )


def bash() -> str:
    groups = {group: " ".join(actions) for group, actions in GROUPS.items()}
    words = "\n".join(f"    '{name}') words=\"{_words(name)}\" ;;" for name in commands())
    words += "".join(f"\n    '{group}') words='{actions}' ;;" for group, actions in groups.items())
    values = "\n".join(f"    {pattern}) {action}; return ;;" for pattern, action in _bash_values())
    return f"""\
# bash completion for hutch; made by `hutch completion bash`
_hutch() {{
  # Words are split at blanks only: bash also splits them at colons, which boxes and images have.
  local line=${{COMP_LINE:0:COMP_POINT}} command= words= cur prev last i
  local -a args
  read -ra args <<< "$line"
  [[ $line == *[[:blank:]] ]] && args+=('')
  last=$((${{#args[@]}} - 1)) cur=${{args[last]}} prev=${{args[last-1]}}
  COMPREPLY=()
  for ((i = 1; i < last; i++)); do
    case ${{args[i]}} in
      --) COMPREPLY=($(compgen -A command -- "$cur")); return ;;
      --config) ((i++)) ;;
      -*) ;;
      *) case $command in
           '') command=${{args[i]}} ;;
           {"|".join(groups)}) command="$command ${{args[i]}}" ;;
         esac ;;
    esac
  done
  _hutch_values
  # What stands before the last colon is on the line already.
  if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then
    COMPREPLY=("${{COMPREPLY[@]#"${{cur%"${{cur##*:}}"}}"}}")
  fi
}}
_hutch_values() {{
  if [[ $command == '{_WITH_PATHS}' && $cur != -* ]]; then
    mapfile -t COMPREPLY < <(hutch completion --paths "$cur" 2>/dev/null)
    for i in "${{!COMPREPLY[@]}}"; do printf -v "COMPREPLY[i]" %q "${{COMPREPLY[i]}}"; done
    compopt -o nospace 2>/dev/null
    return
  fi
  case "$command $prev" in
{values}
  esac
  case $command in
    '') words='{" ".join(COMMANDS)} --help --version --config --json --verbose' ;;
{words}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _hutch hutch
"""


def _words(command: str) -> str:
    found: list[str] = []
    for option in options(command):
        found += option.flags or option.values
        if option.value_command and not option.flags:
            found.append(f"$({option.value_command} 2>/dev/null)")
    return " ".join(found)


def _bash_values() -> Iterator[tuple[str, str]]:
    yield "*' --config'", 'COMPREPLY=($(compgen -f -- "$cur"))'
    for command in commands():
        for option in options(command):
            if not option.flags or option.flags[0] == "--config" or not option.takes_value:
                continue
            pattern = "|".join(f"'{command} {flag}'" for flag in option.flags)
            if option.value_command:
                yield pattern, f'COMPREPLY=($(compgen -W "$({option.value_command} 2>/dev/null)" -- "$cur"))'
            elif option.values:
                yield pattern, f'COMPREPLY=($(compgen -W "{" ".join(option.values)}" -- "$cur"))'
            else:
                yield pattern, 'COMPREPLY=($(compgen -f -- "$cur"))' if option.files else "COMPREPLY=()"


def zsh() -> str:
    cases = "\n".join(
        f"    '{name}') _arguments -S {' '.join(_zsh_arguments(name))} '*::: :_normal' ;;" for name in commands()
    )
    groups = "\n".join(f"    {group}) commands=({_zsh_described(actions)}) ;;" for group, actions in GROUPS.items())
    return f"""\
#compdef hutch
# zsh completion for hutch; made by `hutch completion zsh`
_hutch_paths() {{
  local -a found
  found=("${{(@f)$(hutch completion --paths "$PREFIX" 2>/dev/null)}}")
  compadd -S '' -a found
  [[ $PREFIX == *:* ]] || _files
}}
_hutch() {{
  local -a commands
  commands=({_zsh_described(COMMANDS)})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  commands=()
  case $command in
{groups}
  esac
  if (( $#commands )); then
    if (( CURRENT == 2 )); then
      _describe command commands
      return
    fi
    command="$command $words[2]"
    shift words
    (( CURRENT-- ))
  fi
  case $command in
{cases}
  esac
}}
_hutch "$@"
"""


def _zsh_described(commands: Mapping[str, tuple[str, str]]) -> str:
    return " ".join(f'"{name}:{text}"' for name, (_, text) in commands.items())


def _zsh_arguments(command: str) -> Iterator[str]:
    position = 0
    for option in options(command):
        if option.flags:
            yield _zsh_option(option)
            continue
        position += 1
        if option.paths:
            yield f"'{position}:value:_hutch_paths'"
        elif option.values:
            yield f"'{position}:value:({' '.join(option.values)})'"
        elif option.value_command:
            yield f'"{position}:value:($({option.value_command} 2>/dev/null))"'


def _zsh_option(option: Option) -> str:
    values = ""
    if option.takes_value:
        choice = " ".join(option.values) or (f"$({option.value_command} 2>/dev/null)" if option.value_command else "")
        values = f":value:({choice})" if choice else ":value:_files" if option.files else ":value:"
    text = option.help.replace("[", "(").replace("]", ")").replace(":", " ")
    quote = '"' if option.value_command else "'"
    text = text.replace("`", "")
    return " ".join(f"{quote}*{flag}[{text}]{values}{quote}" for flag in option.flags)


def fish() -> str:
    lines = ["# fish completion for hutch; made by `hutch completion fish`", "complete -c hutch -f"]
    for name, (_, text) in COMMANDS.items():
        lines.append(f"complete -c hutch -n __fish_use_subcommand -a {name} -d {_fish_quoted(text)}")
    for group, actions in GROUPS.items():
        none_yet = f"__fish_seen_subcommand_from {group}; and not __fish_seen_subcommand_from {' '.join(actions)}"
        lines += [
            f'complete -c hutch -n "{none_yet}" -a {name} -d {_fish_quoted(text)}'
            for name, (_, text) in actions.items()
        ]
    for name in commands():
        lines += [_fish_line(name, option) for option in options(name)]
    return "\n".join(lines) + "\n"


def _fish_line(command: str, option: Option) -> str:
    seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
    line = f"complete -c hutch -n '{seen}'"
    for flag in option.flags:
        line += f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}"
    if option.flags and option.takes_value:
        line += " -r" if option.files else " -x"
    choice = " ".join(option.values) or (f"({option.value_command} 2>/dev/null)" if option.value_command else "")
    if option.paths:
        line += " -F -a '(hutch completion --paths (commandline -ct) 2>/dev/null)'"
    elif choice:
        line += f" -a '{choice}'"
    return f"{line} -d {_fish_quoted(option.help)}" if option.help else line


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
