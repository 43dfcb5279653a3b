# SPDX-License-Identifier: Apache-2.0
"""The steps of one generation: what is encrypted and sent, and how each output is read without that being seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import gumbel_noise
from heatfhe.client.bundle import Bundle
from heatfhe.client.exchange import Exchange
from heatfhe.client.jobs import Jobs, Sent, Take
from heatfhe.client.layout import Layout
from heatfhe.client.link import Link
from heatfhe.client.pending import PendingJob, PendingJobs
from heatfhe.client.read import is_faint, read_logits, read_token, round_to_bits
from heatfhe.client.sampling import Sampler
from heatfhe.client.talk import Conversation
from heatfhe.engine import Keyring
from heatfhe.planning import ProgramName
from heatfhe.wire import MODES, Fields, JobHead, ModelConfig

DUMMY = 0  # a token to send where the true one could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A generation that was checked; ``end`` is the token that stops it early, if any; ``stop`` is asked as it runs."""

    talk: Conversation
    ids: list[int]
    tokens: int
    sampler: Sampler
    end: int | None
    keep: bool
    stop: Callable[[], bool] = bool


def session_state(link: Link, session: str) -> tuple[int, bool]:
    """How many positions a session holds on the server, and whether a generated token waits to be the next."""
    row = Fields(link.json("GET", f"/v1/sessions/{session}"), of="session")
    return row.integer("position", lo=0, hi=1 << 22), row.flag("pending")


