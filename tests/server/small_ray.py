# SPDX-License-Identifier: Apache-2.0
"""One small Ray on this machine; servers find it running."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_ray() -> Iterator[None]:
    """Ray with four places for the block. Its processes take over the environment as it is when the block begins."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options = {"include_dashboard": False, "object_store_memory": 80 << 20, "log_to_driver": False}
    ray.init(address="local", num_cpus=4, logging_level="ERROR", namespace="heatfhe", **options)
    try:
        yield
    finally:
        ray.shutdown()
