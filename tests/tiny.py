# SPDX-License-Identifier: Apache-2.0
"""Small random circuits, calibrated on random tokens by an exact numpy model: no torch, the same for the same seed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import (
    ArgmaxRound,
    ArgmaxSchedule,
    ReciprocalFit,
    exact_activation,
    fit_activation,
    fit_inverse_sqrt,
)
from heatfhe.approx.argmax import raise_to
from heatfhe.circuit import Circuit
from heatfhe.models import gpt2_stages
from heatfhe.planning import Plan
from heatfhe.records import (
    ActivationCalibration,
    ArgmaxCalibration,
    Calibration,
    Domain,
    NormCalibration,
    SoftmaxCalibration,
)
from heatfhe.stages import Activation, Attention, Embed, Head, Linear, Norm, Residual, Shape, Stage
from tests.approx.worst_case import fit_softmax, smallest_counts

Array = NDArray[Any]


@lru_cache(maxsize=32)
def tiny_circuit(
    layers: int = 2,
    width: int = 16,
    heads: int = 2,
    vocabulary: int = 64,
    context: int = 16,
    seed: int = 0,
    hidden: int | None = None,
    tolerance: float = 1e-3,
    sequences: int = 24,
) -> Circuit:
    """A GPT-2-shaped circuit with random weights whose domains were measured on random tokens."""
    shape = Shape(
        layers=layers, width=width, heads=heads, hidden=hidden or 4 * width, vocabulary=vocabulary, context=context
    )
    rng = np.random.default_rng(seed)
    weights = random_weights(shape, rng)
    stages = gpt2_stages(shape, tied=False)
    tokens = rng.integers(0, vocabulary, size=(sequences, context))
    calibration = calibrate(shape, stages, weights, tokens, tolerance)
    return Circuit(name=f"tiny-{seed}", shape=shape, stages=stages, weights=weights, calibration=calibration)


def random_weights(shape: Shape, rng: np.random.Generator) -> dict[str, Array]:
    """Weights of the usual sizes: unit rows after a norm stay near one, logits spread over a few units."""
    d, f = shape.width, shape.hidden

    def normal(*size: int, scale: float) -> Array:
        return (scale * rng.standard_normal(size)).astype(np.float32)

    out = {"wte.weight": normal(shape.vocabulary, d, scale=1.0), "wpe.weight": normal(shape.context, d, scale=0.1)}
    for l in range(shape.layers):
        for name in (f"h.{l}.ln_1", f"h.{l}.ln_2"):
            out |= {f"{name}.weight": 1 + normal(d, scale=0.1), f"{name}.bias": normal(d, scale=0.05)}
        for name, inner, outer in (
            ("attn.c_attn", d, 3 * d),
            ("attn.c_proj", d, d),
            ("mlp.c_fc", d, f),
            ("mlp.c_proj", f, d),
        ):
            scale = 0.6 / math.sqrt(inner)
            out[f"h.{l}.{name}.weight"] = normal(inner, outer, scale=scale)
            out[f"h.{l}.{name}.bias"] = normal(outer, scale=0.05)
    out["lm_head.weight"] = out["wte.weight"][rng.permutation(shape.vocabulary)]  # untied, so that tokens change
    return out | {"ln_f.weight": 1 + normal(d, scale=0.1), "ln_f.bias": normal(d, scale=0.05)}


def exact_values(shape: Shape, stages: tuple[Stage, ...], weights: dict[str, Array], tokens: Array) -> dict[str, Array]:
    """Every stage's value under exact layer norms, softmaxes and activations; scores under ``<name>/scores``."""
    w = {k: np.asarray(v, dtype=np.float64) for k, v in weights.items()}
    v: dict[str, Array] = {}
    for s in stages:
        if isinstance(s, Embed):
            x = w[s.token] + 0.0
            x, position = x - x.mean(-1, keepdims=True), w[s.position] - w[s.position].mean(-1, keepdims=True)
            v[s.writes] = x[tokens] + position[: tokens.shape[-1]]
        elif isinstance(s, Norm):
            x = v[s.reads] - v[s.reads].mean(-1, keepdims=True)
            z = (x * x).sum(-1, keepdims=True) + shape.width * s.eps
            v[f"{s.name}/z"] = z
            v[s.writes] = x * math.sqrt(shape.width) / np.sqrt(z)
            v[f"{s.name}/scaled"] = v[s.writes] * w[s.weight] + w[s.bias]
        elif isinstance(s, Linear):
            out = v.get(f"{s.reads}/scaled", v[s.reads]) @ w[s.weight] + w[s.bias]
            v[s.writes] = out - out.mean(-1, keepdims=True) if s.residual else out
        elif isinstance(s, Attention):
            q, k, u = (
                part.reshape(*part.shape[:-1], shape.heads, -1).swapaxes(-2, -3) for part in np.split(v[s.reads], 3, -1)
            )
            v |= {f"{s.name}/q": q, f"{s.name}/k": k, f"{s.name}/v": u}
            scores = q @ k.swapaxes(-1, -2) / math.sqrt(shape.head_width)
            seen = np.tril(np.ones(scores.shape[-2:], dtype=bool))
            v[f"{s.name}/scores"] = scores[..., seen]
            e = np.where(seen, np.exp(scores), 0.0)
            out = e / e.sum(-1, keepdims=True) @ u
            v[s.writes] = out.swapaxes(-2, -3).reshape(v[s.reads].shape[:-1] + (shape.width,))
        elif isinstance(s, Activation):
            v[s.writes] = exact_activation(s.function)(v[s.reads])
        elif isinstance(s, Residual):
            v[s.writes] = v[s.reads] + v[s.branch]
        elif isinstance(s, Head):
            v[s.writes] = v[f"{s.reads}/scaled"] @ w[s.weight].T
    return v


