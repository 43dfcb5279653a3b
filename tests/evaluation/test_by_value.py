# SPDX-License-Identifier: Apache-2.0
"""Drift by value: alone each value adds its own KL, batches and restarts change nothing, values have their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heatfhe.circuit import Circuit
from heatfhe.engine import BootstrapNoise, ClearEngine, Conversation, Runner
from heatfhe.errors import ConfigError
from heatfhe.evaluation import by_value, chosen_values, drift, drift_by_value, refreshed_values, sample_windows
from heatfhe.evaluation.by_value import ByValue
from heatfhe.evaluation.values import attention_rows
from heatfhe.planning import Plan, plan
from heatfhe.records import FAMILIES
from tests.planning.clear_run import clear_params
from tests.tiny import tiny_circuit

SIGMA = 1e-5  # small: errors stay linear, so that KL adds up


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return tiny_circuit(tolerance=1e-5)


@pytest.fixture(scope="module")
def made(circuit: Circuit) -> Plan:
    return plan(circuit, clear_params(64), programs=("logits",), placement="greedy")


def measured(made: Plan, circuit: Circuit, **options: object) -> ByValue:
    windows = sample_windows(circuit, 3, 6, seed=1)
    return drift_by_value(
        made, circuit, windows, noise=BootstrapNoise(sigma=SIGMA), sigma=SIGMA, seeds=(0, 1), **options  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(made: Plan, circuit: Circuit) -> ByValue:
    return measured(made, circuit)


def test_what_values_cause_alone_adds_up_to_what_they_cause_together(found: ByValue, made: Plan) -> None:
    values = sum(len(s.args) for s in made.program("logits").bootstraps())
    assert len(found.values) == values == len({v.value.number for v in found.values})
    assert 0.4 < found.summed / found.together.kl < 2.5
    kls = [v.fidelity.kl for v in found.values]
    assert kls == sorted(kls, reverse=True)
    assert kls[0] > 3 * abs(kls[-1])
    assert sum(found.by_operator().values()) == pytest.approx(1.0)


def test_rows_of_attention_are_off_and_grow_with_the_noise(found: ByValue, made: Plan, circuit: Circuit) -> None:
    parts = [r.part for r in found.rows if r.stage == "h.0.attn"]
    passes = circuit.calibration.softmaxes["h.0.attn"].fit.passes
    assert parts == ["exponential", "first division", *(f"pass {k}" for k in range(1, passes + 1))]
    assert all(0 < e < 1e-2 for r in found.rows for e in r.by_position)
    windows = sample_windows(circuit, 3, 6, seed=1)
    loud = drift_by_value(
        made, circuit, windows, noise=BootstrapNoise(sigma=10 * SIGMA), sigma=10 * SIGMA, seeds=(0, 1), only="softmax"
    )
    quiet = drift_by_value(
        made, circuit, windows, noise=BootstrapNoise(sigma=SIGMA), sigma=SIGMA, seeds=(0, 1), only="softmax"
    )
    for large, small in zip(loud.rows, quiet.rows, strict=True):
        assert large.last == pytest.approx(10 * small.last, rel=0.05)  # the same random numbers, ten times as large


def test_a_batch_of_one_value_gives_the_same_as_all_at_once(
    found: ByValue, made: Plan, circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_value, "ROOM", 1)
    alone = measured(made, circuit)
    order = {v.value.number: v.fidelity.kl for v in alone.values}
    for v in found.values:
        assert order[v.value.number] == pytest.approx(v.fidelity.kl, rel=1e-6, abs=1e-18)


def test_what_is_kept_is_not_done_again(
    made: Plan, circuit: Circuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = measured(made, circuit, folder=tmp_path)
    (place,) = tmp_path.iterdir()
    (place / "value-0.json").unlink()  # as if it had been stopped before
    runs = []
    whole = by_value._Work.run

    def counted(self, noises, *rest):  # type: ignore[no-untyped-def]
        runs.append(noises)
        return whole(self, noises, *rest)

    monkeypatch.setattr(by_value._Work, "run", counted)
    again = measured(made, circuit, folder=tmp_path)
    assert [[n.numbers for n in noises] for noises in runs] == [[(0,), (0,)]]  # one value, a row for each seed
    assert again.as_json() == first.as_json()
    measured(made, circuit, folder=tmp_path, only="softmax")
    assert len(runs) == 2  # all together anew, since fewer are noisy; no value again
    assert len(list(tmp_path.iterdir())) == 1


def test_noise_in_one_family_and_in_all_others_adds_up(made: Plan, circuit: Circuit) -> None:
    windows = sample_windows(circuit, 3, 6, seed=1)
    values = refreshed_values(made, circuit.calibration)
    others = ",".join(sorted({v.operator for v in values} - {"softmax"}))
    parts = [
        drift(made, circuit, windows, noise=BootstrapNoise(sigma=SIGMA), seeds=(0, 1), only=only)
        for only in ("softmax", others, None)
    ]
    one, rest, whole = (p.fidelity.kl for p in parts)
    assert 0.4 < (one + rest) / whole < 2.5
    assert parts[0].bootstraps + parts[1].bootstraps == parts[2].bootstraps
    assert (parts[0].only, parts[2].as_json()["only"]) == ("softmax", None)


def test_families_are_operators_or_solvers_and_others_are_refused(made: Plan, circuit: Circuit) -> None:
    values = refreshed_values(made, circuit.calibration)
    assert chosen_values(values, None) == frozenset(range(len(values)))
    for v in values:
        if v.family:
            assert v.number in chosen_values(values, v.family)
            assert v.operator == ("softmax" if v.family.startswith("softmax") else "layernorm")
    solvers = chosen_values(values, ",".join(FAMILIES))
    assert solvers < chosen_values(values, "softmax,layernorm")
    with pytest.raises(ConfigError, match=r"'relu'.*softmax.*norm_newton"):
        chosen_values(values, "softmax,relu")


def test_watched_rows_are_the_softmaxes_own(made: Plan, circuit: Circuit) -> None:
    """The last row of the first attention, read from the plan, holds the probabilities that its scores have."""
    tokens = np.array([[3, 7, 5, 11]])
    seen: list[np.ndarray] = []

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        if name == "h.0.attn/scores":
            seen.append(value)
        return value

    circuit.run(tokens, tap=tap)
    scores = seen[0][0, :, -1]  # (heads, columns) of the last position
    wanted = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    number = attention_rows(made.program("logits"))["h.0.attn"][-1][1]
    held: list[np.ndarray] = []

    class Reading(Runner):
        def _step(self, i, step, program, values, position):  # type: ignore[no-untyped-def]
            super()._step(i, step, program, values, position)
            if number in step.results:
                held.append(engine.read(values[number])[0])

    engine = ClearEngine(made.params, lenient=True)
    talk = Conversation(Reading(made, engine, made.source(circuit)))
    for column in tokens.T:
        talk.logits([engine.value(made.packing.pack_residual(circuit.folded.token[column]))])
    p = made.packing
    heads = held[-1].reshape(-1, p.Hp)[:, : circuit.shape.heads].T
    distinct = [np.sort(np.unique(np.round(row[np.abs(row) > 1e-9], 9))) for row in heads]
    for row, true in zip(distinct, wanted, strict=True):
        assert row / row.sum() == pytest.approx(np.sort(true), rel=1e-3)
