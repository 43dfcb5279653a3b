# SPDX-License-Identifier: Apache-2.0
"""The search itself: seeded, resumed, bounded; its front, its choice, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, DataError
from heatfhe.evaluation import sample_windows
from heatfhe.planning import ProgramName, plan, preset
from heatfhe.progress import Reporter
from heatfhe.search import Batched, Found, PlanSeconds, SearchSettings, Space, search
from heatfhe.search.nsga import Worth, evolve, front
from tests.tiny import tiny_circuit

SHORT = SearchSettings(population=(6, 8), generations=(3, 5), seed=4)


class Killed(Exception):
    pass


class Killer(Reporter):
    """Ends the process, as it were, at the n-th sign of progress."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, task: str, **facts: float | int | str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return tiny_circuit(tolerance=1e-4)


@pytest.fixture(scope="module")
def texts(circuit: Circuit) -> tuple[Any, Any]:
    rows = sample_windows(circuit, 10, 17, seed=1)
    return rows[:4, :-1], rows[4:]


@pytest.fixture(scope="module")
def whole(circuit: Circuit, texts: tuple[Any, Any]) -> Found:
    """The short search, uninterrupted and kept nowhere."""
    return search(circuit, *texts, SHORT)


def test_the_paper_s_budget() -> None:
    assert SearchSettings().candidates == 24_144


def test_the_space_is_the_paper_s_and_reaches_calibrated_counts(circuit: Circuit) -> None:
    space = Space.of(circuit)
    assert len(space.names) == 14
    assert dict(zip(space.names, zip(space.lower, space.upper)))["h.0.ln_1/newton"] == (0, 3)
    more = Space.of(circuit.with_counts({"h.0.attn/init": 15, "h.1.attn/refine": 14}))
    tops = dict(zip(more.names, more.upper))
    assert (tops["h.0.attn/init"], tops["h.1.attn/init"], tops["h.1.attn/refine"]) == (15, 9, 14)
    lower, upper = more.shared_bounds()
    assert (lower.tolist(), upper.tolist()) == ([1, 0, 2, 1], [13, 3, 15, 14])
    wide = more.spread(np.array([[13, 3, 15, 14]]))[0]
    assert (wide == np.array(more.upper)).all()  # within every site's own bounds
    iterations = circuit.calibration.iterations()
    start = np.array([space.calibrated])
    assert space.iterations(start)[0] == sum(iterations.values())
    assert space.spent(start)[0] == sum(iterations.values()) + iterations["norm_newton"]  # two levels each


def test_ways_down_go_from_the_calibrated_counts_to_the_least(circuit: Circuit) -> None:
    space = Space.of(circuit)
    lower, ways = np.array(space.lower), space.ways_down()
    assert len(ways) == len(space.kinds) + 1
    for way in ways:
        assert (way[0] == space.start()[0]).all()
        assert (way[1:] <= way[:-1]).all()
        assert (way >= lower).all()
    assert (ways[-1][-1] == lower).all()
    for first, last in ((ways[-1][0], ways[-1][2]), (ways[0][0], ways[0][1])):
        steps = np.concatenate([[first], space.between(first, last), [last]])
        assert ((steps[1:] != steps[:-1]).sum(axis=1) == 1).all()
        assert len(np.unique(steps, axis=0)) == 1 + (first != last).sum()
    assert space.between(lower, lower).shape == (0, len(lower))


def test_nsga_finds_the_front_of_a_known_problem() -> None:
    """Counts x, y: both objectives pull apart, sums below 6 are infeasible."""
    asked = []

    def worth(generation: int, x: Any) -> Worth:
        asked.append((generation, len(x)))
        error = 2.0 ** -x[:, 0] + 3.0 ** -x[:, 1]
        return Worth(objectives=np.stack([x.sum(axis=1) * 1.0, error], axis=1), excess=6.0 - x.sum(axis=1))

    found = evolve(np.array([0, 0]), np.array([9, 9]), worth, population=12, generations=30, seed=0)
    assert asked[:2] == [(0, 12), (1, 12)]
    best = found.counts[found.front()].tolist()
    least = {s: min(2.0**-x + 3.0 ** -(s - x) for x in range(max(0, s - 9), min(9, s) + 1)) for s in (6, 7, 8, 9)}
    for x, y in best[:4]:
        assert 2.0**-x + 3.0**-y == pytest.approx(least[x + y])
    assert best[0] in ([4, 2], [3, 3])


def test_front_is_what_nothing_dominates() -> None:
    rng = np.random.default_rng(0)
    worth = Worth(objectives=rng.integers(0, 9, (60, 2)) * 1.0, excess=rng.integers(-1, 2, 60) * 1.0)
    kept = front(worth)
    assert (worth.excess[kept] <= 0).all()
    for i in np.flatnonzero(worth.excess <= 0):
        below = (worth.objectives[kept] <= worth.objectives[i]).all(axis=1)
        assert below.any()
        if i in kept:
            assert (worth.objectives[kept[below]] == worth.objectives[i]).all()


