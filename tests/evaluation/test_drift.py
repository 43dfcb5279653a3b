# SPDX-License-Identifier: Apache-2.0
"""Drift: without noise nothing drifts, with noise it does, and the same seed gives the same curve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.engine import BootstrapNoise
from heatfhe.engine.noise import NoiseTable, PeriodNoise
from heatfhe.errors import ConfigError, EngineError, PlanError
from heatfhe.evaluation.drift import SEEDS_ROOM, clear_logits, drift, sample_windows
from heatfhe.planning import Plan, Rules, Step, plan
from heatfhe.planning.params import preset
from tests.planning.clear_run import clear_params, teacher_forced
from tests.tiny import tiny_circuit


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(tiny_circuit(), clear_params(64), programs=("logits",), placement="greedy")


def test_no_noise_is_no_drift(made: Plan) -> None:
    circuit = tiny_circuit()
    windows = sample_windows(circuit, 4, 9, seed=1)
    found = drift(made, circuit, windows, noise=BootstrapNoise())
    assert found.fidelity.kl < 1e-15
    assert found.fidelity.top1 == 1.0
    assert found.fidelity.collapsed == 0


def test_noise_costs_fidelity_and_repeats_with_its_seed(made: Plan) -> None:
    circuit = tiny_circuit()
    windows = sample_windows(circuit, 8, 9, seed=1)
    small, large = (drift(made, circuit, windows, noise=BootstrapNoise(sigma=s), seeds=(3,)) for s in (1e-5, 1e-3))
    assert 0 < small.fidelity.kl < large.fidelity.kl
    again = drift(made, circuit, windows, noise=BootstrapNoise(sigma=1e-3), seeds=(3,))
    assert again == large
    assert len(large.fidelity.kl_by_position) == 8
    assert large.as_json()["collapsed_by_position"] == list(large.collapsed_by_position)


@pytest.mark.parametrize("only", [None, "softmax"])
def test_seeds_together_are_the_seeds_one_by_one(made: Plan, monkeypatch: pytest.MonkeyPatch, only: str | None) -> None:
    """As on a GPU, where they are one batch: no number changes, and a seed's noise does not depend on its company."""
    circuit = tiny_circuit()
    windows, noise = sample_windows(circuit, 3, 7, seed=1), BootstrapNoise(sigma=1e-3)
    apart = drift(made, circuit, windows, noise=noise, seeds=(0, 1, 2, 5), only=only)
    for most in (2, 3, 8):
        monkeypatch.setitem(SEEDS_ROOM, "cpu", most * len(windows) * made.params.slots)
        assert drift(made, circuit, windows, noise=noise, seeds=(0, 1, 2, 5), only=only) == apart
    assert drift(made, circuit, windows, noise=noise, seeds=(0, 1, 2, 6), only=only) != apart


def test_known_clear_logits_change_nothing_and_must_be_of_these_windows(made: Plan) -> None:
    circuit = tiny_circuit()
    windows, noise = sample_windows(circuit, 3, 7, seed=1), BootstrapNoise(sigma=1e-3)
    known = clear_logits(made, circuit, windows)
    assert drift(made, circuit, windows, noise=noise, known=known) == drift(made, circuit, windows, noise=noise)
    with pytest.raises(ConfigError, match=r"\(3, 6, \d+\) are not those of windows \(2, 7\); compute them again"):
        drift(made, circuit, windows[:2], noise=noise, known=known)


def test_destroyed_runs_are_counted_as_collapsed(made: Plan) -> None:
    circuit = tiny_circuit()
    found = drift(made, circuit, sample_windows(circuit, 3, 9), noise=BootstrapNoise(sigma=30.0), seeds=(0,))
    assert found.fidelity.collapsed == 3
    assert max(found.collapsed_by_position) == 1.0


def test_windows_are_tokens_of_the_circuit_and_repeat(made: Plan) -> None:
    circuit = tiny_circuit()
    windows = sample_windows(circuit, 5, 17, seed=2)
    assert windows.shape == (5, 17)
    assert windows.min() >= 0
    assert windows.max() < 64
    assert np.array_equal(windows, sample_windows(circuit, 5, 17, seed=2))
    with pytest.raises(ConfigError, match="does not fit a context"):
        sample_windows(circuit, 1, 18)
    with pytest.raises(ConfigError, match="positions \\+ 1"):
        drift(made, circuit, windows[0], noise=BootstrapNoise())


