# SPDX-License-Identifier: Apache-2.0
"""Sends jobs and fetches every output of them. Nothing here decrypts: what an output says has no way into a request."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from heatfhe.client.layout import Layout
from heatfhe.client.link import AGAIN, Link, LostServerError
from heatfhe.client.pending import PendingJob, PendingJobs
from heatfhe.errors import WireError
from heatfhe.wire import (
    MEDIA_TYPE,
    Fields,
    JobHead,
    JobOutput,
    JobRequest,
    Limits,
    ModelConfig,
    Refusal,
    ciphertext_limit,
    parse,
)

Take = Callable[[tuple[bytes, ...]], bool]
Note = Callable[[dict[str, Any]], None]
_ENDED = ("done", "failed", "cancelled")
_MOST = 1 << 22


@dataclass(frozen=True, slots=True)
class Sent:
    """A job that the server has: our key for it, its id there, and its steps."""

    key: str
    job: str
    steps: int


class Jobs:
    """Jobs of one model, kept on disk until they end, so that a client that dies goes on with the same bytes."""

    def __init__(self, link: Link, config: ModelConfig, layout: Layout, pending: PendingJobs) -> None:
        self._link, self._config, self._pending = link, config, pending
        parts, size = layout.parts, ciphertext_limit(config.params)
        self._limits = Limits(blocks=parts, block_bytes=size, total_bytes=parts * (size + 512) + 65_536)

    def send(self, session: str, head: JobHead, inputs: Sequence[bytes], noise: Sequence[bytes], *, keep: bool) -> Sent:
        """Send a job. ``keep`` says what ``again`` does with its session if this client dies."""
        data = JobRequest(head=head, inputs=tuple(inputs), noise=tuple(noise)).pack()
        job = PendingJob(
            key=secrets.token_hex(16), session=session, config_id=head.config_id, steps=head.steps, mode=head.mode,
            keep=keep, job="", data=data,
        )  # fmt: skip
        self._pending.add(job)
        try:
            return self._post(job)
        except Refusal:
            self._pending.remove(job.key)  # it was never accepted
            raise

    def again(self, job: PendingJob) -> Sent:
        """Send a job that may have arrived already. One that the server has lost is forgotten."""
        try:
            return self._post(job)
        except Refusal as refusal:
            if not _passing(refusal):
                self._pending.remove(job.key)
            raise

    def _post(self, job: PendingJob) -> Sent:
        headers = {"content-type": MEDIA_TYPE, "idempotency-key": job.key}
        answer = self._link.ask("POST", f"/v1/sessions/{job.session}/jobs", content=job.data, headers=headers)
        name = Fields(answer.json(), of="job").identifier("job")
        self._pending.note(job.key, name)
        return Sent(job.key, name, job.steps)

    def fetch(self, sent: Sent, take: Take, note: Note, stop: Callable[[], bool] = bool) -> None:
        """Hand every output to ``take`` in order and return when the job has ended.

        ``take`` does not raise; it returns True to cancel what is left, which the server sees, as does ``stop``, asked
        at every event. A server that is lost leaves the job pending; any other end of it does not.
        """
        try:
            self._follow(sent, take, note, stop)
        except LostServerError:
            raise
        except Refusal as refusal:
            if not _passing(refusal):
                self._pending.remove(sent.key)
            raise
        except WireError:
            self._pending.remove(sent.key)
            raise
        self._pending.remove(sent.key)

    def _follow(self, sent: Sent, take: Take, note: Note, stop: Callable[[], bool]) -> None:
        step, steps, quiet, stopped = 0, sent.steps, 0, False
        while True:
            for event in self._link.events(f"/v1/jobs/{sent.job}/events"):
                quiet = 0
                note(event)
                ready = event.get("outputs")
                if type(ready) is int:
                    step, steps = self._take(sent, step, steps, ready, take)
                if not stopped and stop():
                    stopped, steps = True, step
                    self._link.json("POST", f"/v1/jobs/{sent.job}/cancel")
            body = self._link.json("GET", f"/v1/jobs/{sent.job}")
            row = Fields(body, of="job")
            state = row.text("state")
            step, steps = self._take(sent, step, steps, row.integer("outputs", lo=0, hi=_MOST), take)
            if state in _ENDED:
                break
            quiet += 1
            if quiet > 1:
                time.sleep(min(0.1 * quiet, 2.0))
        if step < steps:
            self._pending.remove(sent.key)
            error, message = (str(body.get(name) or "")[:1000] for name in ("error", "message"))
            raise Refusal(
                error or state, f"the job {state} after {step} of {steps} steps: {message or 'no reason'}", "ask again"
            )

    def _take(self, sent: Sent, step: int, steps: int, ready: int, take: Take) -> tuple[int, int]:
        """Fetch the steps that are ready; returns the next step, and how many are wanted."""
        while step < min(steps, ready):
            path = f"/v1/jobs/{sent.job}/outputs/{step}"
            data = self._link.ask("GET", path, most=self._limits.total_bytes).content
            output = JobOutput.from_message(parse(data, self._limits, kinds=("output",)))
            if (output.job, output.step, output.plan) != (sent.job, step, self._config.plan):
                raise WireError("an output belongs to another job, step or plan; do not use this server")
            step += 1
            if take(output.outputs):
                self._link.json("POST", f"/v1/jobs/{sent.job}/cancel")
                steps = step
        return step, steps


def _passing(refusal: Refusal) -> bool:
    """Whether a refusal says nothing about the job: a server that is busy or full, or a token it does not take."""
    return refusal.status in AGAIN or refusal.status == 401