def test_a_search_ends_with_a_front_and_the_cheapest_good_circuit(
    circuit: Circuit, texts: tuple[Any, Any], tmp_path: Path
) -> None:
    found = search(circuit, *texts, SHORT, folder=tmp_path)
    assert found.candidates == SHORT.candidates == 6 * 4 + 8 * 6
    assert len(found.ends) == 8
    kept = [end for end in found.ends if end.front]
    for a, b in pairwise(kept):
        assert a.price < b.price
        assert a.error > b.error
    assert all(
        any(k.price <= e.price and k.error <= e.error for k in kept) for e in found.ends if e.error <= found.bound
    )
    chosen = found.chosen
    assert chosen is not None
    limit = 1.02 * found.calibrated.perplexity
    assert chosen.perplexity <= limit
    assert all(e.price >= chosen.price for e in found.ends if e.perplexity <= limit and e.error <= found.bound)
    assert chosen.levels < found.calibrated.levels  # looser than 1e-4 is cheaper
    made = found.applied(circuit)
    assert made.calibration.counts() == {**circuit.calibration.counts(), **chosen.counts}
    assert made.weights is circuit.weights
    assert sum(made.calibration.iterations().values()) == chosen.iterations
    assert made.notes["search"]["chosen"]["levels"] == chosen.levels
    body = json.loads((tmp_path / "front.json").read_text())["body"]
    assert body == found.as_json()
    assert [end["front"] for end in body["ends"]] == [end.front for end in found.ends]


def test_the_same_seed_gives_the_same_and_another_another(
    circuit: Circuit, texts: tuple[Any, Any], whole: Found
) -> None:
    again, other = (search(circuit, *texts, replace(SHORT, seed=seed)) for seed in (4, 5))
    assert again == whole
    assert [end.counts for end in other.ends] != [end.counts for end in whole.ends]


@pytest.mark.parametrize("after", [0, 4, 10])
def test_killed_anywhere_it_goes_on_to_the_same_end(
    circuit: Circuit, texts: tuple[Any, Any], whole: Found, tmp_path: Path, after: int
) -> None:
    with pytest.raises(Killed):
        search(circuit, *texts, SHORT, folder=tmp_path, reporter=Killer(after))
    answers = tmp_path / "answers.jsonl"
    lines = answers.read_bytes().splitlines(keepends=True)
    answers.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])  # the last line half written
    assert search(circuit, *texts, SHORT, folder=tmp_path) == whole
    before = answers.read_bytes()
    assert search(circuit, *texts, SHORT, folder=tmp_path) == whole
    assert answers.read_bytes() == before  # finished: nothing is computed again


