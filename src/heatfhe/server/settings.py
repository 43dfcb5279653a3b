# SPDX-License-Identifier: Apache-2.0
"""What an operator decides: where things live, what is served, and every limit."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.planning import SNAPSHOT_SECONDS
from heatfhe.wire import is_name

DAY = 86_400
_MAY_BE_ZERO = ("worker_bytes", "reserve_bytes", "fronts", "key_cache_bytes", "snapshot_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """One model to serve: a plan and the circuit it belongs to, with options for its engine.

    ``max_temperature`` lowers what clients may sample at; None is what the circuit's argmax was calibrated for.
    """

    name: str
    plan: Path
    circuit: Path
    options: tuple[tuple[str, Any], ...] = ()
    max_temperature: float | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name) or "/" in self.name:
            raise ConfigError(f"model name {self.name!r} must be plain letters, digits and ._:+=-")
        if self.max_temperature is not None and not 0 <= self.max_temperature <= 100:
            raise ConfigError(f"{self.name}: max_temperature must lie in 0 to 100, got {self.max_temperature}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a server is told. Sizes are bytes, times seconds.

    ``insecure`` allows parameter sets named insecure-...; ``simulate`` runs every plan on the clear engine, which
    encrypts nothing. A session that holds nothing (no job came, or none got anywhere) is kept for
    ``empty_session_seconds``. After ``turn_seconds`` a running job gives way at its next unit, if another client waits.
    ``joined`` lets client code live in the same process: tests of simulated models only.

    With ``ray``, the address of a Ray cluster, jobs run on ``seats`` there, from the first number to the second. One is
    added when a job has waited for ``grow_seconds`` and goes after ``idle_seconds`` with nothing to do. A seat on a CPU
    takes ``seat_cpus`` cores, one on a GPU takes the GPU. With ``fronts`` so many processes answer HTTP, and the desk
    is an actor of its own; with 0 both are this one process.

    With ``store``, the URL of an object store, keys, requests, outputs and what sessions hold are there; records and
    uploads on their way stay in the folder. A machine with seats keeps up to ``key_cache_bytes`` of keys from it.
    Between two snapshots of a session a job computes for at least ``snapshot_seconds``.
    """

    folder: Path
    models: tuple[ModelSource, ...]
    store: str = ""
    key_cache_bytes: int = 64 << 30
    snapshot_seconds: float = SNAPSHOT_SECONDS
    insecure: bool = False
    simulate: bool = False
    joined: bool = False
    devices: tuple[str, ...] = ("cpu",)
    resident_workers: int = 2
    worker_bytes: int | None = None
    queue_jobs: int = 64
    queue_jobs_per_client: int = 8
    ended_jobs_per_client: int = 256
    turn_seconds: float = 1.0
    ray: str = ""
    seats: tuple[int, int] = (1, 1)
    seat_cpus: int = 1
    fronts: int = 0
    grow_seconds: float = 10.0
    idle_seconds: float = 300.0
    sessions_per_client: int = 32
    key_sets_per_client: int = 4
    client_bytes: int = 1 << 36
    reserve_bytes: int = 1 << 28
    chunk_bytes: int = 8 << 20
    request_bytes: int = 4 << 30
    max_steps: int = 1024
    key_seconds: int = 30 * DAY
    session_seconds: int = 7 * DAY
    empty_session_seconds: int = 7200
    job_seconds: int = DAY
    requests_per_second: float = 50.0
    request_burst: int = 200
    body_seconds: float = 120.0
    open_metrics: bool = True
    worker_environment: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("a server needs at least one model; give --plan and --circuit")
        if len({m.name for m in self.models}) != len(self.models):
            raise ConfigError("two models share a name; give each its own")
        if self.joined and not self.simulate:
            raise ConfigError("client code may share the server's process only with simulate, which encrypts nothing")
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise ConfigError("devices must be at least one, each named once")
        if not 1 <= self.seats[0] <= self.seats[1]:
            raise ConfigError(f"seats must be at least 1 and grow from the first to the second, got {self.seats}")
        if self.seats != (1, 1) and not self.ray:
            raise ConfigError(
                "--seats counts seats on a Ray cluster; give --ray, or --device once per seat of this machine"
            )
        if self.fronts < 0 or (self.fronts and not self.ray):
            raise ConfigError(
                f"--fronts {self.fronts}: HTTP processes share a desk on a Ray cluster; give --ray ADDRESS with them"
            )
        if self.ray and len(self.devices) != 1:
            raise ConfigError(f"every seat on Ray has the same device; name one, not {', '.join(self.devices)}")
        if self.ray.startswith("ray://"):
            raise ConfigError(
                f"{self.ray} is Ray's client protocol; run this server on a machine of the cluster and give the "
                "address of its head, HOST:6379, or auto"
            )
        for name in (f.name for f in fields(self) if f.name not in _MAY_BE_ZERO):
            value = getattr(self, name)
            if type(value) in (int, float) and not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")
