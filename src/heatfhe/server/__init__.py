# SPDX-License-Identifier: Apache-2.0
"""The server: stores, queue, workers and an ASGI app. Nothing here can hold a secret key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatfhe.server.certificate import self_signed
from heatfhe.server.logs import log_to_stderr
from heatfhe.server.settings import ModelSource, Settings
from heatfhe.server.store.auth import ClientBook
from heatfhe.server.store.hold import FolderLock
from heatfhe.server.store.locks import await_folder
from heatfhe.server.wall import close_wall

if TYPE_CHECKING:
    from heatfhe.server.http.app import create_app, create_front
    from heatfhe.server.http.protocol import PER_ADDRESS, bounded_protocol
    from heatfhe.server.work.crew import start_desk
else:
    from heatfhe.doors import lazy_names

    # FastAPI and uvicorn are optional: only the app needs them, not a worker and not the book of clients.
    __getattr__ = lazy_names(
        __name__,
        {
            "PER_ADDRESS": "http.protocol.PER_ADDRESS",
            "bounded_protocol": "http.protocol.bounded_protocol",
            "create_app": "http.app.create_app",
            "create_front": "http.app.create_front",
            "start_desk": "work.crew.start_desk",
        },
    )

__all__ = [
    "PER_ADDRESS",
    "ClientBook",
    "FolderLock",
    "ModelSource",
    "Settings",
    "await_folder",
    "bounded_protocol",
    "close_wall",
    "create_app",
    "create_front",
    "log_to_stderr",
    "self_signed",
    "start_desk",
]
