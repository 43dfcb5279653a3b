# SPDX-License-Identifier: Apache-2.0
"""Jobs on their way, kept as the encrypted bytes that were sent: what a killed client resumes from."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatfhe.client.leftovers import sweep
from heatfhe.errors import FileFormatError
from heatfhe.files import atomic_write, plain, read_json, write_json
from heatfhe.planning import ProgramName
from heatfhe.wire import MODES

KIND, VERSIONS = "heatfhe-pending-job", (1, 2)
_ALONE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """One job that was sent, or about to be, in the wire's ``mode``. ``keep`` says that its session is wanted later."""

    key: str
    session: str
    config_id: str
    steps: int
    mode: str
    keep: bool
    job: str
    data: bytes

    @property
    def interactive(self) -> bool:
        """Whether the client chooses each token from logits."""
        return self.mode == MODES[ProgramName.LOGITS]


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

    def add(self, job: PendingJob) -> None:
        """Store a job before it is sent; storing it again changes nothing."""
        if (self._folder / f"{job.key}.json").exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._folder / f"{job.key}.bin") as f:
            f.write(job.data)
        self._write(job.key, plain(job, ("session", "steps", "config_id", "mode", "keep", "job")))

    def note(self, key: str, job: str) -> None:
        """The server has it under this id."""
        self._write(key, {**self._read(self._folder / f"{key}.json"), "job": job})

    def latest(self, config_id: str) -> PendingJob | None:
        """The newest job of a configuration."""
        rows = [
            (os.stat(path).st_mtime_ns, path.stem, body)
            for path, body in self._rows()
            if body["config_id"] == config_id and path.with_suffix(".bin").exists()
        ]
        if not rows:
            return None
        _, key, body = max(rows, key=lambda r: r[0])
        return PendingJob(key=key, data=(self._folder / f"{key}.bin").read_bytes(), **body)

    def waits(self, session: str) -> bool:
        """Whether a job of a session has not ended, as far as this client knows."""
        return any(body["session"] == session for _, body in self._rows())

    def remove(self, key: str) -> None:
        """Forget a job."""
        (self._folder / f"{key}.json").unlink(missing_ok=True)
        (self._folder / f"{key}.bin").unlink(missing_ok=True)

    def _rows(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for path in self._folder.glob("*.json"):
            with suppress(FileFormatError):  # altered, or removed by another process of this client
                yield path, self._read(path)

    def _write(self, key: str, body: dict[str, Any]) -> None:
        write_json(self._folder / f"{key}.json", KIND, VERSIONS[-1], body)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        """Version 1 said neither mode nor keep: free running, and a session that nobody deletes."""
        return {"mode": MODES[ProgramName.GENERATE], "keep": True, **read_json(path, KIND, VERSIONS)}
