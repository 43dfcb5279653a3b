# SPDX-License-Identifier: Apache-2.0
"""A front: what the routes work with. Nothing in it is missed when its process ends."""

from __future__ import annotations

from dataclasses import dataclass

from heatfhe.server.catalogue import Catalogue
from heatfhe.server.desk import Desk
from heatfhe.server.metrics import Metrics
from heatfhe.server.settings import Settings
from heatfhe.server.store.auth import ClientBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Settings, what is served, who may ask, the desk, and the counters of what this process has answered."""

    settings: Settings
    catalogue: Catalogue
    book: ClientBook
    desk: Desk
    metrics: Metrics
