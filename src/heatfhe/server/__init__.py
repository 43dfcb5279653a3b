# SPDX-License-Identifier: Apache-2.0
"""The server: stores, queue, workers and an ASGI app. Nothing here can hold a secret key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heatfhe.server.auth import ClientBook
from heatfhe.server.hold import FolderLock
from heatfhe.server.settings import ModelSource, Settings

if TYPE_CHECKING:
    from heatfhe.server.app import create_app

__all__ = ["ClientBook", "FolderLock", "ModelSource", "Settings", "create_app"]


def __getattr__(name: str) -> Any:
    # FastAPI is an optional package: only the app needs it, not a worker and not the book of clients.
    if name == "create_app":
        from heatfhe.server.app import create_app

        return create_app
    raise AttributeError(f"module 'heatfhe.server' has no attribute {name!r}")
