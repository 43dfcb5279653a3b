# SPDX-License-Identifier: Apache-2.0
"""Tasks on a Ray cluster: each number once, again if its process is lost, with progress as they end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from heatfhe.errors import ConfigError, HeatError
from heatfhe.progress import Reporter

_TRIES_AGAIN = 3
_OBJECTS = 80 << 20  # bytes of shared memory for a Ray of our own: results are files, only small numbers pass


def run_all(
    task: Callable[[int], int],
    numbers: Sequence[int],
    *,
    address: str,
    cpus: int,
    gpus: int,
    name: str,
    after: Mapping[int, Sequence[int]],
    reporter: Reporter,
) -> list[int]:
    """Results in the order of the numbers; one that waits for others begins when they have ended."""
    blocked = {number: set(after.get(number, ())) for number in numbers}
    if unknown := {need for needs in blocked.values() for need in needs} - set(blocked):
        raise ConfigError(f"tasks wait for numbers that are not among them: {sorted(unknown)}")
    ours = not ray.is_initialized()
    if ours:
        _connect(address, cpus)
    found: dict[int, int] = {}
    try:
        remote = ray.remote(_call).options(num_cpus=cpus, num_gpus=gpus, max_retries=_TRIES_AGAIN)
        waiting: dict[Any, int] = {}
        reporter.start(name, len(numbers))
        while waiting or blocked:
            for number in [number for number, needs in blocked.items() if needs <= found.keys()]:
                del blocked[number]
                waiting[remote.remote(task, number)] = number
            if not waiting:
                raise ConfigError(f"tasks wait for each other: {sorted(blocked)}")
            (ended, *_), _ = ray.wait(list(waiting), num_returns=1)
            number = waiting.pop(ended)
            found[number] = _result(ended, number)
            reporter.advance(name)
        reporter.done(name)
    finally:
        if ours:
            ray.shutdown()
    return [found[number] for number in numbers]


def _call(task: Callable[[int], int], number: int) -> int:
    return task(number)


def _result(reference: Any, number: int) -> int:
    try:
        return int(ray.get(reference))
    except RayTaskError as err:
        if isinstance(err.cause, HeatError):
            raise err.cause from err
        raise
    except RayError as err:
        raise ConfigError(
            f"task {number} was lost with its process {1 + _TRIES_AGAIN} times ({type(err).__name__}); it may need "
            "more memory than a machine of the cluster has. What is finished is kept: run it again to go on"
        ) from err


def _connect(address: str, cpus: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = {}
    if address == "local":
        own = {"include_dashboard": False, "object_store_memory": _OBJECTS, "num_cpus": max(cpus, os.cpu_count() or 1)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="heatfhe", **own)
    except (ConnectionError, RuntimeError, ValueError) as err:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({type(err).__name__}); start one with: ray start --head, or give "
            "--ray local"
        ) from err
