"""`hutch completion`: scripts for shells, generated from the parsers of the commands."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hutch.cli.commands import COMMANDS, GROUPS
from hutch.cli.output import emit_json
from hutch.cli.parsers import CliCommand, parser_of

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
_BOX_SIDES = "hutch box list --names | sed s/$/:/"
"""Both sides of `hutch box cp` may be BOX:PATH."""


class Completion(CliCommand):
    """Print a completion script for your shell: commands, options and their values, generated from the parsers."""

    epilog = """\
install:
  bash   hutch completion bash > ~/.local/share/bash-completion/completions/hutch
  zsh    hutch completion zsh > "${fpath[1]}/_hutch"
  fish   hutch completion fish > ~/.config/fish/completions/hutch.fish
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=SHELLS)

    def run(self, arguments: argparse.Namespace) -> int:
        script = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell]()
        if arguments.json:
            emit_json({"shell": arguments.shell, "script": script})
        else:
            print(script, end="")
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


def commands() -> list[str]:
    """List every command that has options; one of a group is written as "box exec"."""
    alone = [name for name in COMMANDS if name not in GROUPS]
    return alone + [f"{group} {action}" for group, actions in GROUPS.items() for action in actions]


def options(command: str) -> Iterator[Option]:
    _, parser = parser_of(*command.split())
    for action in parser._actions:  # argparse has no public way to ask a parser what it knows
        name = action.dest
        yield Option(
            flags=tuple(action.option_strings),
            help=(action.help or "").replace("'", "").replace("%%", "%"),
            takes_value=action.nargs != 0,
            values=tuple(map(str, action.choices or ())),
            value_command=_BOX_SIDES
            if command == "box cp" and not action.option_strings and action.nargs != 0
            else _VALUE_COMMANDS.get(name, ""),
            files=name in _FILE_ARGUMENTS,
        )


def bash() -> str:
    groups = {group: " ".join(actions) for group, actions in GROUPS.items()}
    words = "\n".join(f"    '{name}') words=\"{_words(name)}\" ;;" for name in commands())
    words += "".join(f"\n    '{group}') words='{actions}' ;;" for group, actions in groups.items())
    values = "\n".join(f"    {pattern}) {action}; return ;;" for pattern, action in _bash_values())
    return f"""\
# bash completion for hutch; made by `hutch completion bash`
_hutch() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= words= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${{COMP_WORDS[i]}} in
      --) COMPREPLY=($(compgen -A command -- "$cur")); return ;;
      --config) ((i++)) ;;
      -*) ;;
      *) case $command in
           '') command=${{COMP_WORDS[i]}} ;;
           {"|".join(groups)}) command="$command ${{COMP_WORDS[i]}}" ;;
         esac ;;
    esac
  done
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
        f"    '{name}') _arguments -S {' '.join(_zsh_argument(option) for option in options(name))} '*::: :_normal' ;;"
        for name in commands()
    )
    groups = "\n".join(f"    {group}) commands=({_zsh_described(actions)}) ;;" for group, actions in GROUPS.items())
    return f"""\
#compdef hutch
# zsh completion for hutch; made by `hutch completion zsh`
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


def _zsh_argument(option: Option) -> str:
    values = ""
    if option.takes_value:
        choice = " ".join(option.values) or (f"$({option.value_command} 2>/dev/null)" if option.value_command else "")
        values = f":value:({choice})" if choice else ":value:_files" if option.files else ":value:"
    text = option.help.replace("[", "(").replace("]", ")").replace(":", " ")
    if not option.flags:
        return f"'1{values}'" if option.values else f'"1{values}"' if option.value_command else ""
    quote = '"' if option.value_command else "'"
    text = text.replace("`", "")
    return " ".join(f"{quote}*{flag}[{text}]{values}{quote}" for flag in option.flags)


def fish() -> str:
    lines = ["# fish completion for hutch; made by `hutch completion fish`", "complete -c hutch -f"]
    for name, (_, text) in COMMANDS.items():
        lines.append(f"complete -c hutch -n __fish_use_subcommand -a {name} -d '{text}'")
    for group, actions in GROUPS.items():
        none_yet = f"__fish_seen_subcommand_from {group}; and not __fish_seen_subcommand_from {' '.join(actions)}"
        lines += [f'complete -c hutch -n "{none_yet}" -a {name} -d "{text}"' for name, (_, text) in actions.items()]
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
    if choice:
        line += f" -a '{choice}'"
    return f"{line} -d '{option.help}'" if option.help else line
