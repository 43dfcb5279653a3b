# SPDX-License-Identifier: Apache-2.0
"""The sizes at which values are refreshed, as training is told them: those of the plan itself."""

from __future__ import annotations

import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.planning import Carried, plan, preset
from heatfhe.stages import solved
from tests.planning.clear_run import clear_params
from tests.tiny import tiny_circuit

ROOM = 1.02  # a bound leaves this much for what approximations add


@pytest.mark.parametrize(("name", "refreshed"), [("insecure-paper-12", (2, 4)), ("insecure-native-12", (4, 0))])
def test_factors_times_domains_are_the_bounds_that_a_plan_states(name: str, refreshed: tuple[int, int]) -> None:
    """Where a plan refreshes a norm's sum of squares or an activation's input."""
    circuit, params = Circuit.load(default_circuit("heat")), preset(name)
    sizes, c = Carried(circuit.stages, circuit.shape, params)(circuit.calibration), circuit.calibration
    assert set(sizes) == solved(circuit.stages)
    steps = plan(circuit, params, programs=("logits",), cost="cheddar-h200").program("logits").bootstraps()
    norms = [s for s in steps if s.operator == "layernorm" and s.period == 1 and s.kind == "bootstrap"]
    inputs = [s for s in steps if s.name.endswith("mlp.c_fc")]
    assert (len(norms), len(inputs)) == refreshed
    for s in norms:
        assert s.bound == pytest.approx(ROOM * sizes[f"{s.name}/z"][0] * c.norms[s.name].fit.hi, rel=1e-3)
    for s in inputs:
        stage = s.name.removesuffix(".c_fc")
        assert s.bound == pytest.approx(ROOM * sizes[f"{stage}/in"][0] * c.activations[stage].fit.bound, rel=1e-3)


@pytest.mark.parametrize("reach", [16.0, 246.0, 1024.0])
def test_values_come_near_the_aim_and_sums_do_so_in_rows_of_any_length(reach: float) -> None:
    circuit, aim = tiny_circuit(), 0.9 * max(1.0, reach / 16.0)
    c, width = circuit.calibration, circuit.shape.width
    sizes = Carried(circuit.stages, circuit.shape, clear_params(64, reach=reach))(c)
    for name, norm in list(c.norms.items())[1:]:  # the first reads the embedding, which is carried as it is
        assert aim / 2 < sizes[f"{name}/z"][0] * norm.fit.hi <= aim * (1 + 1e-9)
        spread = (norm.fit.hi / norm.fit.lo) ** 0.25
        assert sizes[f"{name}/root"][0] * (width / norm.fit.lo) ** 0.5 == pytest.approx(spread)
    for name, row in c.softmaxes.items():
        last = row.fit.init if row.fit.refine is None else row.fit.refine
        for part, size, power in (
            ("sum", row.fit.init.hi, 1.0), ("sum2", last.hi, 1.0), ("inverse", 1 / last.lo, 0.0)
        ):  # fmt: skip
            for length in (1, 7, circuit.shape.context):
                factor, own = sizes[f"{name}/{part}"]
                assert factor * length**own * size * length**power <= aim * (1 + 1e-9)
        assert sizes[f"{name}/sum"] == (pytest.approx(aim / row.fit.init.hi), -1.0)
        assert sizes[f"{name}/scores"][0] * row.fit.width == pytest.approx(2.0)