def test_quarters_show_where_a_curve_rises(made: Plan) -> None:
    circuit = tiny_circuit()
    found = drift(made, circuit, sample_windows(circuit, 2, 9), noise=BootstrapNoise(sigma=1e-4))
    curve = tuple(1e-3 * 10**k for k in range(8))
    moved = replace(found, fidelity=replace(found.fidelity, kl_by_position=curve))
    assert moved.quarters() == pytest.approx([5.5e-3, 5.5e-1, 5.5e1, 5.5e3])
    gone = replace(found, fidelity=replace(found.fidelity, kl_by_position=(float("nan"),) * 8))
    assert all(np.isnan(q) for q in gone.quarters())


def test_a_measured_table_is_injected_by_size_and_period(made: Plan) -> None:
    """A bias on numbers that fill all slots, as a real refresh has it, reaches the logits; one sigma misses it."""
    circuit = tiny_circuit()
    windows = sample_windows(circuit, 4, 9, seed=1)

    def table(bias: float) -> NoiseTable:
        sizes = {1.0: 1e-7, 16.0: 1.6e-6}
        periods = {1: PeriodNoise(1e-7, bias), 64: PeriodNoise(1e-7, 0.0)}
        return NoiseTable(
            name="made up", engine="clear", params=made.params.name, hardware="none", samples=1,
            sigma=sizes, constant=sizes, largest=sizes, periods=periods,
        )  # fmt: skip

    straight, bent = (
        drift(made, circuit, windows, noise=table(b).noise(made.params), sigma=1e-7) for b in (0.0, -1e-3)
    )
    plain = drift(made, circuit, windows, noise=BootstrapNoise(sigma=1e-7))
    assert straight.fidelity.kl < 100 * plain.fidelity.kl
    assert bent.fidelity.kl > 100 * straight.fidelity.kl
    with pytest.raises(ConfigError, match="pass sigma"):
        drift(made, circuit, windows, noise=table(0.0).noise(made.params))


def after(made: Plan, at: int, *steps: Step) -> Plan:
    """A plan whose program logits runs these steps too, after the one at this index; later ones read the last result
    where they read that one's."""
    program = made.program("logits")
    old, new = program.steps[at].results[0], steps[-1].results[0]
    later = [replace(s, args=tuple(new if a == old else a for a in s.args)) for s in program.steps[at + 1 :]]
    changed = replace(program, steps=(*program.steps[: at + 1], *steps, *later))
    return replace(made, programs={**made.programs, "logits": changed})


def refreshed(made: Plan, at: int) -> Plan:
    """The same with a refresh, back to the level that the value had: exact, if the value is real."""
    step = made.program("logits").steps[at]
    first = max(v for s in made.program("logits").steps for v in s.results) + 1
    place = {"operator": step.operator, "name": step.name}
    bootstrap = Step(
        kind="bootstrap", results=(first,), args=step.results, level=made.params.levels, period=made.params.slots,
        bound=made.params.reach, **place,
    )  # fmt: skip
    return after(made, at, bootstrap, Step(kind="drop", results=(first + 1,), args=(first,), level=step.level, **place))


def test_a_plan_that_refreshes_a_complex_value_is_refused(made: Plan) -> None:
    """A bootstrap keeps the real part alone: such a plan is wrong without any noise, and drift blames no noise for it.

    It is legal by levels, and an engine that is not strict runs it to wrong logits, so nothing else would say so.
    """
    circuit, windows = tiny_circuit(), sample_windows(tiny_circuit(), 2, 5, seed=1)
    steps = made.program("logits").steps
    turned = {s.results[0] for s in steps if s.kind == "times_i"}
    complex_ = next(i for i, s in enumerate(steps) if s.kind == "add" and turned & {*s.args})
    with pytest.raises(
        PlanError, match=rf"even without noise: step {complex_ + 1} of 'logits' \(bootstrap, .*not real"
    ):
        drift(refreshed(made, complex_), circuit, windows, noise=BootstrapNoise())
    real = next(i for i, s in enumerate(steps) if s.kind == "bootstrap")
    assert drift(refreshed(made, real), circuit, windows, noise=BootstrapNoise()).fidelity.kl < 1e-15


