# SPDX-License-Identifier: Apache-2.0
"""The command ``heat``: one file per command, each thin; the only room that prints."""

from __future__ import annotations

import argparse
import errno
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import heatfhe
from heatfhe.cli.console import Console
from heatfhe.errors import HeatError, MissingExtraError, WireError

__all__ = ["main"]

GROUPS: dict[str, dict[str, str]] = {
    "model owner": {
        "prepare": "list a model's sites",
        "calibrate": "fix every site's domain and count on real text",
        "train": "HEAT: learn counts and weights together",
        "search": "ATLAS: search counts on frozen weights",
        "compare": "train and calibrate every preset, print one table",
        "sweep": "train over a recipe's fields and seeds, two figures",
        "export": "write a Circuit directory",
        "inspect": "show a Circuit: depth map, levels, domains",
        "stress": "does a circuit hold on whatever a user types?",
        "report": "one HTML page from any runs",
    },
    "operator": {
        "plan": "packing, levels and bootstraps of one token",
        "capacity": "seats, memory, storage and traffic that so many clients need",
        "serve": "serve a Circuit to clients whose data it must not see",
        "bench-engine": "measure an engine's cost table",
        "measure-noise": "measure an engine's refresh error",
        "evaluate": "encrypted decoding against the circuit's own logits",
        "drift": "noise at every bootstrap: fidelity by position",
        "lm-eval": "tasks of lm-evaluation-harness, or a text's perplexity",
    },
    "client": {
        "keygen": "make keys for a server's model",
        "generate": "ask, privately",
        "chat": "talk, privately, line by line",
        "classify": "name what images show, privately",
        "sessions": "list and delete sessions and keys on a server",
        "proxy": "OpenAI-compatible endpoint on this machine",
    },
    "everyone": {
        "card": "a private inference card: what is encrypted, what leaks, quality, cost",
        "models": "circuits, plans and keys on this machine, with sizes and security",
        "doctor": "what works on this machine, and what would make the rest work",
    },
}
EXIT_CODES = """exit codes:
  0  done
  1  the command failed; the error message says what to do
  2  the command line cannot be read
  3  an optional package is missing
  4  the server cannot be used: not reached, not trusted, or it refused
  130  interrupted; the last line says how to go on"""
EXAMPLES = """examples:
  heat doctor                                              what works on this machine
  heat train my-gpt2 --text corpus.txt -o out/mine         model owner: learn shallow solvers
  heat plan default --params insecure-native-12            operator: what will a token cost?
  heat generate --local --tokens 4 "Once upon a time"      client: ask, privately, with a toy server beside you
"""
COMPLETION = """every command takes --json (for scripts), --quiet (no text, no progress) and --help; NO_COLOR is kept.

tab completion:
  heat completion bash > ~/.local/share/bash-completion/completions/heat
  heat completion zsh > ~/.heat.zsh         and in ~/.zshrc, after compinit: source ~/.heat.zsh
  heat completion fish > ~/.config/fish/completions/heat.fish"""
EXTRAS = {
    "torch": "train", "transformers": "train", "datasets": "train", "accelerate": "train", "numba": "native",
    "cryptography": "native", "fastapi": "serve", "uvicorn": "serve", "matplotlib": "report", "openfhe": "openfhe",
    "ray": "ray", "pymoo": "search",
}  # fmt: skip
"""The extra that brings an optional package."""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Every option that takes a value says its default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        plain = action.nargs == 0 or action.default in (None, argparse.SUPPRESS, "") or action.default == []
        return text if plain or "default" in text else f"{text} (default %(default)s)".strip()


class Parser(argparse.ArgumentParser):
    """Errors are one line that ends with what to do."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parsed, with the command as it was given: runs say how they were made."""
        found, rest = super().parse_known_args(args, namespace)
        found.command_line = shlex.join([*self.prog.split(), *(sys.argv[1:] if args is None else args)])
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Exit 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"heatfhe {heatfhe.__version__}")
        return 0
    name = arguments[0]
    if name == "completion":
        return _complete(arguments[1:])
    if not any(name in group for group in GROUPS.values()):
        parser.error(f"unknown command {name!r}")
    return _run(name, arguments[1:])


