# SPDX-License-Identifier: Apache-2.0
"""Whatever gives logits of tokens, under one interface: a circuit, a prepared model, a plan on an engine.

Shapes: B sequences, T tokens, V vocabulary. The score of a text is the same function of logits for all three, so a task
compares them and nothing else. Noise belongs to a sequence, not to the order in which sequences come.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.engine import run
from heatfhe.errors import ConfigError, DataError
from heatfhe.evaluation.encrypted import Endpoint, decoded
from heatfhe.evaluation.fidelity import diverged, log_softmax
from heatfhe.evaluation.noisy import noise_tap
from heatfhe.files import existing, plain
from heatfhe.models import encoder
from heatfhe.planning import Plan, ProgramName
from heatfhe.progress import SILENT, Reporter
from heatfhe.stages import solved

if TYPE_CHECKING:
    from heatfhe.sites import Mode, Prepared

Tokens = NDArray[np.int64]
Logits = NDArray[np.float64]


class Scorer(Protocol):
    """What is scored: logits of sequences of one length, and its own choice of tokens after a prompt.

    ``room`` is the longest sequence, ``largest`` the largest logit calibration saw (infinite where nothing did).
    """

    @property
    def name(self) -> str: ...
    @property
    def room(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def largest(self) -> float: ...
    @property
    def words(self) -> Words: ...
    def logits(self, rows: Tokens) -> Logits: ...
    def generate(self, prompt: Sequence[int], count: int) -> list[int]: ...


class Words:
    """A tokenizer: ``end`` is its end of text, which stands in front of a text without a context."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        if not tokenizer:
            raise DataError(f"{name} has no tokenizer; export it with --tokenizer FOLDER, or save one beside the model")
        from tokenizers import Tokenizer

        self.encode, self.end = encoder(tokenizer)
        self._made = Tokenizer.from_str(tokenizer["tokenizer.json"].decode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special ones left out."""
        return str(self._made.decode(list(tokens)))


@dataclass(frozen=True)
class CircuitScorer:
    """A circuit in float64; with ``sigma``, noise of that standard deviation at every site's input and output."""

    circuit: Circuit
    sigma: float = 0.0
    seed: int = 0

    @property
    def name(self) -> str:
        """The circuit's."""
        return self.circuit.name

    @property
    def room(self) -> int:
        """The circuit's."""
        return self.circuit.room

    @property
    def vocabulary(self) -> int:
        """The circuit's."""
        return self.circuit.shape.vocabulary

    @property
    def largest(self) -> float:
        """As calibrated."""
        return self.circuit.calibration.magnitudes.get("logits", math.inf)

    @cached_property
    def words(self) -> Words:
        """The circuit's own."""
        return Words(self.circuit.tokenizer, f"circuit {self.name}")

    def logits(self, rows: Tokens) -> Logits:
        """(B, T, V) of tokens (B, T)."""
        with np.errstate(over="ignore", invalid="ignore"):
            if not self.sigma:
                return self.circuit.run(rows)
            return np.stack([self.circuit.run(row, **self._noise(row)) for row in rows])

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """Free running, as an engine does it."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.circuit.generate(prompt, count, **self._noise(prompt)).tokens

    def _noise(self, row: Sequence[int] | Tokens) -> dict[str, Any]:
        if not self.sigma:
            return {}
        rng = np.random.default_rng(seed_of(row, self.seed))
        return {"tap": noise_tap(solved(self.circuit.stages), self.sigma, rng)}


@dataclass(frozen=True)
class PreparedScorer:
    """A prepared model, deployed or exact, in its own precision and on its own device, or in another ``dtype``."""

    prepared: Prepared
    tokenizer: Any
    mode: Mode = "deployed"
    dtype: str | None = None
    name: str = "prepared"

    @property
    def room(self) -> int:
        """The context without the prefix; no longer than what a deployed model was calibrated on."""
        p = self.prepared
        known = p.calibration.context if self.mode != "exact" and p.calibration is not None else math.inf
        return int(min(p.architecture.shape.context, known)) - len(p.config.prefix)

    @property
    def vocabulary(self) -> int:
        """The model's."""
        return self.prepared.architecture.shape.vocabulary

    @property
    def largest(self) -> float:
        """As calibrated; an exact model does not diverge."""
        known = self.prepared.calibration
        return math.inf if known is None or self.mode == "exact" else known.magnitudes.get("logits", math.inf)

    @cached_property
    def words(self) -> Words:
        """Those of the checkpoint."""
        return Words(self.tokenizer, f"model {self.name}")

    def logits(self, rows: Tokens) -> Logits:
        """(B, T, V) of tokens (B, T)."""
        found = self.prepared.logits(np.ascontiguousarray(rows), self.dtype, mode=self.mode)
        return np.asarray(found.double().cpu().numpy())

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """The largest logit's token, one after the other."""
        made = list(prompt)
        for _ in range(count):
            made.append(int(np.nan_to_num(self.logits(np.asarray([made]))[0, -1], nan=-np.inf).argmax()))
        return made[len(prompt) :]


@dataclass(frozen=True)
class PlanScorer:
    """A plan on an engine, token by token, each sequence a conversation of its own. For the owner of the key alone."""

    plan: Plan
    circuit: Circuit
    endpoint: Endpoint
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The circuit's, and the parameter set."""
        return f"{self.circuit.name} on {self.plan.params.name}"

    @property
    def room(self) -> int:
        """The plan's cache."""
        return self.plan.context

    @property
    def vocabulary(self) -> int:
        """The circuit's."""
        return self.circuit.shape.vocabulary

    @property
    def largest(self) -> float:
        """As calibrated."""
        return CircuitScorer(self.circuit).largest

    @cached_property
    def words(self) -> Words:
        """The circuit's own."""
        return Words(self.circuit.tokenizer, f"circuit {self.circuit.name}")

    def logits(self, rows: Tokens) -> Logits:
        """(B, T, V) of tokens (B, T); nan where something did not decrypt."""
        return np.stack([self._row(row) for row in rows])

    def _row(self, row: Tokens) -> Logits:
        self._begin(row)
        window = decoded(self.plan, self.circuit, self.endpoint, row)
        self.counts["tokens"] = self.counts.get("tokens", 0) + len(row)
        self.counts["bootstraps"] = self.counts.get("bootstraps", 0) + window.bootstraps
        return window.logits

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """Free running: a chosen token is fed back as the encrypted row that names it."""
        self._begin(prompt)
        rows = self.endpoint.rows(self.plan, self.circuit, ProgramName.GENERATE, prompt)
        made = run(self.plan, self.circuit, self.endpoint.engine, rows, count=count, recorded=False)
        return [self.endpoint.word(self.plan, parts) for parts in made]

    def _begin(self, row: Sequence[int] | Tokens) -> None:
        if self.endpoint.begin is not None:
            self.endpoint.begin(seed_of(row)[0])


def seed_of(row: Sequence[int] | Tokens, seed: int = 0) -> list[int]:
    """A seed that belongs to a sequence."""
    digest = hashlib.sha256(np.asarray(row, dtype=np.int64).tobytes()).digest()
    return [int.from_bytes(digest[:8], "little"), seed]


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The log-likelihood of a continuation in nats, whether each of its tokens is the likeliest, and whether a position
    it was read from diverged. It is minus infinity where a logit it needs is not finite."""

    nats: float
    greedy: bool
    diverged: bool


def likelihoods(
    scorer: Scorer,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    batch: int = 8,
    reporter: Reporter = SILENT,
) -> list[Likelihood]:
    """Log-likelihoods of (context, continuation) pairs of token ids, of which neither is empty.

    Sequences of one length run together, one that occurs twice runs once. A context that does not fit loses its first
    tokens; a continuation that does not fit is refused.
    """
    rows = [_fitted(scorer, number, *pair) for number, pair in enumerate(pairs)]
    distinct = sorted({row for row, _ in rows}, key=lambda row: (len(row), row))
    wanted: dict[tuple[int, ...], list[int]] = {}
    for number, (row, _) in enumerate(rows):
        wanted.setdefault(row, []).append(number)
    found: dict[int, Likelihood] = {}
    reporter.start(scorer.name, len(distinct))
    start = 0
    while start < len(distinct):
        group = [row for row in distinct[start : start + batch] if len(row) == len(distinct[start])]
        logits = scorer.logits(np.asarray(group, dtype=np.int64)[:, :-1])
        for row, own in zip(group, logits, strict=True):
            for number in wanted[row]:
                found[number] = _likelihood(own, row, rows[number][1], scorer.largest)
            reporter.advance(scorer.name, tokens=len(row) - 1)
        start += len(group)
    reporter.done(scorer.name)
    return [found[number] for number in range(len(pairs))]


def _fitted(
    scorer: Scorer, number: int, context: Sequence[int], continuation: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    if not context or not continuation:
        raise ConfigError(
            f"pair {number}: a context of {len(context)} and a continuation of {len(continuation)} tokens; both need "
            "at least one (the end of text stands for no context)"
        )
    if len(continuation) > scorer.room:
        raise ConfigError(
            f"pair {number}: a continuation of {len(continuation)} tokens does not fit {scorer.name}, which takes "
            f"{scorer.room}; give shorter texts, or a circuit of a longer context"
        )
    return tuple([*context, *continuation][-(scorer.room + 1) :]), len(continuation)


def _likelihood(logits: Logits, row: tuple[int, ...], count: int, largest: float) -> Likelihood:
    own, tokens = logits[-count:], np.asarray(row[-count:])
    nats = log_softmax(own)[np.arange(count), tokens]
    sound = bool(np.isfinite(own).all())
    return Likelihood(
        nats=float(nats.sum()) if sound else -math.inf,
        greedy=sound and bool((own.argmax(axis=-1) == tokens).all()),
        diverged=bool(diverged(own, largest).any()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """Perplexity of a text cut into windows: over those that hold, and how many diverge and are left out of it."""

    name: str
    window: int
    windows: int
    diverged: int
    perplexity: float

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; a number that does not exist is null."""
        return existing(plain(self))


def text_score(scorer: Scorer, windows: Tokens, *, batch: int = 8, reporter: Reporter = SILENT) -> TextScore:
    """Perplexity of windows (W, T + 1): every token but the first of each, after those before it."""
    pairs = [(row[:1], row[1:]) for row in windows.tolist()]
    if pairs and len(pairs[0][1]) > scorer.room:
        raise ConfigError(
            f"windows of {len(pairs[0][1])} tokens do not fit {scorer.name}, which takes {scorer.room}; give --window "
            f"{scorer.room} or less"
        )
    found = likelihoods(scorer, pairs, batch=batch, reporter=reporter)
    held = [f.nats for f in found if not f.diverged]
    length = windows.shape[1] - 1
    return TextScore(
        name=scorer.name,
        window=length,
        windows=len(found),
        diverged=len(found) - len(held),
        perplexity=math.exp(-sum(held) / (len(held) * length)) if held else math.nan,
    )
