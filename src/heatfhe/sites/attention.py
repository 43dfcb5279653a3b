# SPDX-License-Identifier: Apache-2.0
"""Attention with its two sites: the first reciprocal of a row's sum, and the one shared by the later passes.

Shapes: B sequences, H heads, K heads of keys and values, T rows, S columns (cached ones first), e head width; d = H e.

A forward is computed eagerly on scores (B, H, T, S), by torch's own kernel when everything is exact, or while training
on a GPU by heatfhe.sites.fused, which never stores the scores. With delta_2 = 2 that needs only the row sums
S1 = sum e, S2 = sum e^2 and A = sum e^2 v of one sweep: the output is A r1^2 r2 / row_length with r1 = init(S1) and
r2 = refine(r1^2 S2), because r1 is constant along a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from heatfhe.approx import reciprocal, softmax
from heatfhe.errors import ConfigError, SiteError
from heatfhe.halting import HaltingTable, expected_reciprocal
from heatfhe.models import Architecture
from heatfhe.records import SoftmaxCalibration
from heatfhe.sites.switch import Switch
from heatfhe.stages import Attention, Linear, layers, readers, turns, writers

Solve = Callable[[Tensor], Tensor]


class AttentionSite(nn.Module):
    """Stands where an attention stood and holds the same children under the same names.

    The graph of stages says which of them make queries, keys and values, and which takes the output.
    """

    def __init__(
        self,
        original: nn.Module,
        stage: Attention,
        architecture: Architecture,
        switch: Switch,
        table: list[HaltingTable],
    ) -> None:
        super().__init__()
        for name, child in original.named_children():
            self.add_module(name, child)
        self.stage, self.switch, self._table = stage, switch, table
        self.layer = layers(architecture.stages)[stage.name]
        self.original = (original,)  # in a tuple, so that torch does not count it as a child
        self.calibration: SoftmaxCalibration | None = None
        made = writers(architecture.stages)
        projections = [made[value] for value in stage.inputs]
        outputs = readers(architecture.stages, stage.writes)
        inside, dropouts = f"{architecture.paths[stage.name]}.", architecture.dropouts

        def within(path: str) -> str:
            if not path.startswith(inside):
                raise ConfigError(f"{stage.name}: {path} must be a module inside {inside[:-1]}")
            return path[len(inside) :]

        if len(outputs) != 1 or not all(isinstance(s, Linear) for s in (*projections, *outputs)):
            raise ConfigError(f"{stage.name}: an attention stands between linear stages, one of them after it")
        self._projections = [within(architecture.paths[s.label]) for s in projections]
        last = architecture.paths[outputs[0].label]
        after = (
            [last, dropouts.get(outputs[0].label)] if last.startswith(inside) else []
        )  # or the model calls it itself
        self._outputs = [within(path) for path in after if path is not None]
        self._dropout = within(dropouts[stage.name]) if stage.name in dropouts else None

    def forward(self, hidden_states: Tensor, *_: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Output, projected where that is done inside, and None for the attention weights, which are never formed."""
        switch, stage = self.switch, self.stage
        if kwargs.get("layer_past") is not None or kwargs.get("encoder_hidden_states") is not None:
            raise ConfigError(f"{stage.name}: a legacy cache or an encoder cannot be used here; pass use_cache=False")
        made = [self.get_submodule(name)(hidden_states) for name in self._projections]
        made = [switch.see_rows(value, part) for value, part in zip(stage.inputs, made, strict=True)]
        cache = kwargs.get("past_key_values", kwargs.get("past_key_value"))  # the name depends on transformers' version
        kernels = switch.kernels(made[0])
        if kernels is not None and cache is None and not self.dropout and kernels.supports(self, made):
            return self._project(kernels.attend(self, made)), None
        head_width = self.head_width(made)
        parts = made if len(made) == 3 else made[0].split(stage.widths(head_width), dim=-1)
        q, k, v = (part.unflatten(-1, (-1, head_width)).transpose(1, 2) for part in parts)
        if stage.rotary is not None:
            q, k = self._turned(q, k, 0 if cache is None else int(cache.get_seq_length(self.layer)))
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        if switch.tap is not None:
            for name, part in (("q", switch.private(q)), ("k", k), ("v", v)):
                switch.tap(f"{stage.name}/{name}", part)
        if stage.shared > 1:
            k, v = (part.repeat_interleave(stage.shared, dim=1) for part in (k, v))
        exact = switch.mode == "exact" and switch.tap is None and switch.bounds is None
        if exact:
            out = attend_exactly(self, q, k, v)
        else:
            front = k[..., : switch.public, :], v[..., : switch.public, :]
            out = switch.behind(
                lambda rows: attend_exactly(self, rows, *front), lambda rows: attend_eagerly(self, rows, k, v), q
            )
        out = switch.see_rows(stage.writes, out.transpose(1, 2).flatten(-2).to(made[0].dtype))
        return self._project(out), None

    def _turned(self, q: Tensor, k: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Queries and keys turned by their positions; the model's own angles are float32 whatever its weights are."""
        rows, width = q.shape[-2:]
        tables = self.angles(width, start + rows, q.device, q.dtype)
        cosine, sine = (table[start : start + rows] for table in tables)
        return q * cosine + q.roll(width // 2, -1) * sine, k * cosine + k.roll(width // 2, -1) * sine

    def angles(self, width: int, rows: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of at least so many positions, each (positions, head width)."""
        base = self.stage.rotary
        assert base is not None
        return _tables(base, width, 1 << max(rows - 1, 0).bit_length(), device, dtype)

    def head_width(self, made: Sequence[Tensor]) -> int:
        """Entries of a head, from what the projections made."""
        return sum(part.shape[-1] for part in made) // (self.stage.heads + 2 * self.stage.cached)

    def _project(self, out: Tensor) -> Tensor:
        for name in self._outputs:
            out = self.get_submodule(name)(out)
        return out

    @property
    def table(self) -> HaltingTable:
        """The distributions in use."""
        return self._table[0]

    @property
    def dropout(self) -> float:
        """Dropout on attention probabilities, zero outside training."""
        return float(self.get_submodule(self._dropout).p) if self._dropout and self.training else 0.0

    def key_bias(self) -> tuple[nn.Parameter, slice] | None:
        """The parameter that is added to the keys and where in it they stand; None of keys that nothing is added to.

        Keys that turn with their position turn what is added to them too: no constant reaches their scores.
        """
        owner = self.get_submodule(self._projections[min(1, len(self._projections) - 1)])
        bias = getattr(owner, "bias", None)
        if self.stage.rotary is not None or not isinstance(bias, nn.Parameter):
            return None
        if len(self._projections) == 3:
            return bias, slice(None)
        head_width = len(bias) // (self.stage.heads + 2 * self.stage.cached)
        start, count, _ = self.stage.widths(head_width)
        return bias, slice(start, start + count)

    def fitted(self) -> SoftmaxCalibration:
        """The calibration in use."""
        if self.calibration is None:
            raise SiteError(f"{self.stage.name}/init", "is not calibrated; run calibrate first")
        return self.calibration

    def ends(self, columns: int) -> tuple[float, float]:
        """Where the guards of both sums' means stand: a slack below the ends of their domains.

        The mean of squares never exceeds the row's length (the first reciprocal comes from below): a domain that ends
        there cannot be left and needs no slack, and no guard stands below what was seen.
        """
        c, slack = self.fitted(), self.switch.slack
        if c.fit.refine is None or c.observed_refine is None:
            return c.fit.init.hi / slack, c.fit.init.hi
        end = c.fit.refine.hi
        return c.fit.init.hi / slack, end if end >= columns else min(end, max(end / slack, c.observed_refine.hi))

    def hold(self, heights: Tensor) -> None:
        """Add what the logarithms (B, H, T, 1) of rows' mean exponentials exceed their bound by to the range loss."""
        bounds = self.switch.bounds
        assert bounds is not None
        self.switch.penalise("denominator", heights.clamp(min=0.0), bounds.denominator, _tokens(heights))

    def solvers(self, row_length: Tensor, like: Tensor) -> tuple[Solve, Solve]:
        """init and refine: each takes a row's sum and returns row_length over it, in the switch's mode and guarded.

        The guard is on the upper side alone: a Goldschmidt iteration converges for every sum below its domain and
        diverges just above it. ``row_length`` broadcasts against the sums.
        """
        first_end, second_end = self.ends(like.shape[-1])
        switch, name, fit = self.switch, self.stage.name, self.fitted().fit
        second = fit.refine if fit.refine is not None else fit.init
        first_p = switch.distribution(self.table, f"{name}/init", like)
        second_p = switch.distribution(self.table, f"{name}/refine", like)
        inverse_length = 1.0 / row_length

        def init(s: Tensor) -> Tensor:
            mean = switch.see(f"{name}/sum", s) * inverse_length
            if switch.bounds is not None:
                self.hold(torch.log(mean) + fit.midpoint / fit.delta_2)
            mean = switch.clamp(mean, None, first_end)
            if first_p is None:
                return switch.see(f"{name}/inverse", reciprocal(mean, fit.init, switch.count(f"{name}/init")))
            return switch.see(f"{name}/inverse", expected_reciprocal(mean, fit.init, first_p))

        def refine(s: Tensor) -> Tensor:
            mean = switch.clamp(switch.see(f"{name}/sum2", s) * inverse_length, None, second_end)
            if second_p is None:
                return switch.see(f"{name}/inverse", reciprocal(mean, second, switch.count(f"{name}/refine")))
            return switch.see(f"{name}/inverse", expected_reciprocal(mean, second, second_p))

        return init, refine


@cache
def _tables(base: float, width: int, rows: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Angles on a device, of a power of two of rows: few tables, never let go, since captured updates read them."""
    with torch.inference_mode(False):
        cosine, sine = (torch.as_tensor(part).to(device, dtype) for part in turns(base, width, range(rows)))
    return cosine, sine


def attend_eagerly(site: AttentionSite, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention output (B, H, T, e) from q (B, H, T, e) and k, v (B, H, S, e), through the whole score matrix."""
    switch, name = site.switch, site.stage.name
    narrow = q.dtype not in (torch.float32, torch.float64)
    with torch.autocast(q.device.type, enabled=False):
        if narrow:
            q, k, v = q.float(), k.float(), v.float()
        rows, columns = q.shape[-2], k.shape[-2]
        position = torch.arange(columns - rows, columns, device=q.device)[:, None]
        if not site.stage.causal:
            position = torch.full_like(position, columns - 1)
        keep = torch.arange(columns, device=q.device)[None, :] <= position
        scores = torch.matmul(q, k.transpose(-1, -2)) / site.stage.divisor(q.shape[-1])
        if switch.bounds is not None:
            largest = torch.where(keep, scores, 0.0).abs().amax(dim=-1)
            switch.penalise("score", largest, switch.bounds.score, largest.numel())
        scores = switch.see(f"{name}/scores", scores)
        if switch.mode == "exact":
            if switch.guards and switch.bounds is not None:
                scores = scores.clamp(-switch.bounds.score, switch.bounds.score)
            open_ = torch.where(keep, scores, -torch.inf)
            if switch.bounds is not None:
                sums = torch.logsumexp(open_ / switch.bounds.divisor, dim=-1, keepdim=True)
                site.hold(sums - torch.log(position + 1.0))
            probabilities = torch.softmax(open_, dim=-1)
        else:
            probabilities = _approximate(site, scores, keep, (position + 1).to(scores.dtype))
        return torch.matmul(nn.functional.dropout(probabilities, site.dropout), v)


def _approximate(site: AttentionSite, scores: Tensor, keep: Tensor, row_length: Tensor) -> Tensor:
    fit, switch = site.fitted().fit, site.switch
    mask = keep.to(scores.dtype)
    inside = switch.clamp(torch.where(keep, scores, fit.midpoint), fit.lo, fit.hi)  # no push on what is masked
    t = (inside - fit.midpoint) * (2.0 / fit.width)
    init, refine = site.solvers(row_length, scores)
    exponent = fit.width / (2.0 * fit.delta_2)
    y = softmax(
        t,
        fit,
        row_sum=lambda r: r.sum(dim=-1, keepdim=True),
        mask=mask,
        init=init,
        refine=refine,
        exponentiate=None if switch.mode == "deployed" else lambda t: torch.exp(t * exponent) * mask,
    )
    return y / row_length


def attend_exactly(site: AttentionSite, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exact attention by torch's own kernel, for passes in which nothing is approximated, watched or bounded."""
    rows, columns = q.shape[-2], k.shape[-2]
    options: dict[str, Any] = {"dropout_p": site.dropout, "scale": site.stage.scale}
    if rows == columns or not site.stage.causal:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=site.stage.causal, **options)
    keep = torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(columns - rows)
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, **options)


def _tokens(rows: Tensor) -> int:
    """Tokens behind a (B, H, T, 1) tensor."""
    return rows.shape[0] * rows.shape[-2]