def _run(name: str, arguments: Sequence[str]) -> int:
    console, module = Console(quiet="--quiet" in arguments, as_json="--json" in arguments), None
    given: dict[str, Any] = {}
    try:
        module = import_module(f"heatfhe.cli.{name.replace('-', '_')}")
        parser = _command(name, module)
        if getattr(module, "HANDS_OVER", False):  # what it does not know goes to another command line
            args, rest = parser.parse_known_args(arguments)
            args.rest = rest
        else:
            args = parser.parse_args(arguments)
        given = {
            a.option_strings[-1]: getattr(args, a.dest) for a in parser._actions if a.option_strings and a.nargs != 0
        }
        code: int = module.run(args, console)
        return code
    except KeyboardInterrupt:
        print(f"interrupted; {getattr(module, 'INTERRUPTED', 'start it again to begin anew')}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except MissingExtraError as err:
        return _fail(err, 3)
    except WireError as err:
        return _fail(err, 4)
    except HeatError as err:
        return _fail(err, 1, blamed(str(err), given))
    except ModuleNotFoundError as err:
        package = (err.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        return _fail(MissingExtraError(EXTRAS[package], needed_by=f"heat {name}"), 3)
    except OSError as err:
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            return _fail(HeatError(f"{err.strerror}: nothing was half-written; free some space and start again"), 1)
        if err.filename is None:
            raise
        return _fail(HeatError(f"{err.filename}: {err.strerror}; check the path, its permissions and free space"), 1)


def _command(name: str, module: Any) -> Parser:
    """The parser of one command."""
    parser = Parser(
        prog=f"heat {name}",
        description=module.HELP,
        epilog=f"examples:\n{module.EXAMPLES}",
        formatter_class=Formatter,
        allow_abbrev=not getattr(module, "HANDS_OVER", False),
    )
    parser.add_argument("--json", action="store_true", help="print JSON for scripts instead of text")
    parser.add_argument("--quiet", action="store_true", help="no text and no progress")
    module.add_arguments(parser)
    return parser


def _complete(arguments: Sequence[str]) -> int:
    """Print a completion script; a command whose extra is absent is completed without its options."""
    from heatfhe.cli.completion import Command, options_of, script

    found = {}
    for name, words in (pair for group in GROUPS.values() for pair in group.items()):
        try:
            options = options_of(_command(name, import_module(f"heatfhe.cli.{name.replace('-', '_')}")))
        except ModuleNotFoundError:
            options = ()
        found[name] = Command(words, options)
    try:
        print(script(arguments[0] if arguments else "bash", found))
    except HeatError as err:
        return _fail(err, 2)
    return 0


def _fail(err: HeatError, code: int, options: Sequence[str] = ()) -> int:
    which = f" ({', '.join(options)})" if options else ""
    print(f"heat: {type(err).__name__}: {err}{which}", file=sys.stderr)
    return code


def blamed(message: str, given: Mapping[str, Any]) -> list[str]:
    """Options whose values a refusal speaks of, where it names no option itself.

    The library refuses values; which option brought one is known here. A path or a name counts where it stands in the
    message whole; a number only as "got 3" or after its own name, as others may be equal by chance.
    """
    if re.search(r"(?<![\w-])--[a-z]", message):
        return []
    found = []
    for option, values in given.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, bool) or value in (None, ""):
                continue
            number = isinstance(value, (int, float))
            word = option.lstrip("-").replace("-", "[-_ ]")
            texts = "|".join(re.escape(t) for t in {str(value), *([f"{value:g}"] if number else [])})
            before = rf"(?:\bgot |\b{word}=?\s)" if number else r"(?<![\w/.-])"
            if re.search(rf"{before}(?:{texts})(?![\w/-])(?!\.\w)", message):
                found.append(option)
                break
    return found


def _parser() -> Parser:
    lines = []
    for role, commands in GROUPS.items():
        lines.append(f"{role}:")
        lines += [f"  {name:<14}{text}" for name, text in commands.items()]
        lines.append("")
    return Parser(
        prog="heat",
        usage="heat COMMAND [options]       (heat COMMAND --help for each)",
        description="Transformer language models under fully homomorphic encryption.\n\n"
        + "\n".join([*lines, EXAMPLES]),
        epilog=f"{EXIT_CODES}\n\n{COMPLETION}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
