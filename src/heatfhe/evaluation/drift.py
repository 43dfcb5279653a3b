# SPDX-License-Identifier: Apache-2.0
"""Drift: a plan's own bootstraps made noisy on the clear engine, and what that does to fidelity along a sequence.

Shapes: W windows, P positions. All windows run as one batch; the cache carries every error on to later positions.
Before any noise the plan itself is checked: strictly, on the first windows, against ``circuit.run``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit, embed, forward
from heatfhe.engine import BootstrapNoise, ClearEngine, Noise, OperationNoise, run
from heatfhe.errors import ConfigError, EngineError, PlanError
from heatfhe.evaluation.fidelity import Fidelity, Scores, diverged, log_softmax
from heatfhe.evaluation.noise_rows import Chosen, NoiseByRow
from heatfhe.evaluation.values import chosen_values, refreshed_values
from heatfhe.planning import Plan, ProgramName
from heatfhe.progress import SILENT, Reporter

Tokens = NDArray[np.int64]
Logits = NDArray[np.float64]
SEEDS = (0, 1, 2)  # of the noise, in what is reported
CHECKED = 4  # windows, sound in the clear, on which a plan is checked: what is wrong in a plan is wrong on any text
ROOM_ON_GPU = 1 << 24  # numbers in one value of a batch; a hundred live at once, and launches take longer than fewer
SEEDS_ROOM = {"cpu": 0, "cuda": ROOM_ON_GPU}  # of the windows of several seeds as one batch
SAME = 1e-8  # of the largest logit: a plan and its circuit differ by less
BATCH = 8  # windows at a time in circuit.run


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Fidelity of one plan under noise at each of its bootstraps, over all windows under each seed's noise.

    ``collapsed_by_position`` is the share of them that have diverged at each position; ``bootstraps`` how many of one
    token are noisy, all of them or those of the families ``only``; ``sigma`` the noise on one slot of a value of size
    one; ``rounding`` whether products, rotations and plaintexts erred too.
    """

    name: str
    bootstraps: int
    sigma: float
    seeds: tuple[int, ...]
    fidelity: Fidelity
    collapsed_by_position: tuple[float, ...]
    only: str | None = None
    rounding: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        own = {k: getattr(self, k) for k in ("name", "bootstraps", "sigma", "only")}
        return {
            **own,
            **({"rounding": True} if self.rounding else {}),
            "seeds": list(self.seeds),
            "fidelity": self.fidelity.as_json(),
            "collapsed_by_position": list(self.collapsed_by_position),
        }

    def quarters(self) -> tuple[float, ...]:
        """Median KL over each quarter of the positions: flat, or drifting."""
        curve = np.array(self.fidelity.kl_by_position)
        parts = [part[np.isfinite(part)] for part in np.array_split(curve, 4)]
        return tuple(float(np.median(part)) if part.size else float("nan") for part in parts)


