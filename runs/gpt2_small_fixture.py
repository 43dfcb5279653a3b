# SPDX-License-Identifier: Apache-2.0
"""GPT-2 small with the HEAT paper's counts as a Circuit: its shape, counts and domains, with weights all equal.

The paper gives family totals, not every site. HEAT: LayerNorm Goldschmidt 3 and Newton 2 each, softmax initialisation
2 each, refinement 8 in block 0 and 71 over the other eleven, one pass. Calibrated: totals 235 / 63 / 105 / 309 over 36
passes, two to five a block. Domains are typical ones; they set magnitudes, not the number of operations.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.approx import (
    ArgmaxSchedule,
    ReciprocalFit,
    SoftmaxFit,
    fit_activation,
    fit_exponential,
    fit_inverse_sqrt,
)
from heatfhe.circuit import Circuit
from heatfhe.models import gpt2_stages
from heatfhe.records import (
    ActivationCalibration,
    ArgmaxCalibration,
    Calibration,
    Domain,
    NormCalibration,
    SoftmaxCalibration,
)
from heatfhe.stages import Shape

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY = 12, 768, 12, 3072, 50257
HEAT_REFINE = (8, 7, 7, 7, 7, 7, 7, 6, 6, 6, 6, 5)
CALIBRATED_PASSES = (5, 4, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2)
POWERS = (3, 3, 3, 3, 3, 7)  # the paper's 9, 3, 3, 3, 7 with its 9 as two threes


def spread(total: int, places: int) -> list[int]:
    """A total spread evenly, the larger shares first."""
    return [total // places + (i < total % places) for i in range(places)]


@lru_cache(maxsize=8)
def gpt2_small(
    counts: str = "heat", context: int = 128, powers: tuple[int, ...] = POWERS, argmax_solver: str = "plain"
) -> Circuit:
    """The fixture; counts is heat or calibrated. The other two are the argmax's."""
    heat = counts == "heat"
    norms = [f"h.{l}.ln_{k}" for l in range(LAYERS) for k in (1, 2)] + ["ln_f"]
    goldschmidt, newton = ([3] * 25, [2] * 25) if heat else (spread(235, 25), spread(63, 25))
    passes = (1,) * LAYERS if heat else CALIBRATED_PASSES
    init = [2] * LAYERS if heat else spread(105, LAYERS)
    refine = list(HEAT_REFINE) if heat else [9 if p == 3 else 8 for p in passes]  # 36 passes of 8, 21 of them of 9: 309
    shape = Shape(layers=LAYERS, width=WIDTH, heads=HEADS, hidden=HIDDEN, vocabulary=VOCABULARY, context=context)
    calibration = Calibration(
        fingerprint="fixture",
        tolerance=1e-2,
        rule="fixture",
        solver="plain",
        context=context,
        sequences=0,
        norms={n: norm(n, g, k) for n, g, k in zip(norms, goldschmidt, newton)},
        softmaxes={(n := f"h.{l}.attn"): softmax(n, passes[l], init[l], refine[l]) for l in range(LAYERS)},
        activations={(n := f"h.{l}.mlp"): activation(n, "gelu_new") for l in range(LAYERS)},
        argmax=ArgmaxCalibration(schedule=argmax_schedule(powers, argmax_solver)),
        magnitudes=_magnitudes(),
    )
    weights, name = _weights(shape), f"gpt2-small-{counts}"
    return Circuit(name=name, shape=shape, stages=gpt2_stages(shape), weights=weights, calibration=calibration)


def synthetic_logits(rows: int, seed: int) -> NDArray[np.float64]:
    """Rows of 50257 logits: a Gaussian bulk, and a tail that falls with the logarithm of the rank under the leader."""
    rng, out = np.random.default_rng(seed), np.empty((rows, VOCABULARY))
    for row in out:
        row[:] = -35 + rng.uniform(1.8, 2.6) * rng.standard_normal(VOCABULARY)
        slope, top = rng.uniform(0.9, 1.9), -35 + rng.uniform(13, 22)
        row[:2000] = np.maximum(row[:2000], top - slope * np.log(np.arange(1, 2001)))
    return out


