# SPDX-License-Identifier: Apache-2.0
"""Evaluation through an engine: exact on the clear one, resumable, predicted by its noise, and refused when foreign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.client.keyring_clear import ClearKeyring
from heatfhe.engine import BootstrapNoise, ClearEngine, key_request
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.evaluation.drift import sample_windows
from heatfhe.evaluation.encrypted import Endpoint, Stopwatch, decode_windows, evaluate, judge
from heatfhe.evaluation.free import free_running
from heatfhe.planning import Plan, cost_table, plan
from heatfhe.planning.params import preset
from heatfhe.planning.tally import tally
from tests.tiny import tiny_circuit

CIRCUIT = tiny_circuit(layers=1, width=16, vocabulary=32, context=16)
PARAMS = preset("insecure-openfhe-11")
COSTS = cost_table("openfhe-cpu-11")


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(CIRCUIT, PARAMS, programs=("logits", "generate", "prompt"))


def endpoint(made: Plan, sigma: float | None = None, seed: int = 0) -> Endpoint:
    request = key_request(made)
    noise = None if sigma is None else BootstrapNoise(sigma=sigma)
    engine = ClearEngine(PARAMS, request=request, noise=noise, rng=np.random.default_rng(seed), strict=sigma is None)
    ring = ClearKeyring(request)
    return Endpoint(engine, ring.encrypt, ring.decrypt)


def test_the_clear_engine_agrees_with_the_circuit(made: Plan) -> None:
    windows = sample_windows(CIRCUIT, 2, 5, seed=1)
    found = evaluate(made, CIRCUIT, endpoint(made), windows, engine="clear", costs=COSTS)
    assert found.largest_error < 1e-8
    assert found.fidelity.top1 == 1.0
    assert found.fidelity.collapsed == 0
    assert found.fidelity.kl < 1e-12
    assert found.bootstraps == len(made.program("logits").bootstraps())
    assert found.seconds == pytest.approx(sum(found.by_operator.values()))
    assert set(found.by_operator) == set(found.predicted)


def test_noise_costs_fidelity(made: Plan) -> None:
    windows = sample_windows(CIRCUIT, 2, 5, seed=2)
    mild, wild = (
        evaluate(made, CIRCUIT, endpoint(made, sigma), windows, engine="clear", costs=COSTS) for sigma in (1e-7, 1e-3)
    )
    assert 0 < mild.fidelity.kl < wild.fidelity.kl
    assert mild.fidelity.top1 == 1.0


def test_a_stopped_run_goes_on_and_a_foreign_one_is_refused(made: Plan, tmp_path: Path) -> None:
    windows = sample_windows(CIRCUIT, 3, 4, seed=3)
    options = {"engine": "clear", "costs": COSTS, "folder": tmp_path}
    whole = evaluate(made, CIRCUIT, endpoint(made, 1e-4, seed=4), windows, **options)  # type: ignore[arg-type]
    (tmp_path / "window-001.npz").unlink()
    again = evaluate(made, CIRCUIT, endpoint(made), windows, **options)  # type: ignore[arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"window-00{i}.npz" for i in range(3)]
    assert 0 < again.largest_error <= whole.largest_error  # two windows are the noisy run's, one is exact
    with pytest.raises(FileFormatError, match="another plan, engine, noise or window"):
        evaluate(made, CIRCUIT, endpoint(made), windows[::-1], **options)  # type: ignore[arg-type]
    (tmp_path / "window-000.npz").write_bytes(b"junk")
    with pytest.raises(FileFormatError, match="not a finished window"):
        evaluate(made, CIRCUIT, endpoint(made), windows, **options)  # type: ignore[arg-type]


def test_free_running_tokens_are_the_circuits_own(made: Plan) -> None:
    for prompt in ([3, 7], [5]):
        found = free_running(made, CIRCUIT, endpoint(made), prompt, 3, costs=COSTS)
        assert found.tokens == found.wanted
        assert len(found.tokens) == 3
        ran = ["prompt"] * (len(prompt) - 1) + ["generate"] * 3
        assert found.bootstraps == sum(len(made.program(name).bootstraps()) for name in ran)
        assert set(found.by_operator) == set(found.predicted)
        priced = [sum(t.seconds for t in tally(made, name, COSTS).values()) for name in ran]
        assert sum(found.predicted.values()) == pytest.approx(sum(priced))


def test_processes_may_share_a_folder_and_what_is_missing_is_named(made: Plan, tmp_path: Path) -> None:
    windows = sample_windows(CIRCUIT, 3, 4, seed=5)
    whole = evaluate(made, CIRCUIT, endpoint(made), windows, engine="clear", costs=COSTS)
    for part in ([2], [0]):
        decode_windows(made, CIRCUIT, endpoint(made), windows, engine="clear", folder=tmp_path, only=part)
    with pytest.raises(FileFormatError, match=r"window-001\.npz: this window is not finished"):
        decode_windows(made, CIRCUIT, None, windows, engine="clear", folder=tmp_path)
    decode_windows(made, CIRCUIT, endpoint(made), windows, engine="clear", folder=tmp_path, only=[1])
    found = decode_windows(made, CIRCUIT, None, windows, engine="clear", folder=tmp_path)
    again = judge(made, CIRCUIT, found, windows, engine="clear", costs=COSTS)
    assert again.fidelity == whole.fidelity
    assert again.bootstraps == whole.bootstraps


def test_windows_must_fit(made: Plan) -> None:
    for bad in (np.zeros((2, 1), np.int64), np.zeros((1, 40), np.int64)):
        with pytest.raises(ConfigError):
            evaluate(made, CIRCUIT, endpoint(made), bad, engine="clear", costs=COSTS)


def test_an_evaluation_waits_for_the_engine_before_it_reads_the_clock(made: Plan) -> None:
    """Every step of this engine takes a second that passes only when it is waited for."""
    plain = endpoint(made)
    now, waiting = 0.0, 0

    class Late:
        def __getattr__(self, name: str) -> Any:
            nonlocal waiting
            waiting += name == "bootstrap"
            return getattr(plain.engine, name)

        def synchronize(self) -> None:
            nonlocal now, waiting
            now, waiting = now + waiting, 0

    def clock() -> float:
        assert waiting == 0
        return now

    late = replace(plain, engine=Late(), clock=clock)
    windows = sample_windows(CIRCUIT, 1, 3, seed=5)
    (window,) = decode_windows(made, CIRCUIT, late, windows, engine="clear")
    assert window is not None
    assert sum(window.seconds.values()) == now > 0


def test_the_stopwatch_counts_steps_and_not_what_lies_between() -> None:
    now = iter([10.0, 11.0, 14.0, 100.0, 101.0])
    watch = Stopwatch(clock=lambda: next(now))
    watch.start("logits", 2)
    watch.advance("logits", operator="linear", kind="linear")
    watch.advance("logits", operator="softmax", kind="bootstrap_pair")
    watch.done("logits")
    watch.start("logits", 1)
    watch.advance("logits", operator="linear", kind="rotate")
    assert dict(watch.seconds) == {"linear": 2.0, "softmax": 3.0}
    assert watch.bootstraps == 1
