# SPDX-License-Identifier: Apache-2.0
"""Jobs on their way, kept as the encrypted bytes that were sent: what a killed client resumes from."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from heatfhe.client.leftovers import sweep
from heatfhe.files import atomic_write, read_json, write_json

KIND, VERSION = "heatfhe-pending-job", 1
_ALONE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """One job that was sent, or about to be."""

    key: str
    session: str
    config_id: str
    steps: int
    job: str
    data: bytes


class PendingJobs:
    """A folder of jobs: <key>.json says what, <key>.bin are the bytes. Prompts are in it encrypted only."""

    def __init__(self, folder: Path) -> None:
        """Opens a folder; what killed clients left half written in it goes."""
        self._folder = folder
        sweep(folder)
        for path in folder.glob("*.bin"):
            # The bytes are written first: of a client that was killed before it wrote what they are, they stay alone.
            if not path.with_suffix(".json").exists() and time.time() - path.stat().st_mtime > _ALONE_SECONDS:
                path.unlink(missing_ok=True)

    def add(self, key: str, *, session: str, steps: int, config_id: str, data: bytes) -> None:
        """Store a job before it is sent; storing it again changes nothing."""
        if (self._folder / f"{key}.json").exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._folder / f"{key}.bin") as f:
            f.write(data)
        body = {"session": session, "steps": steps, "config_id": config_id, "job": ""}
        write_json(self._folder / f"{key}.json", KIND, VERSION, body)

    def note(self, key: str, job: str) -> None:
        """The server has it under this id."""
        path = self._folder / f"{key}.json"
        write_json(path, KIND, VERSION, {**read_json(path, KIND, (VERSION,)), "job": job})

    def latest(self, config_id: str) -> PendingJob | None:
        """The newest job of a configuration."""
        rows = []
        for path in self._folder.glob("*.json"):
            body = read_json(path, KIND, (VERSION,))
            if body["config_id"] == config_id and path.with_suffix(".bin").exists():
                rows.append((os.stat(path).st_mtime_ns, path.stem, body))
        if not rows:
            return None
        _, key, body = max(rows, key=lambda r: r[0])
        return PendingJob(key=key, data=(self._folder / f"{key}.bin").read_bytes(), **body)

    def remove_job(self, job: str) -> None:
        """A job has ended and its answers are read."""
        for path in self._folder.glob("*.json"):
            if read_json(path, KIND, (VERSION,))["job"] == job:
                self.remove(path.stem)

    def remove(self, key: str) -> None:
        """Forget a job."""
        (self._folder / f"{key}.json").unlink(missing_ok=True)
        (self._folder / f"{key}.bin").unlink(missing_ok=True)
