# SPDX-License-Identifier: Apache-2.0
"""Stress on the embedded circuits, and the same numbers from a circuit in numpy and its model in torch."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.errors import DataError
from heatfhe.evaluation import STRESS_HEADERS, hard_of_circuit, stress_circuit, stress_rows, text_rows
from heatfhe.records import diverged
from tests.tiny import narrow_sums


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    """60 random or repeated sequences of the whole context."""
    return stress_rows(None, 1024, 128, 30)


@pytest.mark.parametrize("kind", ["heat", "calibrated"])
def test_the_embedded_circuits_hold(kind: str, rows: dict[str, np.ndarray]) -> None:
    found = stress_circuit(Circuit.load(default_circuit(kind)), rows, batch=30)
    assert [(s.kind, s.windows, s.positions) for s in found] == [("random", 30, 128), ("repeated", 30, 128)]
    assert [(s.outside, s.diverged) for s in found] == [(0, 0), (0, 0)]
    assert all(len(s.row()) == len(STRESS_HEADERS) for s in found)
    json.dumps([s.as_json() for s in found], allow_nan=False)


def test_a_circuit_of_narrow_domains_does_not_hold(rows: dict[str, np.ndarray]) -> None:
    """Sums above the end of their domain diverge: first domains cut to a 64th lose windows that were held."""
    circuit = narrow_sums(Circuit.load(default_circuit("heat")), 64.0)
    found = stress_circuit(circuit, rows, batch=30)
    assert all(s.outside >= s.diverged for s in found)
    assert sum(s.diverged for s in found) >= 10
    assert {s.first.rpartition("/")[2] for s in found} == {"sum"}
    json.dumps([s.as_json() for s in found], allow_nan=False)


def test_a_window_that_leaves_a_domain_is_counted_at_the_site_it_left() -> None:
    """The same circuit whose domains are said to end at half of what was observed: every window is outside."""
    circuit = Circuit.load(default_circuit("calibrated"))
    tokens = stress_rows(None, 1024, 16, 4)
    fits = circuit.calibration.activations
    name = next(n for n in fits if n.startswith("h.2"))
    seen: list[float] = []

    def tap(at: str, value: np.ndarray) -> np.ndarray:
        if at == f"{name}/in":
            seen.append(float(np.abs(value).max()))
        return value

    circuit.run(tokens["random"], tap=tap)
    bound = seen[0] / 2
    narrow = replace(fits[name], fit=replace(fits[name].fit, bound=bound))
    known = replace(circuit.calibration, activations={**fits, name: narrow})
    held = stress_circuit(circuit, {"random": tokens["random"]})[0]
    domains = known.domains()
    assert domains[f"{name}/in"] == (-bound, bound)
    assert held.outside == 0
    tight = stress_circuit(replace(circuit, calibration=known), {"random": tokens["random"]})[0]
    assert tight.first == f"{name}/in"
    at = {s.name: s for s in tight.sites}
    assert at[f"{name}/in"].excess == pytest.approx(0.5, rel=1e-6)  # half a width of [-b, b] past its end
    assert 1 <= at[f"{name}/in"].windows <= 4


def test_logits_diverge_by_one_definition() -> None:
    logits = np.zeros((5, 3))
    logits[1, 0], logits[2, 1], logits[3, 2], logits[4, 0] = 10.0, 10.001, math.nan, -math.inf
    assert diverged(logits, 1.0).tolist() == [False, False, True, True, True]
    assert diverged(logits, math.inf).tolist() == [False, False, False, True, True]
    torch = pytest.importorskip("torch")
    assert diverged(torch.tensor(logits), 1.0).tolist() == [False, False, True, True, True]


def test_torch_and_numpy_agree(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from heatfhe.evaluation import stress_prepared
    from heatfhe.lowering import export
    from heatfhe.ranges import calibrate
    from tests.gpt2_tiny import random_tokens
    from tests.training.short import fresh

    prepared = fresh()
    prepared.adopt(calibrate(prepared, [random_tokens(s) for s in range(2)], 1e-2))
    assert prepared.calibration is not None
    circuit = export(prepared, prepared.calibration, tmp_path / "circuit", name="tiny")
    text = np.tile(np.arange(16), (3, 1))
    given = stress_rows(text, 48, 16, 6)
    assert list(given) == ["random", "shuffled", "repeated", "replaced", "runs"]
    pairs = zip(stress_circuit(circuit, given), stress_prepared(prepared, given, batch=4), strict=True)
    left = 0
    for a, b in pairs:
        assert (a.kind, a.windows, a.outside, a.diverged, a.first) == (
            b.kind,
            b.windows,
            b.outside,
            b.diverged,
            b.first,
        )
        assert a.smallest_leader == pytest.approx(b.smallest_leader, rel=1e-3)
        assert {s.name: s.excess for s in a.sites} == pytest.approx(
            {s.name: s.excess for s in b.sites}, rel=1e-3, abs=1e-5
        )
        left += a.outside
    assert left > 0  # there was something to agree on


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(DataError, match=r"notes\.txt holds 31 tokens, a window of this stress has 32"):
        text_rows("notes.txt", np.arange(31), 32, 5)
    assert text_rows("notes.txt", np.arange(100), 32, 2)[:, 0].tolist() == [0, 32]
    assert text_rows("notes.txt", np.arange(100), 32, 9).shape == (3, 32)


def test_hard_windows_of_a_circuit_need_no_text() -> None:
    """Every token of the vocabulary is tried; windows are made of those that lie furthest above the usual one."""
    circuit = Circuit.load(default_circuit())
    hard = hard_of_circuit(circuit)
    assert 0 < len(hard.tokens) < circuit.shape.vocabulary
    assert hard.weights.sum() == pytest.approx(1.0)
    rows = stress_rows(None, circuit.shape.vocabulary, 16, 40, kinds=("shuffled", "hard"), hard=hard)
    assert list(rows) == ["hard"]  # nothing can be shuffled
    assert np.isin(rows["hard"], [0, *hard.tokens]).all()
