# SPDX-License-Identifier: Apache-2.0
"""The prior: its printed values, its mode, and the divergence at the ramp."""

from __future__ import annotations

import pytest
import torch

from heatfhe.errors import ConfigError
from heatfhe.halting import kl, log_prior, log_probabilities, probabilities, ramp

# w, p, prior on k = 0..5 over support 0..12, P(w), mean (bare formula)
PRIORS = [
    (0, 0.6, [0.4091, 0.2863, 0.1575, 0.0787, 0.0374, 0.0172], 0.409054, 1.1662),
    (0, 0.75, [0.4871, 0.3045, 0.1332, 0.0500, 0.0172, 0.0056], 0.487139, 0.8333),
    (0, 0.9, [0.5602, 0.3081, 0.1001, 0.0250, 0.0053, 0.0010], 0.560188, 0.6111),
    (0, 0.95, [0.5836, 0.3064, 0.0881, 0.0184, 0.0031, 0.0004], 0.583577, 0.5526),
    (1, 0.6, [0.1902, 0.2472, 0.2101, 0.1471, 0.0919, 0.0533], 0.247231, 2.1621),
    (1, 0.75, [0.2055, 0.2826, 0.2296, 0.1435, 0.0762, 0.0362], 0.282585, 1.8331),
    (1, 0.9, [0.2170, 0.3147, 0.2439, 0.1341, 0.0587, 0.0217], 0.314691, 1.6111),
    (1, 0.95, [0.2202, 0.3248, 0.2477, 0.1300, 0.0528, 0.0177], 0.324817, 1.5526),
    (2, 0.6, [0.0885, 0.1682, 0.1934, 0.1741, 0.1349, 0.0944], 0.193438, 3.1450),
    (2, 0.9, [0.0841, 0.1976, 0.2421, 0.2057, 0.1363, 0.0750], 0.242054, 2.6109),
    (3, 0.75, [0.0366, 0.1053, 0.1646, 0.1851, 0.1678, 0.1300], 0.185149, 3.8172),
    (8, 0.6, [0.0011, 0.0060, 0.0178, 0.0373, 0.0625, 0.0888], 0.129972, 7.7682),
    (8, 0.95, [0.0003, 0.0022, 0.0088, 0.0243, 0.0502, 0.0836], 0.148736, 7.9237),
    (12, 0.6, [0.0001, 0.0007, 0.0029, 0.0083, 0.0189, 0.0359], 0.183152, 9.2900),
    (12, 0.95, [0.0000, 0.0001, 0.0007, 0.0027, 0.0082, 0.0198], 0.214312, 9.7271),
]
GEOMETRIC = [
    (0.6, [0.6000, 0.2400, 0.0960, 0.0384], 0.0874),
    (0.75, [0.7500, 0.1875, 0.0469, 0.0117], 0.1596),
    (0.9, [0.9000, 0.0900, 0.0090, 0.0009], 0.2909),
    (0.95, [0.9500, 0.0475, 0.0024, 0.0001], 0.3652),
]
# n, w, KL of the ramp (floor 0) from the bare formula at p = 0.6, 0.75, 0.9, 0.95
DIVERGENCES = [
    (4, 4, [0.061328, 0.095246, 0.130826, 0.142863]),
    (4, 3, [0.013058, 0.025027, 0.038713, 0.043517]),
    (4, 2, [0.015511, 0.020722, 0.028649, 0.031882]),
    (4, 0, [0.543345, 0.871106, 1.373055, 1.604030]),
    (12, 12, [0.045391, 0.023737, 0.012866, 0.010979]),
    (12, 11, [0.084460, 0.056081, 0.037438, 0.032803]),
    (12, 6, [0.775205, 0.874221, 0.993306, 1.037586]),
    (12, 0, [6.160542, 9.162783, 13.981798, 16.529850]),
]


@pytest.mark.parametrize(("w", "p", "first", "at_mode", "mean"), PRIORS)
def test_printed_values_of_the_formula(w: int, p: float, first: list[float], at_mode: float, mean: float) -> None:
    law = log_prior(w, 0, 12, p, width=12, geometric_at_zero=False).exp()
    assert torch.allclose(law[:6], torch.tensor(first, dtype=torch.float64), atol=5.1e-5, rtol=0)
    assert abs(float(law[w]) - at_mode) < 5.1e-7
    assert abs(float((law * torch.arange(13)).sum()) - mean) < 5.1e-5


@pytest.mark.parametrize(("p", "first", "gap"), GEOMETRIC)
def test_geometric_at_zero_as_the_paper_says(p: float, first: list[float], gap: float) -> None:
    geometric = log_prior(0, 0, 12, p, width=12)
    formula = log_prior(0, 0, 12, p, width=12, geometric_at_zero=False)
    assert torch.allclose(geometric.exp()[:4], torch.tensor(first, dtype=torch.float64), atol=5.1e-5, rtol=0)
    assert abs(float(kl(geometric.exp(), geometric, formula)) - gap) < 5.1e-5


def test_the_mode_sits_at_the_target() -> None:
    cases = 0
    for top in (12, 60):
        for w in range(13):
            for step in range(36):
                law = log_prior(w, 0, top, 0.60 + 0.01 * step, width=top, geometric_at_zero=False)
                assert int(law.argmax()) == w
                cases += 1
    assert cases == 2 * 468


def test_support_starts_at_the_floor() -> None:
    shifted, plain = log_prior(2, 1, 9, 0.7, width=12), log_prior(2, 0, 8, 0.7, width=8)
    assert torch.allclose(shifted[1:10], plain)
    assert bool(torch.isinf(shifted[0]))
    assert bool(torch.isinf(shifted[10:]).all())


@pytest.mark.parametrize(("n", "w", "values"), DIVERGENCES)
def test_divergence_at_the_ramp(n: int, w: int, values: list[float]) -> None:
    logits = ramp(n)
    for p, printed in zip((0.6, 0.75, 0.9, 0.95), values):
        prior = log_prior(w, 0, n, p, width=n, geometric_at_zero=False)
        found = kl(probabilities(logits), log_probabilities(logits), prior)
        assert abs(float(found) - printed) < 5.1e-7


def test_divergence_is_finite_with_saturated_logits_and_has_a_gradient() -> None:
    logits = torch.tensor([60.0, -60.0, 80.0], requires_grad=True)
    found = kl(probabilities(logits), log_probabilities(logits), log_prior(3, 0, 3, 0.6, width=3).float())
    found.backward()
    assert bool(torch.isfinite(found))
    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())


def test_refuses_impossible_priors() -> None:
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        log_prior(0, 0, 4, 1.0, width=4)
    with pytest.raises(ConfigError, match="outside its site's support"):
        log_prior(5, 1, 5, 0.6, width=5)