def test_a_plan_that_differs_from_its_circuit_is_refused(made: Plan) -> None:
    circuit, windows = tiny_circuit(), sample_windows(tiny_circuit(), 2, 5, seed=1)
    steps = made.program("logits").steps
    i = max(i for i, s in enumerate(steps) if s.kind == "add")
    wrong = Step(kind="negate", results=(10**6,), args=steps[i].results, level=steps[i].level)
    with pytest.raises(PlanError, match=r"plan's logit of token \d+ at position 0 of window \d is .*circuit.run gives"):
        drift(after(made, i, wrong), circuit, windows, noise=BootstrapNoise())


@pytest.mark.parametrize(("seen", "collapsed"), [(0.25, 0), (1e-3, 2)])
def test_windows_that_leave_their_bounds_are_no_fault_of_the_plan(seen: float, collapsed: int) -> None:
    """A circuit calibrated too tightly is measured, not refused, even where none of its windows is sound."""
    circuit = tiny_circuit()
    sizes = {name: seen * size for name, size in circuit.calibration.magnitudes.items()}
    tight = replace(circuit, calibration=replace(circuit.calibration, magnitudes=sizes))
    made = plan(tight, clear_params(64), programs=("logits",), placement="greedy")
    windows = sample_windows(circuit, 2, 5)
    with pytest.raises(EngineError, match="planned for magnitudes"):
        teacher_forced(made, tight, windows[:, :-1])
    found = drift(made, tight, windows, noise=BootstrapNoise(), seeds=(0,)).fidelity
    assert found.collapsed == collapsed
    assert collapsed or found.kl < 1e-15


def test_seeds_are_pooled_and_each_is_its_own(made: Plan) -> None:
    circuit, windows = tiny_circuit(), sample_windows(tiny_circuit(), 4, 5, seed=1)
    noise = BootstrapNoise(sigma=1e-3)
    both = drift(made, circuit, windows, noise=noise, seeds=(3, 4))
    apart = [drift(made, circuit, windows, noise=noise, seeds=(s,)) for s in (3, 4)]
    assert (both.fidelity.windows, both.as_json()["seeds"]) == (8, [3, 4])
    assert apart[0].fidelity.kl != apart[1].fidelity.kl
    assert both.fidelity.top1 == pytest.approx(np.mean([d.fidelity.top1 for d in apart]))
    assert drift(made, circuit, windows, noise=noise).seeds == (0, 1, 2)
    with pytest.raises(ConfigError, match="at least one seed"):
        drift(made, circuit, windows, noise=noise, seeds=())


def test_a_table_of_another_set_is_refused(made: Plan) -> None:
    sizes = {1.0: 1e-7}
    table = NoiseTable(
        name="theirs", engine="native", params="insecure-native-12", hardware="none", samples=1,
        sigma=sizes, constant=sizes, largest=sizes, periods={1: PeriodNoise(1e-7, 0.0)},
    )  # fmt: skip
    with pytest.raises(
        ConfigError, match="theirs was measured on insecure-native-12, the plan is for insecure-clear-64"
    ):
        table.noise(made.params)


@pytest.mark.slow
def test_the_papers_noise_loses_the_calibrated_circuit_and_a_precision_keeps_heats_flat() -> None:
    """The embedded circuits, 16 windows of 128 positions, the paper's noise at every bootstrap at a window of 16.

    Flat is a KL of the last quarter of the positions within twice the first's.
    """
    circuits = {kind: Circuit.load(default_circuit(kind)) for kind in ("heat", "calibrated")}
    params, noise = preset("insecure-native-12"), BootstrapNoise(sigma=1.7e-4)
    windows = sample_windows(circuits["calibrated"], 16, 129, seed=0)
    bare = {kind: plan(c, params, programs=("logits",)) for kind, c in circuits.items()}
    loud, lost = (drift(bare[kind], circuits[kind], windows, noise=noise, seeds=(0,)) for kind in circuits)
    assert lost.fidelity.collapsed > 8
    assert loud.fidelity.collapsed == 0
    made = plan(circuits["heat"], params, programs=("logits",), precision=5, rules=Rules(noise=noise.deviation))
    kept = drift(made, circuits["heat"], windows, noise=noise, seeds=(0,))
    assert kept.quarters()[3] <= 2 * kept.quarters()[0] < 1e-4
    assert kept.fidelity.top1 >= 0.99
    assert len(made.program("logits").bootstraps()) <= len(bare["heat"].program("logits").bootstraps()) + 2
