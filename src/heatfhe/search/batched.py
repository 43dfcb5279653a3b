# SPDX-License-Identifier: Apache-2.0
"""One circuit at many counts at once: what candidates share is computed once, and the rest as one batch.

Candidates differ in counts alone. Those whose counts agree so far share one *group*: every value of the walk has an
axis of groups and says which group each candidate belongs to. Groups split at a site where counts differ. A softmax's
counts act on one number per row only: with e the exponentials of a row and a_i what its reciprocals give, the passes of
square and normalise amount to

    e^(2^p) A_p,   A_0 = a_0(sum e),   A_i = A_(i-1)^2 a_i(A_(i-1)^2 sum e^(2^i)),

so that scores, exponentials and products with values are made once per group that enters the attention, whatever counts
are tried in it. Solvers and fits are those of ``approx``, called with tensors.

Shapes: C candidates, G groups, B windows, T positions, d width, h heads, e head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatfhe.approx import ActivationFit, SoftmaxFit, activation, exponential, inverse_sqrt, reciprocal
from heatfhe.circuit import Circuit
from heatfhe.circuit import embed as embed_rows
from heatfhe.circuit import forward as exact_forward
from heatfhe.errors import ConfigError
from heatfhe.search.fused import Fused, Parts, Rowwise, piecewise
from heatfhe.search.space import Counts
from heatfhe.stages import Activation, Attention, Embed, Gate, Head, Linear, Norm, Residual, Stage, of, turns, writers

DTYPES = {"float32": torch.float32, "float64": torch.float64, "tf32": torch.float32}
PRECISIONS = {"float32": "highest", "float64": "highest", "tf32": "high"}  # in torch's words, of products on a GPU
ROWS = 256  # of a score matrix at a time: half of what lies right of the diagonal is never made
ROWS_ON_GPU = 1 << 12  # there fewer and larger pieces are quicker, and fewer shapes are compiled
MEMORY = {"cpu": 1 << 29, "cuda": 24 << 30}  # bytes of values that candidates run together may take at most
SHARE = 0.5  # and of the memory that a GPU has free
GROUPS = 8  # whose score matrices, or wide activations, are held at a time
SCORES = 6  # score matrices of a group that are held at once where nothing is compiled
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grouped:
    """A value (G, B, T, ...) and the group that each candidate belongs to (C,)."""

    value: Tensor
    group: Index

    def at(self, groups: Index) -> Tensor:
        """The value of these groups, without a copy where they are all of them in order."""
        if len(groups) == len(self.value) and np.array_equal(groups, np.arange(len(groups))):
            return self.value
        return self.value[torch.as_tensor(groups, device=self.value.device)]


def split(*parts: Index) -> tuple[Index, Index]:
    """The distinct rows of columns (C,) side by side, and which of them each candidate has."""
    rows, inverse = np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)
    return rows, np.asarray(inverse).reshape(-1)


class Batched:
    """A circuit on windows of tokens (B, T), run for many candidates at a time; ``names`` are the candidates' columns.

    Sites that are not named run at the circuit's own counts. With ``sigma`` noise of that standard deviation enters at
    every site's input and output, the same for all candidates: they are compared under one and the same noise.
    ``tf32`` is float32 whose products a GPU makes of numbers rounded to eleven bits, several times as fast.
    """

    def __init__(
        self,
        circuit: Circuit,
        tokens: NDArray[np.int64],
        names: Sequence[str],
        *,
        device: str = "cpu",
        dtype: str = "float32",
        sigma: float = 0.0,
        seed: int = 0,
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r}; have: {', '.join(DTYPES)}")
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("cuda: torch sees no GPU on this machine; leave --device out to use the CPU")
        self.circuit, self.tokens = circuit, tokens
        self.sigma, self.seed = sigma, seed
        self._device, self._dtype = torch.device(device), DTYPES[dtype]
        self._precision = PRECISIONS[dtype]
        self._column = {name: i for i, name in enumerate(names)}
        self._own = circuit.calibration.counts()
        self._linears = {
            name: (self._made(linear.weight), self._made(linear.bias))
            for name, linear in circuit.folded.linears.items()
        }
        self._front = {
            name: (self._made(circuit.front.keys[name]), self._made(circuit.front.values[name]))
            for name in circuit.front.keys
        }
        self._rows = self._made(embed_rows(circuit, tokens, len(circuit.prefix)))[None]
        self._last = of(circuit.stages, Residual)[-1].writes
        self._until = _last_uses(circuit.stages)
        self.fused = Fused()
        shape, on_gpu = circuit.shape, self._device.type == "cuda"
        self._each = tokens.size * (4 * shape.hidden + 10 * shape.width) * self._dtype.itemsize
        room = MEMORY[self._device.type]
        if on_gpu:
            room = min(room, int(SHARE * torch.cuda.mem_get_info()[0]))
        self.together = max(1, room // self._each)
        self._band = ROWS_ON_GPU if on_gpu else ROWS

    def memory(self, candidates: int) -> int:
        """Bytes that running so many candidates takes at most: weights, values, and score matrices in the making."""
        shape, windows, length = self.circuit.shape, *self.tokens.shape
        columns = length + len(self.circuit.prefix)
        scores = SCORES * GROUPS * windows * shape.heads * min(self._band, length) * columns
        weights = sum(weight.numel() for weight, _ in self._linears.values()) + shape.vocabulary * shape.width
        logits = 3 * length * shape.vocabulary
        return min(candidates, self.together) * self._each + (scores + weights + logits) * self._dtype.itemsize

    @torch.no_grad()
    def errors(self, counts: Counts, reference: Tensor) -> NDArray[np.float64]:
        """Mean absolute error of the last block's hidden states against a reference (B, T, d), a candidate each.

        The states are meant as the final norm reads them: what it makes of them, led back through an exact norm. So its
        own counts are seen too; a search that did not see them would starve it. A candidate whose values are not finite
        has an infinite error.
        """
        found = np.empty(len(counts))
        for chosen in self._batches(counts):
            with products(self._precision):
                hidden = self._led_back(self._run(counts[chosen], self._last), counts[chosen])
            each = torch.stack([(row - reference).abs().mean(dtype=torch.float64) for row in hidden.value])
            found[chosen] = each.cpu().numpy()[hidden.group]
        return np.where(np.isfinite(found), found, np.inf)

    def _led_back(self, hidden: Grouped, counts: Counts) -> Grouped:
        """What an exact final norm would have to read to give what this one gives."""
        stage = writers(self.circuit.stages)[of(self.circuit.stages, Head)[0].reads]
        if not isinstance(stage, Norm) or stage.reads != self._last:
            return hidden
        normed = self._norm(stage, hidden, counts)
        mean_square = (hidden.value * hidden.value).mean(dim=-1, keepdim=True) + stage.eps
        _, first = np.unique(normed.group, return_index=True)
        root = Grouped(mean_square.sqrt(), hidden.group).at(hidden.group[first])
        return Grouped(normed.value * root, normed.group)

    @torch.no_grad()
    def nats(self, counts: Counts, targets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Mean loss of the next tokens (B, T), a candidate each; infinite where a window diverges."""
        labels = torch.from_numpy(np.array(targets, dtype=np.int64)).to(self._device)
        weight, bias = self._head
        (stage,) = of(self.circuit.stages, Head)
        found = np.empty(len(counts))
        for chosen in self._batches(counts):
            with products(self._precision):
                last = self._run(counts[chosen], stage.reads)
                each = torch.stack([self._loss(row, labels, weight, bias) for row in last.value])
            found[chosen] = each.cpu().numpy()[last.group]
        return np.where(np.isfinite(found), found, np.inf)

    @cached_property
    def _head(self) -> tuple[Tensor, Tensor]:
        head = self.circuit.folded.head
        return self._made(head.weight), self._made(head.bias)

    def reference(self) -> Tensor:
        """The last block's hidden states (B, T, d) of the model itself, with no approximation, from float64."""
        return self._made(exact_hidden(self.circuit, self.tokens))

    def _batches(self, counts: Counts) -> Iterator[Index]:
        """Which candidates run together: neighbours in order, so that those with a common beginning meet."""
        order = np.lexsort(counts.T[::-1])
        for start in range(0, len(order), self.together):
            yield order[start : start + self.together]

    def _loss(self, rows: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Mean loss over the windows (B, T, d) of one group, a window's logits at a time."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for window, wanted in zip(rows, labels):
            logits = window @ weight + bias
            if bool(self.circuit.calibration.diverged(logits).any()):
                return total + math.inf
            total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum").double()
        return total / labels.numel()

    def _made(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self._device, self._dtype)

    def _run(self, counts: Counts, wanted: str) -> Grouped:
        """Walk the stages up to the value wanted."""
        values: dict[str, Grouped] = {}
        for number, stage in enumerate(self.circuit.stages):
            made = self._stage(stage, values, counts)
            if stage.writes == wanted:
                return made
            values[stage.writes] = made
            for name in [name for name in values if self._until.get(name, -1) <= number and name != stage.writes]:
                del values[name]
        raise ConfigError(f"{wanted}: no stage of circuit {self.circuit.name} writes it")

    def _stage(self, stage: Stage, values: Mapping[str, Grouped], counts: Counts) -> Grouped:
        if isinstance(stage, Embed):
            return Grouped(self._rows, np.zeros(len(counts), dtype=np.int64))
        if isinstance(stage, Norm):
            return self._norm(stage, values[stage.reads], counts)
        if isinstance(stage, Attention):
            return self._attention(stage, [values[name] for name in stage.inputs], counts)
        if isinstance(stage, Linear):
            given = values[stage.reads]
            weight, bias = self._linears[stage.name]
            flat = torch.addmm(bias, given.value.flatten(0, -2), weight)
            return Grouped(flat.view(*given.value.shape[:-1], -1), given.group)
        if isinstance(stage, Activation):
            given, fit = values[stage.reads], self.circuit.calibration.activations[stage.name].fit
            run = self._fused(stage.name, partial(_activated, fit=fit))
            return Grouped(_in_parts(run, given.value)[0], given.group)
        if isinstance(stage, (Gate, Residual)):
            a = values[stage.reads]
            b = values[stage.by if isinstance(stage, Gate) else stage.branch]
            pairs, group = split(a.group, b.group)
            left, right = a.at(pairs[:, 0]), b.at(pairs[:, 1])
            return Grouped(left * right if isinstance(stage, Gate) else left + right, group)
        raise ConfigError(f"{stage.label}: the search knows no way to run a {type(stage).__name__} for many counts")

    def _counts(self, name: str, counts: Counts) -> Index:
        """The count of a site by candidate."""
        if name in self._column:
            return np.asarray(counts[:, self._column[name]])
        return np.full(len(counts), self._own[name])

    def _see(self, name: str, value: Tensor, turn: int = 0) -> Tensor:
        """The value as the circuit meets it: with noise, if there is any."""
        if not self.sigma:
            return value
        key = np.random.SeedSequence([self.seed, turn, *name.encode()]).generate_state(1, np.uint64)[0]
        source = torch.Generator(self._device).manual_seed(int(key >> 1))
        noise = torch.randn(value.shape[1:], generator=source, device=self._device, dtype=self._dtype)
        return value + self.sigma * noise

    def _norm(self, stage: Norm, x: Grouped, counts: Counts) -> Grouped:
        c, gain = self.circuit.calibration.norms[stage.name], math.sqrt(self.circuit.shape.width)
        z = (x.value * x.value).sum(dim=-1, keepdim=True) + c.width * c.eps
        z = self._see(f"{stage.name}/z", z)
        pair = [self._counts(f"{stage.name}/{part}", counts) for part in ("goldschmidt", "newton")]
        rows, group = split(x.group, *pair)
        root = _by_count(
            Grouped(z, x.group).at(rows[:, 0]), rows[:, 1:], lambda z, a, b: inverse_sqrt(z, c.fit, a, b, gain=gain)
        )
        return Grouped(x.at(rows[:, 0]) * self._see(f"{stage.name}/root", root), group)

    def _attention(self, stage: Attention, given: list[Grouped], counts: Counts) -> Grouped:
        fit = self.circuit.calibration.softmaxes[stage.name].fit
        one = given[0].group
        if any(not np.array_equal(one, part.group) for part in given):
            raise ConfigError(f"{stage.name}: queries, keys and values come from different candidates")
        q, k, v = self._heads(stage, [part.value for part in given])
        sums, largest, out = self._summed(stage, fit, q, k, v)
        rows, group = split(one, *(self._counts(f"{stage.name}/{part}", counts) for part in ("init", "refine")))
        source, start = rows[:, 0], k.shape[-2] - q.shape[-2]
        length = torch.arange(start + 1, k.shape[-2] + 1, device=self._device, dtype=self._dtype)[:, None]

        def at(value: Tensor) -> Tensor:
            return Grouped(value, one).at(source)

        def solved(fitted: Any, s: Tensor, column: int, turn: int) -> Tensor:
            s = self._see(f"{stage.name}/sum{'2' if turn else ''}", s, turn)
            found = _by_count(
                s, rows[:, column : column + 1], lambda s, n: reciprocal(s, fitted, n, scale=1.0 / length)
            )
            return self._see(f"{stage.name}/inverse", found, turn)

        scale = at(largest) * solved(fit.init, at(largest * sums[0]), 1, 0)
        for turn in range(1, fit.passes + 1):
            square = scale * scale
            scale = square * solved(fit.refine, square * at(sums[turn]), 2, turn)
        joined = (at(out) * (scale / length)).transpose(2, 3).flatten(-2)
        return Grouped(joined, group)

    def _heads(self, stage: Attention, given: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (G, B, h, T, e), turned by their positions, those of a prefix in front."""
        shape = self.circuit.shape
        parts = given[0].chunk(3, dim=-1) if len(given) == 1 else given
        q, k, v = (part.unflatten(-1, (shape.heads, shape.head_width)).transpose(2, 3) for part in parts)
        if stage.rotary is not None:
            positions = len(self.circuit.prefix) + np.arange(q.shape[-2])
            cosine, sine = (self._made(part) for part in turns(stage.rotary, shape.head_width, positions))
            q, k = (part * cosine + part.roll(shape.head_width // 2, -1) * sine for part in (q, k))
        if stage.name in self._front:
            front = [part.expand(*k.shape[:2], *part.shape) for part in self._front[stage.name]]
            k, v = torch.cat([front[0], k], dim=-2), torch.cat([front[1], v], dim=-2)
        return q, k, v

    def _summed(
        self, stage: Attention, fit: SoftmaxFit, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Of each row's exponentials over their largest one: sums of their powers 1, 2, 4, ...; that largest one; and
        the last power times the values."""
        start = k.shape[-2] - q.shape[-2]
        parts = []
        for top in range(0, q.shape[-2], self._band):
            rows = q[..., top : top + self._band, :] * (2.0 / (fit.width * stage.divisor(q.shape[-1])))
            columns = start + top + rows.shape[-2]
            keys, values = k[..., :columns, :].transpose(-1, -2), v[..., :columns, :]
            powers = self._fused(f"{stage.name} {columns}", partial(_powers, diagonal=start + top, fit=fit))
            noise = None
            if self.sigma:
                nothing = torch.zeros_like(rows[:1, ..., :1] * keys[:1, ..., :1, :])
                noise = self._see(f"{stage.name}/scores", nothing, top) * (2.0 / fit.width)  # t is a multiple of scores

            def attend(q: Tensor, k: Tensor, v: Tensor, run: Rowwise = powers, noise: Tensor | None = noise) -> Parts:
                scores = torch.matmul(q, k)
                *sums, y = run(scores if noise is None else scores + noise)
                return (*sums, torch.matmul(y, v))

            parts.append(_in_parts(attend, rows, keys, values))
        joined = [torch.cat(column, dim=-2) for column in zip(*parts)]
        return joined[1:-1], joined[0], joined[-1]

    def _fused(self, name: str, function: Rowwise) -> Rowwise:
        """A function of one tensor, elementwise or along rows, as a device runs it fast."""
        return self.fused(name, function) if self._device.type == "cuda" else piecewise(function)


@contextmanager
def products(precision: str) -> Iterator[None]:
    """How precisely a GPU multiplies float32 matrices meanwhile, whatever this process has set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _activated(x: Tensor, fit: ActivationFit) -> Parts:
    return (activation(x * (1.0 / fit.bound), fit),)


def _powers(scores: Tensor, diagonal: int, fit: SoftmaxFit) -> Parts:
    """From scores over half their width, those up to a diagonal: a row's largest exponential; sums of powers 1, 2, 4,
    ... of its exponentials over that; and the last powers. The largest is taken out so that no power overflows."""
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(diagonal)
    t = torch.where(keep, scores - fit.midpoint * (2.0 / fit.width), 0.0)
    y = torch.where(keep, exponential(t, fit.exponential), 0.0)
    largest = y.amax(dim=-1, keepdim=True)
    y = y / largest
    sums = [y.sum(dim=-1, keepdim=True)]
    for _ in range(fit.passes):
        y = y * y
        sums.append(y.sum(dim=-1, keepdim=True))
    return largest, *sums, y


def _in_parts(function: Callable[..., Parts], *given: Tensor) -> Parts:
    """What a function makes of groups, GROUPS at a time: memory stays bounded. On a GPU the last ones are filled up, so
    that all have one shape: nothing is compiled twice."""
    found = []
    for start in range(0, len(given[0]), GROUPS):
        parts = [x[start : start + GROUPS] for x in given]
        size = len(parts[0])
        if size < GROUPS and parts[0].is_cuda:
            parts = [torch.cat([x, x[-1:].expand(GROUPS - size, *x.shape[1:])]) for x in parts]
        found.append(tuple(y[:size] for y in function(*parts)))
    return tuple(torch.cat(column) for column in zip(*found)) if len(found) > 1 else found[0]


def _by_count(x: Tensor, counts: Index, solve: Callable[..., Tensor]) -> Tensor:
    """``solve(x, *counts)`` of every group (G, ...), those of equal counts (G, k) together."""
    distinct, which = np.unique(counts, axis=0, return_inverse=True)
    which = np.asarray(which).reshape(-1)
    out = torch.empty_like(x)
    for number, row in enumerate(distinct):
        members = torch.as_tensor(np.flatnonzero(which == number), device=x.device)
        out[members] = solve(x[members], *(int(count) for count in row))
    return out


def _last_uses(stages: Sequence[Stage]) -> dict[str, int]:
    """The number of the last stage that reads each value."""
    found: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for name in stage.inputs:
            found[name] = number
    return found


def exact_hidden(circuit: Circuit, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """The last block's hidden states (B, T, d) in float64 with exact norms, softmaxes and activations."""
    wanted, rows = of(circuit.stages, Residual)[-1].writes, []

    def tap(name: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
        if name == wanted:
            rows.append(value)
        return value

    for window in tokens:
        exact_forward(
            circuit, embed_rows(circuit, window, len(circuit.prefix)), circuit.front.spread(()), tap=tap, exact=True
        )
    return np.stack(rows)