class Steps:
    """Generations of one model under one key set. Every method here sends; none depends on what was read to do so,
    apart from which token interactive mode encrypts next."""

    def __init__(
        self,
        *,
        link: Link,
        config: ModelConfig,
        layout: Layout,
        bundle: Bundle,
        keyring: Keyring,
        key_set: str,
        bits: float,
        pending: PendingJobs,
    ) -> None:
        self._link, self._config, self._layout, self._bundle = link, config, layout, bundle
        self._keyring, self._key_set, self._bits = keyring, key_set, bits
        self._jobs = Jobs(link, config, layout, pending)

    def free(self, asked: Asked, rng: np.random.Generator, out: Exchange) -> None:
        """One job for all steps: the server chooses under encryption."""
        noise: list[bytes] = []
        layout, temperature = self._layout, asked.sampler.temperature
        program = ProgramName.SAMPLE if temperature > 0 else ProgramName.GENERATE
        if program is ProgramName.SAMPLE:
            for _ in range(asked.tokens):
                row = gumbel_noise(rng, self._config.vocabulary, temperature)
                noise += [self._keyring.encrypt(v, level=layout.noise_level) for v in layout.place_words(row)]
        sent = self._send(asked, asked.ids, program=program, steps=asked.tokens, noise=noise)
        self._fetch(sent, asked.talk, lambda parts: self._take_word(asked.talk, parts, asked.end, out), out, asked.stop)

    def classify(self, images: NDArray[np.float64], talk: Conversation, keep: bool, out: Exchange) -> None:
        """One job for all images: their rows (N, rows, width) as whole blocks, a row of logits for each of them."""
        level, layout = self._layout.block_level, self._layout
        inputs = [self._keyring.encrypt(v, level=level) for rows in images for v in layout.place_blocks(rows)]
        head = JobHead(
            config_id=self._config.config_id,
            plan=self._config.plan,
            key_set=self._key_set,
            program=ProgramName.CLASSIFY,
            steps=len(images),
            start=0,
            inputs=len(inputs),
        )
        sent = self._jobs.send(talk.session, head, inputs, (), keep=keep)
        self._fetch(sent, talk, lambda parts: self._take_label(talk, parts, out), out)

    def again(self, job: PendingJob, talk: Conversation, out: Exchange) -> None:
        """The outputs of a job, of images or in free running, that another process sent."""
        images = job.mode == MODES[ProgramName.CLASSIFY]

        def take(parts: Sequence[bytes]) -> bool:
            return self._take_label(talk, parts, out) if images else self._take_word(talk, parts, None, out)

        self._fetch(self._jobs.again(job), talk, take, out)

    def interactive(self, asked: Asked, rng: np.random.Generator, out: Exchange) -> None:
        """One job per step: logits come back, the client chooses and sends its choice."""
        talk, fresh = asked.talk, asked.ids
        chosen: list[int | None] = []

        def read(parts: Sequence[bytes]) -> int:
            logits = read_logits(round_to_bits(self._decrypt(parts), self._bits), len(talk.tokens))
            token = int(asked.sampler.choose(logits, talk.tokens, rng))
            self._bundle.check([token])
            return token

        def take(parts: Sequence[bytes]) -> bool:
            chosen.append(out.attempt(lambda: read(parts)))
            return False

        for _ in range(asked.tokens):
            self._fetch(self._send(asked, fresh, program=ProgramName.LOGITS, steps=1), talk, take, out, asked.stop)
            if asked.stop():
                return
            talk.position, talk.pending = session_state(self._link, talk.session)
            token = chosen[-1]
            if token is not None and token == asked.end:
                return
            # After a failure the remaining steps are asked for all the same, with a token that means nothing.
            fresh = [DUMMY if token is None else token]

    def _fetch(
        self, sent: Sent, talk: Conversation, take: Take, out: Exchange, stop: Callable[[], bool] = bool
    ) -> None:
        """Fetch a job's outputs; what a simulation says of its magnitudes is added to the conversation."""
        before = talk.exceeded

        def note(event: dict[str, Any]) -> None:
            if type(count := event.get("exceeded")) is int:
                talk.exceeded = before + count
            out.note(event)

        self._jobs.fetch(sent, take, note, stop)

    def _take_word(self, talk: Conversation, parts: Sequence[bytes], end: int | None, out: Exchange) -> bool:
        """Read the word of a step; True if it ends the text."""

        def read() -> int:
            row = self._decrypt(parts)
            token, tie = read_token(row, len(talk.tokens))
            talk.tokens.append(token)
            talk.near_ties += tie
            talk.faint += is_faint(row)
            return token

        token = out.attempt(read)
        return token is not None and token == end

    def _take_label(self, talk: Conversation, parts: Sequence[bytes], out: Exchange) -> bool:
        """Read the label of an image, the largest of its logits; nothing ends a job of images."""

        def read() -> int:
            row = self._layout.read_labels([self._keyring.decrypt(p) for p in parts])
            logits = read_logits(round_to_bits(row, self._bits), len(talk.logits))
            talk.logits.append(tuple(logits.tolist()))
            return int(np.argmax(logits))

        out.attempt(read)
        return False

    def _decrypt(self, parts: Sequence[bytes]) -> NDArray[np.float64]:
        return self._layout.read_words([self._keyring.decrypt(p) for p in parts])

    def _send(
        self, asked: Asked, ids: list[int], *, program: ProgramName, steps: int, noise: Sequence[bytes] = ()
    ) -> Sent:
        talk, layout = asked.talk, self._layout
        rows = self._bundle.rows(ids)
        first = 0 if talk.position or talk.pending else layout.at_once(len(ids), self._config.context)
        packed = layout.place_blocks(rows[:first]) if first else []
        inputs = [self._keyring.encrypt(v, level=layout.block_level) for v in packed]
        inputs += [self._keyring.encrypt(layout.place_row(r), level=layout.input_level) for r in rows[first:]]
        head = JobHead(
            config_id=self._config.config_id,
            plan=self._config.plan,
            key_set=self._key_set,
            program=program,
            steps=steps,
            start=talk.position,
            inputs=len(inputs),
            parts=layout.parts,
            prefill=(first, len(packed)) if first else (),
        )
        sent = self._jobs.send(talk.session, head, inputs, noise, keep=asked.keep)
        talk.tokens += ids
        return sent
