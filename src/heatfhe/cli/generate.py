# SPDX-License-Identifier: Apache-2.0
"""heat generate: ask, privately."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from heatfhe.cli.connect import add_connection, connect
from heatfhe.cli.console import Console, warn_exceeded
from heatfhe.client import Client, Conversation, Sampler
from heatfhe.errors import ConfigError

HELP = """Ask, privately: the prompt leaves this machine encrypted, the answer comes back encrypted.

The number of steps is fixed when you ask. The server learns the model, the prompt's length in tokens, the number of
steps, the time, and who asks; not the words."""
EXAMPLES = """  heat generate --local --tokens 8 "Once upon a time"
  heat generate --server https://fhe.example --token-file token.txt --tokens 32 "Once upon a time"
  heat generate --local --temperature 0.8 "Once upon a time"
  heat generate --local --interactive --temperature 0.8 --top-p 0.9 "Once upon a time"
  heat generate --server https://fhe.example --token-file token.txt --resume
"""
INTERRUPTED = (
    "the server goes on with it: the same command with --resume instead of the prompt reads the answer, "
    "heat sessions --delete-all drops it"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("prompt", nargs="?", help="the text to go on from")
    add_connection(parser, local=True)
    parser.add_argument("--tokens", type=int, default=16, help="steps to generate, fixed now")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy; more adds encrypted noise")
    parser.add_argument("--interactive", action="store_true", help="logits come back encrypted; this machine samples")
    parser.add_argument("--top-p", type=float, default=1.0, help="with --interactive")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="with --interactive")
    parser.add_argument(
        "--stop-early",
        action="store_true",
        help="cancel at the model's end of text; this tells the server how long the answer is",
    )
    parser.add_argument("--session", help="go on in a session the server still has")
    parser.add_argument("--keep", action="store_true", help="keep the session for another question")
    parser.add_argument("--resume", action="store_true", help="read the answer an interrupted command did not")


def run(args: argparse.Namespace, console: Console) -> int:
    """Ask and print the answer as it comes."""
    if not args.resume and not args.prompt:
        raise ConfigError("what is the prompt? give it as the last argument, in quotes")
    if args.stop_early:
        console.warn("--stop-early tells the server the length of the answer")
    with connect(args, console) as client:
        if client.config.engine == "clear":
            console.warn("this server only simulates: nothing is encrypted")
        began = time.monotonic()
        if args.resume:
            made = list(shown(client, client.resume(), console))
            facts: dict[str, Any] = {"tokens": made, "text": client.bundle.decode(made)}
        else:
            facts = _ask(client, args, console)
        facts["seconds"] = round(time.monotonic() - began, 3)
        console.print(f"{len(facts['tokens'])} tokens in {facts['seconds']:.1f} s")
        console.json(facts)
    return 0


def _ask(client: Client, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    reporter = console.reporter
    sampler = Sampler(temperature=args.temperature, top_p=args.top_p, repetition_penalty=args.repetition_penalty)
    talk = client.open(args.session) if args.session else Conversation()
    client.check(args.prompt, args.tokens, sampler=sampler, interactive=args.interactive, conversation=talk)
    client.keygen(reporter)
    client.upload_keys(reporter)
    reporter.start("generate")

    def facts(event: dict[str, Any]) -> None:
        shown = {k: event[k] for k in ("unit", "units", "bootstrap", "bootstraps", "eta_s", "ahead") if k in event}
        reporter.advance("generate", **shown)

    stream = client.stream(
        args.prompt,
        args.tokens,
        sampler=sampler,
        interactive=args.interactive,
        stop_early=args.stop_early,
        conversation=talk,
        keep=args.keep,
        facts=facts if sys.stderr.isatty() else None,
    )
    if args.keep:
        console.print(f"session {talk.session}")
    made = list(shown(client, stream, console))
    reporter.done("generate")
    if talk.faint:
        console.warn(
            f"{talk.faint} of {len(made)} tokens were chosen faintly: the server fed back a weak copy of the word, and "
            "what follows may mean nothing. This circuit does not hold on such a prompt; ask its owner for heat stress"
        )
    if talk.exceeded:
        warn_exceeded(console, client.config.model, talk.exceeded)
    kept = {"session": talk.session} if args.keep else {}
    return {
        "tokens": made,
        "text": client.bundle.decode(made),
        "near_ties": talk.near_ties,
        "faint": talk.faint,
        "exceeded": talk.exceeded,
        **kept,
    }


def shown(client: Client, tokens: Any, console: Console) -> Any:
    """Print what each token adds to the text, whole characters only."""
    made: list[int] = []
    text = ""
    for token in tokens:
        made.append(token)
        grown = client.bundle.decode(made)
        if not grown.endswith("\ufffd"):  # else the rest of a character is on its way
            console.stream(grown[len(text) :])
            text = grown
        yield token
    console.print(client.bundle.decode(made)[len(text) :])