def test_other_settings_are_refused_by_name(circuit: Circuit, texts: tuple[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(Killed):
        search(circuit, *texts, SHORT, folder=tmp_path, reporter=Killer(0))
    for change, words in (({"seed": 9}, "seed 4, not 9"), ({"population": (6, 10)}, r"population \[6, 8\]")):
        with pytest.raises(ConfigError, match=rf"begun with {words}.*-o"):
            search(circuit, *texts, replace(SHORT, **change), folder=tmp_path)
    with pytest.raises(ConfigError, match="begun with circuit"):
        search(circuit.with_counts({"ln_f/newton": 2}), *texts, SHORT, folder=tmp_path)
    with pytest.raises(ConfigError, match="begun with text"):
        search(circuit, texts[0][::-1], texts[1], SHORT, folder=tmp_path)


def test_answers_to_other_questions_are_refused(circuit: Circuit, texts: tuple[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(Killed):
        search(circuit, *texts, replace(SHORT, bound=9.0), folder=tmp_path, reporter=Killer(1))
    answers = tmp_path / "answers.jsonl"
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    lines[2]["candidates"][0][0] += 1
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="another pymoo or numpy"):
        search(circuit, *texts, replace(SHORT, bound=9.0), folder=tmp_path)


def test_a_bound_below_the_calibrated_error_is_infeasible(circuit: Circuit, texts: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match=r"bound 1e-05 is infeasible.*itself is off by 0\.00\d+.*--bound"):
        search(circuit, *texts, replace(SHORT, bound=1e-5))


def test_the_measured_bound_admits_every_probe_that_is_good_enough(circuit: Circuit, texts: tuple[Any, Any]) -> None:
    loose, tight = (search(circuit, *texts, replace(SHORT, generations=(0, 0), within=w)) for w in (0.02, 1e-6))
    assert loose.bound > tight.bound >= loose.calibrated.error
    assert loose.calibrated.error > 0


def test_the_bound_is_measured_a_site_at_a_time_where_whole_steps_go_too_far(
    circuit: Circuit, texts: tuple[Any, Any], tmp_path: Path
) -> None:
    found = search(circuit, *texts, replace(SHORT, generations=(0, 0), within=1e-4), folder=tmp_path)
    asked = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    limit = next(a["answers"][0] for a in asked if a["question"] == "calibrated perplexity") + np.log1p(1e-4)
    errors, losses = {}, {}
    for name in ("probes", "probes between"):
        for line in asked:
            rows = [tuple(row) for row in line["candidates"]]
            if line["question"] == name:
                errors |= dict(zip(rows, line["answers"]))
            if line["question"] == f"{name}, perplexity":
                losses |= dict(zip(rows, line["answers"]))
    assert errors.keys() == losses.keys()
    good = [errors[row] for row, loss in losses.items() if loss is not None and loss <= limit]
    assert found.bound == max(found.calibrated.error, *good)
    whole = {tuple(row) for way in Space.of(circuit).ways_down() for row in way.tolist()}
    assert set(errors) - whole  # some candidates lie between


def test_where_nothing_is_good_enough_the_best_is_named(circuit: Circuit, texts: tuple[Any, Any]) -> None:
    found = search(circuit, *texts, replace(SHORT, generations=(0, 0)))
    none = replace(found, chosen=None)
    with pytest.raises(ConfigError, match=r"within 2 %.*the best has .*--generations"):
        none.applied(circuit)


def test_a_given_price_is_minimised_and_recorded(circuit: Circuit, texts: tuple[Any, Any], tmp_path: Path) -> None:
    """Predicted seconds of plans: each end's is its own plan's, and a finished search makes no plan again."""
    params, short = (
        preset("insecure-native-11"),
        replace(SHORT, population=(4, 4), generations=(1, 1), objective="seconds"),
    )
    price = PlanSeconds(circuit, params)
    found = search(circuit, *texts, short, folder=tmp_path, price=price)
    end = found.ends[0]
    made = plan(circuit.with_counts(end.counts), params, programs=(ProgramName.LOGITS,))
    assert end.price >= made.program(ProgramName.LOGITS).predicted_seconds > 0  # of the MLP's two variants the better
    assert end.price == pytest.approx(made.program(ProgramName.LOGITS).predicted_seconds, rel=0.05)

    def never(counts: Any) -> Any:
        raise AssertionError("planned again")

    assert search(circuit, *texts, short, folder=tmp_path, price=never) == found


def test_noise_changes_what_is_found(circuit: Circuit, texts: tuple[Any, Any]) -> None:
    short = replace(SHORT, generations=(1, 1))
    clear, noisy = search(circuit, *texts, short), search(circuit, *texts, replace(short, sigma=2e-2))
    assert noisy.calibrated.error > 2 * clear.calibrated.error
    assert math.isfinite(noisy.calibrated.perplexity)


def test_coarse_products_are_for_candidates_alone(
    circuit: Circuit, texts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tf32 errors are measured on coarser products and perplexities are not; afterwards torch is as it was."""
    seen: dict[str, set[str]] = {"errors": set(), "nats": set()}
    run = Batched._run

    def watched(self: Batched, counts: Any, wanted: str) -> Any:
        seen["errors" if wanted == self._last else "nats"].add(torch.get_float32_matmul_precision())
        return run(self, counts, wanted)

    monkeypatch.setattr(Batched, "_run", watched)
    before = torch.get_float32_matmul_precision()
    few = SearchSettings(population=(4, 4), generations=(1, 1), seed=4, dtype="tf32")
    found = search(circuit, *texts, few)
    assert seen == {"errors": {"high"}, "nats": {"highest"}}
    assert torch.get_float32_matmul_precision() == before
    precise = search(circuit, *texts, replace(few, dtype="float32"))
    assert seen["errors"] == {"high", "highest"}
    assert found.calibrated.perplexity == precise.calibrated.perplexity


def test_windows_that_cannot_be_run_are_refused(circuit: Circuit, texts: tuple[Any, Any]) -> None:
    long = np.zeros((2, 30), dtype=np.int64)
    with pytest.raises(DataError, match="context of 16"):
        search(circuit, long, texts[1], SHORT)
    with pytest.raises(DataError, match="vocabulary of 64"):
        search(circuit, texts[0] + 64, texts[1], SHORT)
    with pytest.raises(DataError, match="shape"):
        search(circuit, texts[0], texts[1][:, :1], SHORT)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"population": (2, 8)}, "at least 4"), ({"bound": 0.0}, "above 0"), ({"within": -1.0}, "within")],
)  # fmt: skip
def test_settings_that_can_never_work(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(SHORT, **change)
