# SPDX-License-Identifier: Apache-2.0
"""What every HTTP process of heat serve has: a listening socket, and uvicorn with our limits."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass
from typing import Any

from heatfhe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """TLS, if any, and whether connections are counted by address: behind a proxy every caller has the proxy's."""

    certificate: str | None = None
    key: str | None = None
    count_addresses: bool = True

    @property
    def scheme(self) -> str:
        """Of the server's address."""
        return "https" if self.certificate and self.key else "http"


def make_listener(host: str, port: int, *, patience: float = 0.0) -> socket.socket:
    """A socket bound to an address, or a reason why not. One in use is tried again for ``patience`` seconds."""
    ends = time.monotonic() + patience
    while True:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            return listener
        except OSError as err:
            listener.close()
            if err.errno != errno.EADDRINUSE or time.monotonic() > ends:
                why = f"{host}:{port} cannot be used ({err.strerror}); choose another --port"
                raise ConfigError(why) from err
        time.sleep(0.1)


def make_server(app: Any, surface: Surface) -> Any:
    """A uvicorn server for an app, with bounded heads, answers and connections."""
    import uvicorn

    from heatfhe.server import PER_ADDRESS, bounded_protocol

    tls = surface.scheme == "https"
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        http=bounded_protocol(head_seconds=20.0, per_address=PER_ADDRESS if surface.count_addresses else None),
        limit_concurrency=2048,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        ssl_certfile=surface.certificate if tls else None,
        ssl_keyfile=surface.key if tls else None,
    )
    return uvicorn.Server(config)
