# SPDX-License-Identifier: Apache-2.0
"""Tab completion for bash, zsh and fish: a script that knows every command, its options and their choices."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heatfhe.errors import ConfigError

NAMES = ("default", "default-calibrated")
"""What may stand for a circuit or a model, beside a path."""


@dataclass(frozen=True, slots=True)
class Option:
    """One long option: its words of help, its choices, and whether a value follows."""

    name: str
    words: str
    choices: tuple[str, ...]
    valued: bool


@dataclass(frozen=True, slots=True)
class Command:
    """One command of heat: its words of help and its options."""

    words: str
    options: tuple[Option, ...]


def options_of(parser: argparse.ArgumentParser) -> tuple[Option, ...]:
    """Every long option a parser knows."""
    out = []
    for action in parser._actions:
        for name in (n for n in action.option_strings if n.startswith("--")):
            words = (action.help or "").partition("(")[0].replace("%(default)s", "").strip()
            choices = tuple(map(str, action.choices or ()))
            out.append(Option(name, words, choices, action.nargs != 0))
    return tuple(out)


def script(shell: str, commands: Mapping[str, Command]) -> str:
    """The completion script of a shell, to be evaluated by it."""
    if shell not in SHELLS:
        raise ConfigError(f"no completion for {shell!r}: use heat completion bash, zsh or fish")
    return SHELLS[shell](commands)


def _bash(commands: Mapping[str, Command]) -> str:
    lines = [
        "_heat() {",
        '  local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=""',
        f'  if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(commands)}"',
        '  else case "${COMP_WORDS[1]} $before" in',
    ]
    for name, command in commands.items():
        for option in command.options:
            if option.choices:
                lines.append(f'    "{name} {option.name}") words="{" ".join(option.choices)}" ;;')
        rest = f"{_names(command.options)} {' '.join(NAMES)}"
        lines.append(f'    "{name} "*) words="{rest}" ;;')
    lines += ["  esac; fi", '  COMPREPLY=($(compgen -W "$words" -- "$cur"))', "}", "complete -o default -F _heat heat"]
    return "\n".join(lines)


def _zsh(commands: Mapping[str, Command]) -> str:
    listed = " ".join(_quoted(f"{name}:{command.words}") for name, command in commands.items())
    lines = ["#compdef heat", "_heat() {", "  if (( CURRENT == 2 )); then", f"    local -a commands=({listed})"]
    lines += ["    _describe command commands; return", "  fi", '  case "$words[2] $words[CURRENT-1]" in']
    for name, command in commands.items():
        for option in command.options:
            if option.choices:
                lines.append(f'    "{name} {option.name}") compadd -- {" ".join(option.choices)}; return ;;')
        lines.append(f'    "{name} "*) compadd -- {_names(command.options)} {" ".join(NAMES)} ;;')
    return "\n".join([*lines, "  esac", "  _files", "}", "compdef _heat heat"])


def _fish(commands: Mapping[str, Command]) -> str:
    lines = []
    for name, command in commands.items():
        here = f"complete -c heat -n '__fish_seen_subcommand_from {name}'"
        lines.append(f"complete -c heat -n __fish_use_subcommand -f -a {name} -d {_quoted(command.words)}")
        for option in command.options:
            value = f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r" * option.valued
            lines.append(f"{here} -l {option.name[2:]}{value} -d {_quoted(option.words)}")
    return "\n".join(lines)


def _names(options: Sequence[Option]) -> str:
    return " ".join(o.name for o in options)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "").replace("'", "’").replace("\n", " ") + "'"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
