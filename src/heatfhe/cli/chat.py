# SPDX-License-Identifier: Apache-2.0
"""heat chat: a conversation in the terminal, encrypted line by line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from heatfhe.cli.connect import add_connection, connect
from heatfhe.cli.console import Console
from heatfhe.cli.generate import shown
from heatfhe.client import Client, Conversation, Sampler
from heatfhe.errors import ConfigError, HeatError, WireError

HELP = """Talk with a model, privately: your lines leave this machine encrypted, and the answers come back encrypted.

The server learns the model, the length in tokens of every line and answer, and when they came; not the words. The
conversation goes on in one session as long as the model's context allows, then with its last words in a new one. The
models served here continue text: they know no roles. Ctrl-D ends it and deletes the session."""
EXAMPLES = """  heat chat --local --tokens 8
  heat chat --server https://fhe.example --token-file token.txt --temperature 0.8
"""
INTERRUPTED = "its session stays on the server until it expires; heat sessions --delete-all drops it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add_connection(parser, local=True)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of each answer, fixed when a line is sent")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy; more adds encrypted noise")


def run(args: argparse.Namespace, console: Console) -> int:
    """Read a line, stream the answer, until there are no more lines."""
    sampler, talk = Sampler(temperature=args.temperature), Conversation()
    turns: list[dict[str, str]] = []
    with connect(args, console) as client:
        if client.config.engine == "clear":
            console.warn("this server only simulates: nothing is encrypted")
        client.keygen(console.reporter)
        client.upload_keys(console.reporter)
        config = client.config
        console.print(f"{config.model}, {config.context} tokens of context, {config.params.security_claim}")
        console.print("The server learns how long lines and answers are, and when they come; not the words.")
        for line in _lines():
            try:
                talk, text = _answer(client, talk, line, args.tokens, sampler, console)
            except ConfigError as err:  # this line cannot be asked; the next one may
                console.warn(str(err))
                continue
            turns.append({"line": line, "answer": text})
        if talk.session:
            with suppress(WireError):  # it expires by itself
                client.delete_session(talk.session)
    console.json({"turns": turns})
    return 0


def _lines() -> Iterator[str]:
    """Lines of a person, with a prompt, or of a file."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401 - input() edits lines with it
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if line.strip():
            yield line


def _answer(
    client: Client, talk: Conversation, line: str, tokens: int, sampler: Sampler, console: Console
) -> tuple[Conversation, str]:
    """Ask for what comes after a line; in a new session if the old one has no room for it."""
    ids = client.bundle.encode(line)
    if talk.session and talk.position + talk.pending + len(ids) + tokens - 1 > client.config.context:
        with suppress(HeatError):
            client.delete_session(talk.session)
        room = client.config.context - tokens + 1
        ids, talk = [*talk.tokens, *ids][-max(1, room) :], Conversation()
        console.print(f"(the context is full: going on with the last {len(ids)} tokens)")
    reporter = console.reporter

    def facts(event: dict[str, Any]) -> None:
        reporter.advance("answer", **{k: event[k] for k in ("unit", "units", "eta_s", "ahead") if k in event})

    reporter.start("answer")
    stream = client.stream(ids, tokens, sampler=sampler, conversation=talk, keep=True, facts=facts)
    made = list(shown(client, stream, console))
    reporter.done("answer")
    return talk, client.bundle.decode(made)
