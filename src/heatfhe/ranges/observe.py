# SPDX-License-Identifier: Apache-2.0
"""Observers: run real sequences through a prepared model and keep the ranges every fit needs. Streaming, any number.

A softmax's domains depend on powers (delta_1, delta_2) chosen later, but only through the means of e^(s / tau) along
a row for tau = 1, 2, 4, ...: with L_tau the logarithm of that mean, a first reciprocal sees e^(L_tau - midpoint / tau)
at tau = delta_2, and the pass from tau to tau / 2 sees z = e^(L_(tau/2) - 2 L_tau), which is at least 1. One sweep over
the scores therefore serves every choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeAlias, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from heatfhe.approx import shorten
from heatfhe.errors import ConfigError, DataError, SiteError
from heatfhe.progress import SILENT, Reporter
from heatfhe.ranges.argmax import MAX_TEMPERATURE, sampled_rows
from heatfhe.sites import Mode, Prepared
from heatfhe.stages import Activation, Argmax, Attention, Gate, Grid, Linear, Norm, centred, readers, writers

TEMPERATURES = (1, 2, 4, 8, 16, 32)
_SCORES = {"cpu": 1 << 21, "cuda": 1 << 27}  # scores looked at together: what stays near a processor, what fills a GPU
_TOGETHER = 32  # rows with sampling noise that are held at once
_ROWS = 1024  # rows of logits kept, in short, for the argmax schedule, each with its noisy copies
_AT_ENDS = 32  # rows kept beside them, whose leaders lie furthest out and least far, where not all are kept
_CUBED = (0, 1, 3, 5)  # how often entries are cubed before that is looked at: powers 1, 3, 27 and 243
_LOOKED_AT = 1 << 25  # logits looked at together for that

Tokens: TypeAlias = Union[Sequence[int], NDArray[Any], Tensor]


@dataclass
class Range:
    """The least and greatest value seen, and the least that accuracy is asked for (``least``)."""

    lo: float = math.inf
    hi: float = -math.inf
    least: float = math.inf

    def add(self, name: str, lo: float, hi: float, *, odd: bool = False) -> None:
        """Widen to hold what was seen; refuses what is not finite. What is ``odd`` asks for no accuracy."""
        if not (math.isfinite(lo) and math.isfinite(hi)):
            raise SiteError(
                name, f"values in [{lo:g}, {hi:g}] were seen: the weights, or an earlier site, are not finite"
            )
        self.lo, self.hi = min(self.lo, lo), max(self.hi, hi)
        self.least = min(self.least, math.inf if odd else lo)

    @property
    def asked(self) -> float:
        """The lower end that accuracy is asked for: of all that was seen, if all of it was odd or nothing is known."""
        return self.least if math.isfinite(self.least) else self.lo

    def checked(self, name: str) -> Range:
        """Itself, if anything was seen."""
        if not self.lo <= self.hi:
            raise SiteError(name, "nothing was seen: its range is empty; observe at least one sequence")
        return self


@dataclass
class Observation:
    """Everything calibration needs of the data: ranges by name, magnitudes, a sample of logit rows.

    Each of ``logit_rows`` holds a row in short, and the same with sampling noise up to ``temperature``.
    """

    norms: dict[str, Range] = field(default_factory=dict)
    scores: dict[str, Range] = field(default_factory=dict)
    log_means: dict[str, dict[int, Range]] = field(default_factory=dict)
    log_squares: dict[str, dict[int, Range]] = field(default_factory=dict)
    squares: dict[str, Range] = field(default_factory=dict)
    activations: dict[str, Range] = field(default_factory=dict)
    magnitudes: dict[str, float] = field(default_factory=dict)
    logit_rows: list[NDArray[np.floating]] = field(default_factory=list)
    logit_weights: NDArray[np.floating] | None = None
    temperature: float = 0.0
    logit_stride: int = 1
    logit_seen: int = 0
    context: int = 0
    sequences: int = 0
    fingerprint: str = ""
    prefix: tuple[int, ...] = ()


class Observer:
    """A tap that fills an Observation.

    While ``odd`` is set, values ask for no accuracy: above the upper end of its domain a softmax's reciprocal diverges,
    below the lower end it falls short, which does no harm on a text that means nothing. (A norm needs both ends: its
    rational seed may have a pole below the lower one.)
    """

    def __init__(self, prepared: Prepared, deepest: int = TEMPERATURES[-1]) -> None:
        self.seen = seen = Observation(prefix=prepared.config.prefix)
        self._temperatures = tuple(tau for tau in TEMPERATURES if tau <= deepest)
        self.odd = False
        takes: dict[str, Callable[[Tensor], None]] = {}
        for stage in prepared.architecture.stages:
            values = [*stage.inputs, stage.writes]
            if isinstance(stage, Norm):
                takes[f"{stage.name}/z"] = partial(self._ranged, seen.norms, stage.name)
            elif isinstance(stage, Activation):
                takes[f"{stage.name}/in"] = partial(self._ranged, seen.activations, stage.name)
            elif isinstance(stage, Attention):
                takes[f"{stage.name}/scores"] = partial(self._scores, stage)
                takes[f"{stage.name}/sum2"] = partial(self._squares, stage)
                values += [f"{stage.name}/{part}" for part in ("q", "k", "v")]
            takes |= {value: partial(self.magnitude, value) for value in values}
        self._takes = takes

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Look at one named value."""
        if name in self._takes:
            self._takes[name](value)
        return value

    def magnitude(self, name: str, value: Tensor) -> None:
        """Keep the largest absolute value."""
        largest = float(value.detach().abs().amax())
        if not math.isfinite(largest):
            raise SiteError(
                name, f"a value of size {largest:g} was seen: the weights, or an earlier site, are not finite"
            )
        self.seen.magnitudes[name] = max(self.seen.magnitudes.get(name, 0.0), largest)

    def _squares(self, stage: Attention, sums: Tensor) -> None:
        self._ranged(self.seen.squares, stage.name, sums[..., 0] / row_lengths(stage, sums, len(self.seen.prefix)))

    def _ranged(self, table: dict[str, Range], owner: str, value: Tensor) -> None:
        lo, hi = torch.aminmax(value.detach())
        table.setdefault(owner, Range()).add(owner, float(lo), float(hi), odd=self.odd)

    def _scores(self, stage: Attention, scores: Tensor) -> None:
        owner, (rows, columns) = stage.name, scores.shape[-2:]
        if columns != rows + len(self.seen.prefix):
            raise ConfigError(f"{owner}: observe whole sequences, not continuations of a cache")
        hidden, length = hidden_scores(stage, scores), row_lengths(stage, scores, len(self.seen.prefix))
        together = _SCORES.get(scores.device.type, _SCORES["cpu"]) // columns**2
        parts = scores.detach().reshape(-1, rows, columns).split(max(1, together))
        ends = torch.stack(
            [_ends(part, hidden, length, self._temperatures) for part in parts]
        )  # read back once: a GPU must not wait
        lows, highs = ends[..., 0].amin(dim=0).tolist(), ends[..., 1].amax(dim=0).tolist()
        seen = self.seen
        means, squares = seen.log_means.setdefault(owner, {}), seen.log_squares.setdefault(owner, {})
        taus = self._temperatures
        tables: list[tuple[dict[Any, Range], Any]] = [(seen.scores, owner), *((means, tau) for tau in taus)]
        tables += [(squares, tau) for tau in taus[1:]]
        for (table, key), lo, hi in zip(tables, lows, highs, strict=True):
            table.setdefault(key, Range()).add(owner, lo, hi, odd=self.odd)