def calibrate(
    shape: Shape, stages: tuple[Stage, ...], weights: dict[str, Array], tokens: Array, tolerance: float
) -> Calibration:
    """Domains with room around what the exact model shows, and the smallest counts that meet the tolerance."""
    v = exact_values(shape, stages, weights, tokens)
    norms, rows, activations = {}, {}, {}
    for s in stages:
        if isinstance(s, Norm):
            z = v[f"{s.name}/z"]
            fit = fit_inverse_sqrt(float(z.min()) / 2.5, float(z.max()) * 1.6)
            goldschmidt_count, newton_count = fit.smallest_counts(tolerance)
            norms[s.name] = NormCalibration(
                name=s.name, width=shape.width, eps=s.eps, fit=fit, goldschmidt_count=goldschmidt_count,
                newton_count=newton_count, observed=Domain(lo=float(z.min()), hi=float(z.max())),
            )  # fmt: skip
        elif isinstance(s, Attention):
            scores = v[f"{s.name}/scores"]
            lo, hi = float(scores.min()), float(scores.max())
            room = 0.25 * (hi - lo)
            ends, rows_ = (lo - room, hi + room), max(2, shape.context)
            counts = smallest_counts(fit_softmax(*ends, row_length=rows_, deltas=(2, 2)), tolerance, shape.context)
            init_count, refine_count = counts
            soft = fit_softmax(*ends, row_length=rows_, deltas=(2, 2), init_count=init_count)
            rows[s.name] = SoftmaxCalibration(
                name=s.name, fit=soft, init_count=init_count, refine_count=refine_count, observed=Domain(lo=lo, hi=hi),
                observed_init=Domain(lo=soft.init.lo, hi=soft.init.hi, how="assumed"),
            )  # fmt: skip
        elif isinstance(s, Activation):
            x = v[s.reads]
            bound = 1.4 * float(np.abs(x).max())
            activations[s.name] = ActivationCalibration(
                name=s.name, fit=fit_activation(s.function, bound, tolerance=0.02),
                observed=Domain(lo=float(x.min()), hi=float(x.max())),
            )  # fmt: skip
    hidden = ("/z", "/scaled", "/scores")
    sizes = {k: 1.5 * float(np.abs(a).max()) for k, a in v.items() if not k.endswith(hidden)}
    schedule = argmax_schedule(v["logits"].reshape(-1, shape.vocabulary))
    return Calibration(
        fingerprint="tiny", tolerance=tolerance, rule="tiny", solver="plain", context=shape.context,
        sequences=len(tokens), norms=norms, softmaxes=rows, activations=activations,
        argmax=ArgmaxCalibration(schedule=schedule), magnitudes=sizes,
    )  # fmt: skip


def argmax_schedule(logits: Array, powers: tuple[int, ...] = (3, 3, 3)) -> ArgmaxSchedule:
    """Rounds fitted one after the other on these rows; the first is shifted up so that negative tails cannot win."""
    x, rounds = logits, []
    for k, power in enumerate(powers):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        leader = (centred / np.sqrt(variance)).max(-1)
        shift = 0.3 if k == 0 else 0.0
        largest = 1.25 * float(leader.max()) if k == 0 else 1.05 * math.sqrt(x.shape[-1] - 1)  # Samuelson's inequality
        divisor = largest / (1.0 - shift)
        fit = fit_inverse_sqrt(float(variance.min()) / 4, float(variance.max()) * 4)
        goldschmidt_count, newton_count = fit.smallest_counts(1e-2)
        rounds.append(
            ArgmaxRound(
                power=power,
                divisor=divisor,
                seed=fit,
                newton_count=newton_count,
                goldschmidt_count=goldschmidt_count,
                shift=shift,
            )
        )
        x = raise_to(centred / (divisor * np.sqrt(variance)) + shift, power)
    total = x.sum(-1)
    final = ReciprocalFit(lo=float(total.min()) / 4, hi=float(total.max()) * 4)
    return ArgmaxSchedule(rounds=tuple(rounds), final=final, final_count=final.smallest_count(1e-2))


def wide_circuit() -> Circuit:
    """A tiny circuit whose first reciprocals have domains that reach far beyond its text, and so many iterations."""
    circuit = tiny_circuit(layers=1, width=16, vocabulary=32, context=16)
    softmaxes = {
        n: replace(
            c, init_count=22, fit=replace(c.fit, init=ReciprocalFit(lo=c.fit.init.lo / 1e3, hi=c.fit.init.hi * 1e3))
        )
        for n, c in circuit.calibration.softmaxes.items()
    }
    return replace(circuit, calibration=replace(circuit.calibration, softmaxes=softmaxes))


def narrowed(plan: Plan, share: float) -> Plan:
    """The plan with every refresh told to expect this share of the magnitudes it was planned for."""
    programs = {
        name: replace(p, steps=tuple(replace(s, bound=s.bound * share) for s in p.steps))
        for name, p in plan.programs.items()
    }
    return replace(plan, programs=programs)


def narrow_sums(circuit: Circuit, by: float) -> Circuit:
    """The circuit with the domains of its softmaxes' first sums ending ``by`` times nearer: some windows diverge."""
    rows = {
        name: replace(c, fit=replace(c.fit, init=replace(c.fit.init, hi=max(c.fit.init.hi / by, 2.0 * c.fit.init.lo))))
        for name, c in circuit.calibration.softmaxes.items()
    }
    return replace(circuit, calibration=replace(circuit.calibration, softmaxes=rows))