def argmax_schedule(powers: tuple[int, ...] = POWERS, solver: str = "plain") -> ArgmaxSchedule:
    """What fit_schedule made of ``synthetic_logits(120, seed=0)``: every leader held, and a division by the row's sum.

    Kept as data, so that counts do not move with the search.
    """
    held = json.loads((Path(__file__).parent / "gpt2_small_argmax.json").read_text())
    return ArgmaxCalibration.from_json({"schedule": held[f"{','.join(map(str, powers))} {solver}"]}).schedule


def norm(name: str, goldschmidt_count: int, newton_count: int) -> NormCalibration:
    """A norm of width 768 on a typical domain."""
    lo, hi = 0.3 * WIDTH, 30.0 * WIDTH
    return NormCalibration(
        name=name,
        width=WIDTH,
        eps=1e-5,
        fit=fit_inverse_sqrt(lo, hi),
        goldschmidt_count=goldschmidt_count,
        newton_count=newton_count,
        observed=Domain(lo=lo, hi=hi, how="assumed"),
    )


def softmax(name: str, passes: int, init_count: int, refine_count: int) -> SoftmaxCalibration:
    """A softmax on typical domains, in so many passes."""
    delta_1, delta_2, width = 4, 1 << passes, 8.0 * (1 << passes) / 2
    fit = SoftmaxFit(
        lo=-width / 2,
        hi=width / 2,
        delta_1=delta_1,
        delta_2=delta_2,
        exponential=fit_exponential(width / (2 * delta_1 * delta_2), 8, 2),
        init=ReciprocalFit(lo=0.3, hi=3.0),
        refine=ReciprocalFit(lo=0.9, hi=10.0),
    )
    return SoftmaxCalibration(
        name=name,
        fit=fit,
        init_count=init_count,
        refine_count=refine_count,
        observed=Domain(lo=-width / 2, hi=width / 2, how="assumed"),
        observed_init=Domain(lo=0.3, hi=3.0, how="assumed"),
    )


def activation(name: str, function: str) -> ActivationCalibration:
    """An activation on inputs up to 32."""
    fit = fit_activation(function, 32.0, tolerance=3e-3)
    return ActivationCalibration(name=name, fit=fit, observed=Domain(lo=-32.0, hi=32.0, how="assumed"))


def _magnitudes() -> dict[str, float]:
    out = {"logits": 60.0, "ln_f": 12.0, f"h.{LAYERS}.in": 40.0}
    for l in range(LAYERS):
        h = f"h.{l}"
        out |= {f"{h}.in": 40.0, f"{h}.mid": 40.0, f"{h}.ln_1": 12.0, f"{h}.ln_2": 12.0, f"{h}.mlp.act": 32.0}
        out |= {f"{h}.attn.out": 4.0, f"{h}.attn/q": 8.0, f"{h}.attn/k": 8.0, f"{h}.attn/v": 4.0}
    return out


def _weights(shape: Shape) -> dict[str, Any]:
    """Tensors of the right shapes that share one number: planning reads shapes only."""
    one = np.full((1,), 0.01, dtype=np.float32)

    def flat(*size: int) -> Any:
        return np.broadcast_to(one, size)

    out = {"wte.weight": flat(VOCABULARY, WIDTH), "wpe.weight": flat(shape.context, WIDTH)}
    for name in [f"h.{l}.ln_{k}" for l in range(LAYERS) for k in (1, 2)] + ["ln_f"]:
        out |= {f"{name}.weight": flat(WIDTH), f"{name}.bias": flat(WIDTH)}
    for l in range(LAYERS):
        for name, inner, outer in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, HIDDEN),
            ("mlp.c_proj", HIDDEN, WIDTH),
        ):
            out |= {f"h.{l}.{name}.weight": flat(inner, outer), f"h.{l}.{name}.bias": flat(outer)}
    return out