def row_lengths(stage: Attention, rows: Tensor, public: int) -> Tensor:
    """Of every row: the positions up to its own, the prefix first; all of them where attention is not causal."""
    whole = rows.shape[-2]
    if not stage.causal:
        return torch.full((whole,), whole, device=rows.device, dtype=rows.dtype)
    return torch.arange(public + 1, public + whole + 1, device=rows.device, dtype=rows.dtype)


def hidden_scores(stage: Attention, scores: Tensor) -> Tensor:
    """Which of the scores (..., T, S) no row looks at: those of later positions, where attention is causal."""
    rows, columns = scores.shape[-2:]
    hidden = torch.ones(rows, columns, dtype=torch.bool, device=scores.device)
    return hidden.triu(1 + columns - rows) if stage.causal else ~hidden


def _ends(scores: Tensor, hidden: Tensor, length: Tensor, taus: Sequence[int]) -> Tensor:
    """Least and greatest (quantities, 2) of the scores, of every L_tau, then of L_(tau/2) - 2 L_tau from tau = 2 on."""
    low = scores.masked_fill(hidden, torch.inf).amin()
    e = scores.masked_fill(hidden, -torch.inf)  # worked on in place from here
    top = e.amax(dim=-1)
    e.sub_(top[..., None]).mul_(1.0 / taus[-1]).exp_()
    means: dict[int, Tensor] = {}
    for tau in reversed(taus):
        means[tau] = top / tau + torch.log(e.sum(dim=-1) / length)
        if tau > 1:
            e.mul_(e)
    rows = [means[tau] for tau in taus] + [means[tau // 2] - 2.0 * means[tau] for tau in taus[1:]]
    return torch.stack([torch.stack([low, top.amax()]), *(torch.stack(torch.aminmax(row)) for row in rows)])


@torch.no_grad()
def observe(
    prepared: Prepared,
    sequences: Iterable[Tokens],
    *,
    odd: Iterable[Tokens] = (),
    mode: Mode = "exact",
    temperature: float = MAX_TEMPERATURE,
    argmax: bool = True,
    deepest: int = TEMPERATURES[-1],
    reporter: Reporter = SILENT,
    total: int | None = None,
) -> Observation:
    """Run sequences (each (T,) or (B, T)) and return what was seen; exact nonlinearities unless told otherwise.

    Of a model that classifies images these are images: (channels, height, width), a batch of them, or flat rows.

    ``odd`` sequences come after them and ask for no accuracy (``Range.least``).
    ``temperature`` is the highest that the argmax shall sample at: logits are kept with noise up to it. Where no argmax
    will be fitted, ``argmax=False`` keeps none. ``deepest`` is the largest delta_2 that will be asked for: rows are
    summed once for every power of two up to it.
    """
    observer = Observer(prepared, deepest)
    seen, rng = observer.seen, np.random.default_rng(0)
    seen.temperature = temperature
    kept: list[NDArray[np.floating]] = []
    ends = _Extremes()
    hooks = _watch(prepared, observer)
    reporter.start("observe", total)
    try:
        with prepared.tapped(observer):
            for observer.odd, sequence in chain(zip(repeat(False), sequences), zip(repeat(True), odd)):
                batch = batch_of(prepared, sequence)
                logits = prepared.logits(batch, mode=mode)
                observer.magnitude("logits", logits)
                if argmax and prepared.architecture.of(Argmax):
                    _keep_rows(seen, kept, logits)
                    ends.look(logits)
                length = batch.shape[-1] if prepared.grid is None else prepared.grid.rows
                seen.context = max(seen.context, len(seen.prefix) + length)
                seen.sequences += batch.shape[0]
                reporter.advance("observe", sequences=seen.sequences)
    finally:
        for hook in hooks:
            hook.remove()
        reporter.done("observe")
    if seen.sequences == 0:
        raise DataError("calibration saw no sequence: every range is empty; give at least one sequence of tokens")
    if seen.logit_stride > 1:
        kept += ends.rows
    with ThreadPoolExecutor() as pool:  # they are sorted, which lets other threads go on
        for start in range(0, len(kept), _TOGETHER):
            rows = [sampled_rows(row, temperature, rng) for row in kept[start : start + _TOGETHER]]
            for short, seen.logit_weights in pool.map(shorten, rows):
                seen.logit_rows.append(short)
    seen.fingerprint = prepared.fingerprint()
    return seen


def _watch(prepared: Prepared, observer: Observer) -> list[RemovableHandle]:
    """Hooks on linear stages for what no site sees: branches of the stream, as a circuit carries them, and gates."""
    architecture = prepared.architecture
    stages, hooks = architecture.stages, []
    made, mean_free = writers(stages), centred(stages)

    def after(stage: Linear) -> Any:
        def hook(_module: Any, _args: Any, output: Tensor) -> None:
            less = output.mean(dim=-1, keepdim=True) if stage.residual and mean_free else 0.0
            observer.magnitude(stage.writes, prepared.switch.private(output - less))

        return hook

    def before(stage: Linear) -> Any:
        return lambda _module, args: observer.magnitude(stage.reads, prepared.switch.private(args[0]))

    for stage in architecture.of(Linear):
        module = prepared.model.get_submodule(architecture.paths[stage.name])
        if stage.residual or any(isinstance(r, Gate) for r in readers(stages, stage.writes)):
            hooks.append(module.register_forward_hook(after(stage)))
        if isinstance(made[stage.reads], Gate):
            hooks.append(module.register_forward_pre_hook(before(stage)))
    return hooks


def batch_of(prepared: Prepared, sequence: Tokens) -> Tensor:
    if prepared.grid is not None:
        return _pixels(prepared.grid, sequence)
    ids = torch.as_tensor(np.asarray(sequence) if not isinstance(sequence, Tensor) else sequence).long()
    batch = ids[None] if ids.ndim == 1 else ids
    limits = prepared.architecture.shape
    if batch.ndim != 2 or batch.numel() == 0:
        raise DataError(f"a sequence of tokens is (T,) or (B, T) with T >= 1, got shape {tuple(ids.shape)}")
    if batch.shape[-1] > limits.context - len(prepared.config.prefix):
        behind = f" behind a prefix of {len(prepared.config.prefix)}" if prepared.config.prefix else ""
        raise DataError(
            f"a sequence of {batch.shape[-1]} tokens{behind} exceeds the model's context of {limits.context}; cut it"
        )
    if int(batch.min()) < 0 or int(batch.max()) >= limits.vocabulary:
        raise DataError(f"a token id lies outside the vocabulary of {limits.vocabulary}; use the model's own tokenizer")
    return batch


def _pixels(grid: Grid, images: Any) -> Tensor:
    """Images (B, channels, height, width): each by itself, in batches, or flat."""
    pixels = torch.as_tensor(np.asarray(images) if not isinstance(images, Tensor) else images)
    if pixels.ndim <= 2 and pixels.shape[-1:] == (math.prod(grid.image),):
        pixels = pixels.reshape(-1, *grid.image)
    grid.checked(pixels.cpu().numpy())
    return pixels[None] if pixels.ndim == 3 else pixels


def _keep_rows(seen: Observation, kept: list[NDArray[np.floating]], logits: Tensor) -> None:
    """Keep every logit_stride-th row of the stream; when there are too many, drop every other and double the stride."""
    rows = logits.reshape(-1, logits.shape[-1])
    at = -seen.logit_seen % seen.logit_stride
    while at < len(rows):
        kept.append(rows[at].double().cpu().numpy())
        if len(kept) > _ROWS:
            kept[:] = kept[::2]
            seen.logit_stride *= 2
        at += -(seen.logit_seen + at) % seen.logit_stride or seen.logit_stride
    seen.logit_seen += len(rows)


class _Extremes:
    """The rows of logits whose leaders lie the most, and the least, deviations above their mean, after powers of all
    entries.

    An argmax's rounds have domains. A leader further out than theirs is lost, and the whole row with it: such rows are
    the ones a model is surest of. One that lies less far out shrinks from round to round until nothing is left: there a
    model is least sure. What a later round meets are high powers, after which two words that nearly tie lie least far
    out, whatever the others do. One row in ten thousand is enough to spoil an answer, and a sample may hold none.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], list[tuple[float, NDArray[np.floating]]]] = {
            (cubed, sign): [] for cubed in _CUBED for sign in (1, -1)  # furthest, least far
        }

    @property
    def rows(self) -> list[NDArray[np.floating]]:
        """What is kept, a power after the other, the furthest first."""
        return [row for kept in self._kept.values() for _, row in kept]

    def look(self, logits: Tensor) -> None:
        """Keep those of these rows that lie nearer to either end of a power than what is kept."""
        rows = logits.reshape(-1, logits.shape[-1])
        parts = rows.split(max(1, _LOOKED_AT // rows.shape[-1]))
        out = torch.cat([self._deviations(part.float()) for part in parts], dim=1)
        for (cubed, sign), kept in self._kept.items():
            far = sign * out[_CUBED.index(cubed)]
            best, at = far.topk(min(_AT_ENDS, len(far)))
            least = kept[-1][0] if len(kept) == _AT_ENDS else -math.inf
            kept += [(z, rows[i].double().cpu().numpy()) for z, i in zip(best.tolist(), at.tolist()) if z > least]
            kept.sort(key=lambda pair: -pair[0])
            del kept[_AT_ENDS:]

    def _deviations(self, rows: Tensor) -> Tensor:
        """How many deviations a row's leader lies out, at each power, (powers, R)."""
        found = []
        for times in range(max(_CUBED) + 1):
            rows = rows if not times else rows * rows * rows
            if times in _CUBED:
                rows = rows - rows.mean(dim=-1, keepdim=True) if not times else rows
                rows = rows / rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
                found.append((rows.amax(dim=-1) - rows.mean(dim=-1)) / rows.std(dim=-1).clamp(min=1e-30))
        return torch.stack(found)
