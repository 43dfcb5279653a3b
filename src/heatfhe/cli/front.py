# SPDX-License-Identifier: Apache-2.0
"""One HTTP process of heat serve --fronts: told on its input what to serve, and ended by the end of that input."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from typing import Any

from heatfhe.cli.listen import Surface, make_server
from heatfhe.errors import HeatError
from heatfhe.files import remade
from heatfhe.server import Settings, create_front, log_to_stderr


def main() -> int:
    """Serve until the input ends, which it does with the process that started this one."""
    told = json.loads(sys.stdin.readline())
    log_to_stderr()
    try:
        app = create_front(remade(Settings, told["settings"]), address=told["address"])
    except HeatError as err:
        print(f"heat serve: a front did not start: {err}", file=sys.stderr)
        return 1
    server = make_server(app, remade(Surface, told["surface"]))
    threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
    threading.Thread(target=_say_ready, args=(server,), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=told["listener"])])
    return 0 if server.started else 1


def _end_with_input(server: Any) -> None:
    sys.stdin.read()
    server.should_exit = True


def _say_ready(server: Any) -> None:
    while not (server.started or server.should_exit):
        time.sleep(0.02)
    if server.started:
        print("ready", flush=True)


if __name__ == "__main__":
    sys.exit(main())
