# SPDX-License-Identifier: Apache-2.0
"""Options every client command shares, and the Client they make."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from heatfhe.cli.console import Console
from heatfhe.client import Client, client_folder, local_server
from heatfhe.errors import ConfigError

TOKEN_VARIABLE = "HEATFHE_TOKEN"


def add_connection(parser: argparse.ArgumentParser, *, local: bool = False) -> None:
    """--server, --token-file, --model, --keys and what may be allowed; with ``local`` also --local and its model."""
    parser.add_argument("--server", metavar="URL", help="the server's address, https:// unless it is on this machine")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"file with the token (default: ${TOKEN_VARIABLE})"
    )
    parser.add_argument("--ca", metavar="FILE", help="certificate authority to trust for the server, in PEM")
    parser.add_argument("--model", help="which of the server's models (default: its only one)")
    parser.add_argument("--keys", type=Path, metavar="DIR", help="where keys are kept (default: ~/.heatfhe)")
    parser.add_argument("--insecure", action="store_true", help="allow toy parameters, which protect nothing")
    parser.add_argument(
        "--simulate", action="store_true", help="allow a server that only simulates: nothing is encrypted"
    )
    parser.add_argument("--patience", type=float, default=120.0, metavar="S", help="seconds to retry a lost server")
    if local:
        parser.add_argument("--local", action="store_true", help="start a server on this machine for this command")
        parser.add_argument("--circuit", default="default", help="with --local: a Circuit directory, or default")
        parser.add_argument("--params", default="insecure-native-12-r40", help="with --local: the parameter set")
        parser.add_argument("--context", type=int, metavar="T", help="with --local: positions of the cache")
        parser.add_argument("--prefill", type=int, metavar="TOKENS", help="with --local: prompt tokens taken at once")
        parser.add_argument("--device", default="cpu", help="with --local: cpu (default) or cuda")


@contextmanager
def connect(args: argparse.Namespace, console: Console) -> Iterator[Client]:
    """A Client for these options; with --local the server lives as long as it does, in a process of its own."""
    folder = client_folder(args.keys)
    with ExitStack() as stack:
        if getattr(args, "local", False):
            if args.server:
                raise ConfigError("--local starts its own server; leave out --server")
            insecure = args.insecure or args.params.startswith("insecure-")
            if insecure and not args.simulate:
                console.warn(f"{args.params} is a toy parameter set: this run demonstrates, it does not protect")
            console.print("starting a server process on this machine ...")
            command = [args.circuit, "--params", args.params, "--folder", str(folder / "local-server")]
            command += ["--device", args.device]
            command += ["--insecure"] * insecure + ["--simulate"] * args.simulate
            for name, value in (("--context", args.context), ("--prefill", args.prefill)):
                command += [name, str(value)] if value else []
            server = stack.enter_context(local_server(command))
            url, token = server.url, server.token
        else:
            if not args.server:
                also = ", or --local to run one on this machine" if hasattr(args, "local") else ""
                raise ConfigError(f"which server? give --server URL{also}")
            url, token, insecure = args.server, read_bearer(args), args.insecure
        yield stack.enter_context(
            Client(
                url,
                token=token,
                model=args.model,
                folder=folder,
                insecure=insecure,
                simulate=args.simulate,
                patience=args.patience,
                verify=args.ca or True,
                notice=None if console.quiet else console.warn,
            )
        )


def read_bearer(args: argparse.Namespace) -> str:
    """The bearer from its file, or from the environment; never from the command line, which others can read."""
    if args.token_file is not None:
        try:
            return str(args.token_file.read_text()).strip()
        except OSError as err:
            raise ConfigError(
                f"{args.token_file}: cannot be read ({err.strerror}); give a file with the token"
            ) from err
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise ConfigError(
            f"no token: set {TOKEN_VARIABLE} or give --token-file; the server's operator hands tokens out"
        )
    return token