def drift(
    plan: Plan,
    circuit: Circuit,
    windows: Tokens,
    *,
    noise: Noise,
    sigma: float | None = None,
    seeds: Sequence[int] = SEEDS,
    only: str | None = None,
    rounding: bool = False,
    device: str = "cpu",
    known: tuple[Logits, float] | None = None,
    reporter: Reporter = SILENT,
) -> Drift:
    """Teacher-forced logits of windows (W, P + 1), noise at every bootstrap, against the circuit's own clear ones.

    ``noise`` is a BootstrapNoise, or what a table measured on a real engine gives; ``sigma`` is kept for show, and
    needed for the latter. ``only`` leaves the noise out everywhere but in some families (``values.chosen_values``).
    ``rounding`` adds, everywhere, what the other operations err by (engine.OperationNoise). A plan that is wrong
    without any noise is refused. ``device`` is the clear engine's. ``known`` are the ``clear_logits`` of these windows,
    where several plans of one circuit need them.
    """
    if sigma is None:
        if not isinstance(noise, BootstrapNoise):
            raise ConfigError("measured noise has no one standard deviation: pass sigma, the one to show")
        sigma = noise.sigma
    if not seeds:
        raise ConfigError("noise needs at least one seed")
    clear, largest = clear_logits(plan, circuit, windows, reporter) if known is None else known
    if clear.shape[:2] != (len(windows), windows.shape[1] - 1):
        raise ConfigError(f"clear logits {clear.shape} are not those of windows {windows.shape}; compute them again")
    tokens, targets = windows[:, :-1], windows[:, 1:]
    engine = checked_engine(plan, circuit, tokens, clear, largest, device, reporter)
    values = refreshed_values(plan, circuit.calibration)
    chosen = chosen_values(values, only)
    steps = {v.step for v in values if v.number in chosen}
    together = 1 if rounding else max(1, SEEDS_ROOM[device] // (len(windows) * plan.params.slots))
    groups = []
    reporter.start(circuit.name, len(seeds) * tokens.shape[1])
    for batch in (seeds[i : i + together] for i in range(0, len(seeds), together)):
        engine.noise = NoiseByRow(tuple(Chosen(noise, chosen, len(values), seed) for seed in batch))
        engine.rounding = OperationNoise(params=plan.params, seed=batch[0]) if rounding else None
        columns: list[list[Scores]] = [[] for _ in batch]
        for position, rows in enumerate(_logits(plan, circuit, engine, tokens)):
            found = Scores.of_rows(clear[:, position], rows, targets[:, position], largest=largest)
            for seed, scores, scored in zip(batch, found, columns):
                scored.append(scores)
                reporter.advance(circuit.name, seed=seed, position=position)
        groups += [Scores.stack(scored) for scored in columns]
    reporter.done(circuit.name)
    scores = Scores.stack(groups, axis=0)
    return Drift(
        name=circuit.name,
        bootstraps=len(steps),
        only=only,
        rounding=rounding,
        sigma=sigma,
        seeds=tuple(seeds),
        fidelity=scores.fidelity(),
        collapsed_by_position=tuple(float(v) for v in scores.bad.mean(axis=0)),
    )


def clear_logits(plan: Plan, circuit: Circuit, windows: Tokens, reporter: Reporter = SILENT) -> tuple[Logits, float]:
    """The circuit's own logits (W, P, V) of windows (W, P + 1) that fit the plan, and the largest of calibration."""
    if windows.ndim != 2 or windows.shape[1] < 2:
        raise ConfigError(f"windows are (count, positions + 1) token ids, got {windows.shape}")
    tokens = windows[:, :-1]
    if tokens.shape[1] > plan.context:
        raise ConfigError(f"windows of {tokens.shape[1]} positions do not fit the plan's cache of {plan.context}")
    parts = [tokens[i : i + BATCH] for i in range(0, len(tokens), BATCH)]
    rows = []
    reporter.start("clear logits", len(parts))
    for part in parts:
        with np.errstate(over="ignore", invalid="ignore"):
            rows.append(circuit.run(part))
        reporter.advance("clear logits")
    reporter.done("clear logits")
    clear = np.concatenate(rows)
    return clear, circuit.calibration.magnitudes.get("logits", float(np.abs(clear).max()))


def checked_engine(
    plan: Plan,
    circuit: Circuit,
    tokens: Tokens,
    clear: Logits,
    largest: float,
    device: str,
    reporter: Reporter = SILENT,
) -> ClearEngine:
    """An engine to be made noisy, after the plan was checked on it, on windows whose logits are sound in the clear."""
    engine = ClearEngine(plan.params, lenient=True, device=device, rng=np.random.default_rng(0))
    sound = np.flatnonzero(~diverged(clear, largest).any(axis=1))[:CHECKED]
    if len(sound):
        check_plan(plan, circuit, engine, tokens[sound], clear[sound], reporter)
    engine.strict = False
    return engine


def check_plan(
    plan: Plan,
    circuit: Circuit,
    engine: ClearEngine,
    tokens: Tokens,
    clear: Logits,
    reporter: Reporter = SILENT,
) -> None:
    """Refuse a plan that does something an encrypted run cannot, or that differs from the circuit without any noise.

    ``engine`` is strict, without noise, and lenient: a text that leaves what calibration saw says nothing about the
    plan. ``clear`` are the circuit's logits of the tokens (W, P), and finite.
    """
    size = float(np.abs(clear).max())
    reporter.start("check of the plan", tokens.shape[1])
    try:
        for position, (row,) in enumerate(_logits(plan, circuit, engine, tokens)):
            error = np.abs(row - clear[:, position])
            window, word = np.unravel_index(int(error.argmax()), error.shape)
            if not error[window, word] <= SAME * size:
                raise PlanError(
                    f"{circuit.name} on {plan.params.name}: without noise the plan's logit of token {word} at position "
                    f"{position} of window {window} is {row[window, word]:.9g}, circuit.run gives "
                    f"{clear[window, position, word]:.9g}; noise would be blamed for it: plan again"
                )
            reporter.advance("check of the plan", position=position)
    except EngineError as err:
        raise PlanError(f"{circuit.name} on {plan.params.name} cannot run encrypted even without noise: {err}") from err
    reporter.done("check of the plan")


def _logits(plan: Plan, circuit: Circuit, engine: ClearEngine, tokens: Tokens) -> Iterator[Logits]:
    """Logits (R, W, V) of each position of tokens (W, P), a row for each of the engine's noises; one without any."""
    rows = getattr(engine.noise, "rows", 1)
    packed = (plan.packing.pack_residual(circuit.folded.token[column]) for column in tokens.T)
    inputs = ([engine.value(np.broadcast_to(slots, (rows, *slots.shape)))] for slots in packed)
    with np.errstate(over="ignore", invalid="ignore"):
        for parts in run(plan, circuit, engine, inputs, program=ProgramName.LOGITS):
            yield plan.packing.unpack_vocabulary([engine.read(v) for v in parts])


def sample_windows(circuit: Circuit, count: int, length: int, *, seed: int = 0, temperature: float = 1.0) -> Tokens:
    """Windows (count, length) drawn from the circuit itself, each from a random first token: no text is needed."""
    if not (count >= 1 and 1 <= length <= circuit.room + 1):
        raise ConfigError(f"length {length} does not fit a context of {circuit.room}, one token over allowed")
    rng = np.random.default_rng(seed)
    out = rng.integers(0, circuit.shape.vocabulary, size=(count, 1))
    cache = circuit.front.spread((count,))
    for _ in range(length - 1):
        logits = forward(circuit, embed(circuit, out[:, -1:], cache.length), cache)[:, -1]
        chances = np.exp(log_softmax(logits / temperature))
        edges = np.cumsum(chances, axis=-1)
        drawn = (rng.random((count, 1)) * edges[:, -1:] > edges).sum(axis=-1, keepdims=True)
        out = np.concatenate([out, np.minimum(drawn, circuit.shape.vocabulary - 1)], axis=1)
    return np.asarray(out, dtype=np.int64)
