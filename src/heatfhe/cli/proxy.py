# SPDX-License-Identifier: Apache-2.0
"""heat proxy: an OpenAI-compatible endpoint on this machine that encrypts what programs ask and decrypts the answer."""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from typing import Any

from heatfhe.cli.connect import add_connection, connect
from heatfhe.cli.console import Console
from heatfhe.client import Client
from heatfhe.errors import ConfigError

HELP = """OpenAI-compatible /v1/models, /v1/completions and /v1/chat/completions on this machine, for any program, and
/health and /metrics for whoever watches it.

Without a temperature the choice is greedy; top_p and repetition_penalty make every step a request of its own. Stop
strings cut the text here: the server always runs max_tokens steps, also for a program that hangs up; requests that
come meanwhile wait, and a stream says how long. With --cancel-on-disconnect the job of a program that hangs up is
cancelled: the server then sees when it did, which may depend on the words it had read."""
EXAMPLES = """  heat proxy --local
  heat proxy --server https://fhe.example --token-file token.txt --port 8080
  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\
       -d '{"model": "default-heat", "prompt": "Once upon a time", "max_tokens": 8}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add_connection(parser, local=True)
    parser.add_argument(
        "--cancel-on-disconnect",
        action="store_true",
        help="end the job of a program that hangs up; tells the server when it did, which may depend on the answer",
    )
    parser.add_argument("--port", type=int, default=8080, help="on 127.0.0.1; 0 picks a free one")


def run(args: argparse.Namespace, console: Console) -> int:
    """Listen on loopback until interrupted."""
    import uvicorn

    from heatfhe.client import create_proxy

    if args.cancel_on_disconnect:
        console.warn("--cancel-on-disconnect tells the server when a program hangs up, which may depend on the answer")
    with connect(args, console) as client:
        _prepare(client, console)
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", args.port))
        except OSError as err:
            raise ConfigError(f"port {args.port} cannot be used ({err.strerror}); choose another --port") from err
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        app = create_proxy(client, cancel_on_disconnect=args.cancel_on_disconnect)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        threading.Thread(target=_announce, args=(server, url, client, console), daemon=True).start()
        server.run(sockets=[listener])
    return 0


def _prepare(client: Client, console: Console) -> None:
    if client.config.engine == "clear":
        console.warn("this server only simulates: nothing is encrypted")
    client.keygen(console.reporter)
    client.upload_keys(console.reporter)


def _announce(server: Any, url: str, client: Client, console: Console) -> None:
    while not server.started and not server.should_exit:
        time.sleep(0.02)
    if server.started:
        console.print(f"OpenAI-compatible endpoint for {client.config.model} at {url}  (stop with Ctrl-C)")
        if console.as_json:
            print(json.dumps({"url": url, "model": client.config.model}), flush=True)
