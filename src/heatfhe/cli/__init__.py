# SPDX-License-Identifier: Apache-2.0
"""The command ``heat``: one file per command, each thin; the only room that prints."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
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
        "compare": "train and calibrate every preset, print one table",
        "export": "write a Circuit directory",
        "inspect": "show a Circuit: depth map, levels, domains",
        "stress": "does a circuit hold on whatever a user types?",
        "report": "one HTML page from any runs",
    },
    "operator": {
        "plan": "packing, levels and bootstraps of one token",
        "serve": "serve a Circuit to clients whose data it must not see",
        "bench-engine": "measure an engine's cost table",
        "measure-noise": "measure an engine's refresh error",
        "evaluate": "encrypted decoding against the circuit's own logits",
        "drift": "noise at every bootstrap: fidelity by position",
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
    try:
        module = import_module(f"heatfhe.cli.{name.replace('-', '_')}")
        code: int = module.run(_command(name, module).parse_args(arguments), console)
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
        return _fail(err, 1)
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


def _fail(err: HeatError, code: int) -> int:
    print(f"heat: {type(err).__name__}: {err}", file=sys.stderr)
    return code


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
