# SPDX-License-Identifier: Apache-2.0
"""Counters and gauges as Prometheus text: sizes, counts and timings only."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

Grown = tuple[str, tuple[tuple[str, str], ...], float]  # a counter's name, its labels, by how much
BUCKETS = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0)


METRICS = {  # kind and help
    "heatfhe_requests_total": ("counter", "Requests answered, by status."),
    "heatfhe_received_bytes_total": ("counter", "Bytes of request bodies accepted."),
    "heatfhe_jobs_total": ("counter", "Jobs ended, by outcome."),
    "heatfhe_steps_total": ("counter", "Plan runs finished: prompt and generate steps."),
    "heatfhe_openings_total": ("counter", "Key sets opened: worker processes that loaded a model and a client's keys."),
    "heatfhe_queue_jobs": ("gauge", "Jobs waiting."),
    "heatfhe_running_jobs": ("gauge", "Jobs running."),
    "heatfhe_seats": ("gauge", "Places where a job can run."),
    "heatfhe_workers": ("gauge", "Worker processes alive."),
    "heatfhe_queue_seconds": ("histogram", "Time a job waited before its first turn."),
    "heatfhe_job_seconds": ("histogram", "Time from a job's first turn to its end."),
}


class Metrics:
    """A few numbers under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._histograms: dict[str, list[float]] = {}

    def count(self, name: str, by: float = 1.0, **labels: str) -> None:
        """Raise a counter."""
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + by

    def take(self) -> list[Grown]:
        """How much every counter has grown since this was last called; it begins again at nothing."""
        with self._lock:
            grown = [(name, labels, value) for (name, labels), value in self._values.items()]
            self._values.clear()
        return grown

    def add(self, grown: Iterable[Grown]) -> None:
        """Raise counters by what another process has taken from its own."""
        for name, labels, by in grown:
            self.count(name, by, **dict(labels))

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._values[(name, ())] = value

    def observe(self, name: str, value: float) -> None:
        """Add to a histogram: a count per bucket, then the number of values and their sum."""
        with self._lock:
            row = self._histograms.setdefault(name, [0.0] * (len(BUCKETS) + 2))
            for i, bound in enumerate(BUCKETS):
                row[i] += value <= bound
            row[-2] += 1
            row[-1] += value

    def text(self, gauges: Mapping[str, float]) -> str:
        """The whole as Prometheus text, format 0.0.4."""
        for name, value in gauges.items():
            self.gauge(name, value)
        with self._lock:
            values, histograms = dict(self._values), {k: list(v) for k, v in self._histograms.items()}
        lines: list[str] = []
        for name, (kind, text) in METRICS.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for (owner, labels), value in sorted(values.items()):
                if owner == name:
                    inside = ",".join(f'{k}="{v}"' for k, v in labels)
                    lines.append(f"{name}{{{inside}}} {value:g}" if inside else f"{name} {value:g}")
            if row := histograms.get(name):
                for bound, count in zip(BUCKETS, row):
                    lines.append(f'{name}_bucket{{le="{bound:g}"}} {count:g}')
                lines += [
                    f'{name}_bucket{{le="+Inf"}} {row[-2]:g}',
                    f"{name}_count {row[-2]:g}",
                    f"{name}_sum {row[-1]:g}",
                ]
        return "\n".join(lines) + "\n"
