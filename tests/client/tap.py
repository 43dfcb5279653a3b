# SPDX-License-Identifier: Apache-2.0
"""A server made of answers, which writes down everything it is asked; and a keyring that fails where it is told."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from heatfhe.client import Client
from heatfhe.client.keyring_clear import ClearKeyring
from heatfhe.client.layout import Layout
from heatfhe.engine import KeyRequest
from heatfhe.errors import DecryptError
from heatfhe.server import ModelSource, Settings
from heatfhe.server.work.program import describe_model
from heatfhe.wire import JobOutput, KeyManifest, job_limits, parse

OUTCOMES = ("fine", "zeros", "nan", "huge", "implausible", "raw")


class Flaky(ClearKeyring):
    """Decrypts as the pattern says, one entry per output: fine, a row that means nothing, or an error."""

    def __init__(self, pattern: Sequence[str], request: KeyRequest, folder: Path | None = None) -> None:
        super().__init__(request, folder)
        self._left = list(pattern)

    def decrypt(self, blob: bytes) -> NDArray[np.complex128]:
        what, slots = (self._left.pop(0) if self._left else "fine"), super().decrypt(blob)
        if what == "implausible":
            raise DecryptError("implausible")
        if what == "raw":
            raise ValueError("a raw error")
        return slots * {"fine": 1.0, "zeros": 0.0, "nan": np.nan, "huge": 1e9}[what]


class Tap(httpx.BaseTransport):
    """Answers like a server whose jobs end at once; ``fails_after`` lets every job fail after so many outputs.

    ``log`` holds of every request its method, path, size and header names: what a server sees, apart from ciphertexts.
    """

    def __init__(self, source: ModelSource, folder: Path) -> None:
        self._model = describe_model(source, Settings(folder=folder / "tap", models=(source,), simulate=True))
        self.config, self._layout = self._model.config, Layout.of(self._model.config)
        self._clear = ClearKeyring(KeyRequest(params=self.config.params, rotations=()))
        self.folder = folder / "tap-client"
        self.refusals: dict[str, int] = {}
        self.gate = threading.Event()  # before the third output; open unless a test closes it
        self.gate.set()
        self.reset()

    def reset(self, fails_after: int | None = None) -> None:
        self.log: list[tuple[str, str, int, tuple[str, ...]]] = []
        self.sessions: set[str] = set()
        self._jobs: dict[str, tuple[str, int]] = {}
        self._position: dict[str, int] = {}
        self._fails_after, self._count = fails_after, 0

    def client(self, pattern: Sequence[str] = (), **options: Any) -> Client:
        """A client of this server whose decryptions follow a pattern."""

        def ring(request: KeyRequest, folder: Path | None = None) -> Flaky:
            return Flaky(pattern, request, folder)

        options = {"keyring": ring, "folder": self.folder, "simulate": True, "patience": 0.0, **options}
        return Client("http://tap", token="heat_x", transport=self, **options)

    def _name(self) -> str:
        self._count += 1
        return f"{self._count:032x}"

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body, path = request.read(), request.url.path
        if path.endswith("/outputs/2"):
            self.gate.wait()
        self.log.append((request.method, path, len(body), tuple(sorted(request.headers))))
        for pattern, status in self.refusals.items():
            if re.fullmatch(pattern, f"{request.method} {path}"):
                return httpx.Response(status, json={"error": {"code": "internal", "message": "no", "remedy": "no"}})
        answers: list[tuple[str, Callable[..., httpx.Response]]] = [
            (r"GET /v1/models", lambda: httpx.Response(200, json={"models": [{"model": self.config.model}]})),
            (r"GET /v1/models/tiny", lambda: httpx.Response(200, json=self.config.as_json())),
            (r"GET /v1/models/tiny/bundle", lambda: httpx.Response(200, content=self._model.bundle)),
            (r"GET /v1/sessions", lambda: httpx.Response(200, json={"sessions": sorted(self.sessions)})),
            (r"POST /v1/keysets", lambda: self._keys(body)),
            (r"POST /v1/sessions", self._open),
            (r"GET /v1/sessions/(\w+)", self._session),
            (r"DELETE /v1/sessions/(\w+)", self._delete),
            (r"POST /v1/sessions/(\w+)/jobs", lambda session: self._job(session, body)),
            (r"GET /v1/jobs/(\w+)", lambda job: httpx.Response(200, json=self._record(job))),
            (r"POST /v1/jobs/(\w+)/cancel", lambda job: httpx.Response(200, json=self._record(job))),
            (r"GET /v1/jobs/(\w+)/events", self._events),
            (r"GET /v1/jobs/(\w+)/outputs/(\d+)", self._output),
        ]
        for pattern, answer in answers:
            if found := re.fullmatch(pattern, f"{request.method} {path}"):
                return answer(*found.groups())
        raise AssertionError(f"the client asked for {request.method} {path}")

    def _keys(self, body: bytes) -> httpx.Response:
        manifest = KeyManifest.from_json(json.loads(body))
        return httpx.Response(200, json={"key_set": manifest.key_set, "missing": []})

    def _open(self) -> httpx.Response:
        session = self._name()
        self.sessions.add(session)
        self._position[session] = 0
        return httpx.Response(201, json={"session": session})

    def _session(self, session: str) -> httpx.Response:
        return httpx.Response(200, json={"position": self._position[session], "pending": False})

    def _delete(self, session: str) -> httpx.Response:
        self.sessions.discard(session)
        return httpx.Response(204)

    def _job(self, session: str, body: bytes) -> httpx.Response:
        message = parse(body, job_limits(self.config.params, context=64), kinds=("job",))
        steps, inputs = message.body["steps"], sum(name.startswith("input/") for name in message.blocks)
        job = self._name()
        self._jobs[job] = (session, steps)
        self._position[session] += inputs + steps - 1
        return httpx.Response(202, json={"job": job})

    def _record(self, job: str) -> dict[str, Any]:
        steps = self._jobs[job][1]
        if self._fails_after is None or self._fails_after >= steps:
            return {"state": "done", "outputs": steps, "error": "", "message": ""}
        return {"state": "failed", "outputs": self._fails_after, "error": "engine_failed", "message": "a test"}

    def _events(self, job: str) -> httpx.Response:
        record = self._record(job)
        rows = [{"outputs": k + 1} for k in range(record["outputs"])] + [{"state": record["state"]}]
        return httpx.Response(200, content=b"".join(b"data: %s\n\n" % json.dumps(row).encode() for row in rows))

    def _output(self, job: str, step: str) -> httpx.Response:
        row = np.zeros(self.config.vocabulary)
        row[5 + int(step)] = 1.0
        parts = tuple(self._clear.encrypt(p, level=0) for p in self._layout.place_words(row))
        output = JobOutput(plan=self.config.plan, job=job, step=int(step), outputs=parts)
        return httpx.Response(200, content=output.pack())
