# SPDX-License-Identifier: Apache-2.0
"""Plans: pure data that round-trips, refuses what cannot work, and reads the same in every release (golden text)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, Conversation, OperationNoise, Runner, key_request, run
from heatfhe.engine.clear import ClearValue
from heatfhe.engine.protocol import Plain
from heatfhe.errors import ConfigError, FileFormatError, PlanError
from heatfhe.evaluation.lockstep import logit_bits
from heatfhe.evaluation.noise_rows import logit_rows, noisy_engine
from heatfhe.files import write_json
from heatfhe.planning import ALGORITHMS, CostTable, Plan, Program, ProgramName, Step, cost_table, plan, preset
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.scales import FULL, LOUD, scales
from heatfhe.planning.show import bars
from heatfhe.planning.tally import key_bytes, path, tally, weight_bytes
from heatfhe.planning.weights import Dense
from tests.engine.counting import CountingEngine
from tests.planning.clear_run import clear_params, quiet_sums
from tests.planning.plan_text import show
from tests.tiny import tiny_circuit, wide_circuit

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return tiny_circuit()


@pytest.fixture(scope="module")
def made(circuit: Circuit) -> Plan:
    return plan(circuit, clear_params(64))


def test_a_plan_round_trips_and_keeps_its_digest(made: Plan, tmp_path: Path) -> None:
    made.save(tmp_path / "a.plan")
    back = Plan.load(tmp_path / "a.plan")
    assert back == made
    assert back.digest == made.digest
    assert (tmp_path / "a.plan").stat().st_size < 1 << 20  # nothing model-sized is stored


def test_planning_is_deterministic(circuit: Circuit, made: Plan) -> None:
    assert plan(circuit, clear_params(64)).digest == made.digest


def test_altered_and_foreign_files_are_refused(made: Plan, tmp_path: Path) -> None:
    made.save(tmp_path / "a.plan")
    raw = json.loads((tmp_path / "a.plan").read_text())
    raw["body"]["context"] = 15
    (tmp_path / "b.plan").write_text(json.dumps(raw))
    with pytest.raises(FileFormatError, match="altered"):
        Plan.load(tmp_path / "b.plan")
    (tmp_path / "c.plan").write_text("{}")
    with pytest.raises(FileFormatError, match="expected a heatfhe-plan"):
        Plan.load(tmp_path / "c.plan")


def altered(made: Plan, step: dict[str, object], kind: str) -> dict[str, Any]:
    """A plan's body with fields of the first step of a kind replaced."""
    body = json.loads(json.dumps(made.as_json()))
    next(s for p in body["programs"] for s in p["steps"] if s["kind"] == kind).update(step)
    return body


@pytest.mark.parametrize(
    ("kind", "step", "message"),
    [
        ("rotate", {"modulus": 10**9}, "modulus 1000000000; a rotation follows the position modulo at most 64"),
        ("rotate", {"by": [64]}, "past the 64 slots"),
        ("rotate", {"by": []}, "rotates by 0 amounts"),
        ("add", {"args": [10**6, 0]}, "reads value 1000000 before it is made"),
        ("add", {"args": [0]}, "another number of values than 1"),
        ("multiply", {"results": [0]}, "one that is there already"),
        ("multiply", {"level": 99}, "ends at level 99, above"),
        ("multiply_plain", {"plains": []}, "meets 0 plaintexts, expected 1"),
        ("multiply_plain", {"plains": ["x*y"]}, "not a plaintext's key"),
        ("multiply_plain", {"plains": ["1*y^z"]}, "not a plaintext's key"),
        ("multiply_plain", {"plains": ["1.0*nobody"]}, "not a plaintext's key"),
        ("multiply_plain", {"plains": ["1.0*map:h.0.attn.c_attn/q:9:0"]}, "which no linear map of the plan has"),
        ("multiply_plain", {"plains": [1.0]}, "of the wrong kind"),
        ("linear", {"product": 3}, "of the wrong kind"),
        ("linear", {"product": "a/b"}, "not a linear map's key"),
        ("linear", {"product": "nobody"}, "which the plan does not list"),
        ("bootstrap", {"period": 3}, "refreshes period 3"),
        ("bootstrap", {"bound": 0.0}, "needs a power of two and a bound"),
        ("times", {"number": 2.5}, "of the wrong kind"),
        ("rotate", {"part": True}, "of the wrong kind"),
    ],
)
def test_a_plan_whose_parts_do_not_fit_is_refused_at_once(
    circuit: Circuit, tmp_path: Path, kind: str, step: dict[str, object], message: str
) -> None:
    """With its digest recomputed, as somebody hostile would; a rotation by a billion residues was once listed."""
    made = plan(circuit, clear_params(64), placement="greedy", mlp="A")
    write_json(tmp_path / "a.plan", "heatfhe-plan", 1, altered(made, step, kind))
    with pytest.raises(FileFormatError, match=message):
        Plan.load(tmp_path / "a.plan")


@pytest.mark.parametrize(
    "key", ["1.0*bias:nobody", "1.0*bias:a/q", "1.0*bias:nobody~", "1.0*map:a:0:0", "1.0*map:h.0.ln_1/q:0:0"]
)
def test_a_plaintext_nobody_knows_is_named(circuit: Circuit, made: Plan, key: str) -> None:
    """A plan can be legal and name what its circuit does not have."""
    with pytest.raises(ConfigError, match=r"plan again|no such linear map"):
        made.source(circuit).plain(Public.parse(key), 0).make()  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="is no linear map of this circuit"):
        nobody = Dense("nobody")
        odd = {nobody: replace(next(iter(made.products.values())), weight=nobody)}
        replace(made, products={**made.products, **odd}).source(circuit).linear_map(nobody).vector(0, 0).make()
    with pytest.raises(ConfigError, match="ask a PlaintextSource"):
        next(iter(made.products.values())).vector(0, 0)


def test_a_name_that_reads_as_another_is_refused(made: Plan) -> None:
    """A stage called x.3 would be read back as the fourth ciphertext of x."""
    one = replace(next(iter(made.products.values())), weight=Dense("x.3"))
    with pytest.raises(ConfigError, match=r"x\.3: a plan file would read this name as another"):
        replace(made, products={**made.products, one.weight: one})


def test_a_plan_serves_its_own_circuit_only(made: Plan) -> None:
    with pytest.raises(PlanError, match="another circuit"):
        made.source(tiny_circuit(seed=1))


def test_every_rotation_a_run_asks_for_is_listed_and_every_listed_one_is_used(circuit: Circuit, made: Plan) -> None:
    engine = CountingEngine(made.params, request=key_request(made))
    decode = Conversation(Runner(made, engine, made.source(circuit)))
    for _ in range(made.context - 1):
        decode.prompt([engine.value()])
    decode.generate([engine.value()])
    assert engine.used - {0} == set(made.rotations)


def test_steps_counted_are_steps_run(circuit: Circuit, made: Plan) -> None:
    engine = CountingEngine(made.params)
    decode = Conversation(Runner(made, engine, made.source(circuit)))
    decode.prompt([engine.value()])
    engine.counts.clear()
    decode.generate([engine.value()])
    found = tally(made, "generate", cost_table("unit"))
    assert engine.counts["bootstrap"] + engine.counts["bootstrap_pair"] == sum(t.bootstraps for t in found.values())
    assert engine.counts["bootstrap_pair"] == sum(t.paired for t in found.values())
    assert engine.counts["rotate_hoisted"] == sum(t.hoisted for t in found.values())
    assert engine.counts["rotate"] == sum(t.rotations for t in found.values())
    assert engine.counts["multiply"] == sum(t.products for t in found.values())
    assert engine.counts["relinearise"] == sum(t.relinearisations for t in found.values())
    plains = sum(t.plain_products + t.masks + t.scalars for t in found.values())
    assert engine.counts["multiply_plain"] == plains
    assert sum(t.seconds for t in found.values()) == pytest.approx(sum(t.bootstraps for t in found.values()))


def test_pairs_and_drops_count_in_predictions_where_a_table_prices_them(circuit: Circuit) -> None:
    """With pairs at the price of a refresh the placement is the old one, and drops come on top."""
    unit = cost_table("unit")
    rows = {"drop": tuple(0.001 * (level + 1) for level in range(9))}
    priced = replace(unit, pairs=unit.bootstrap, seconds={**unit.seconds, **rows})
    dear = replace(priced, pairs={p: 3.0 * s for p, s in unit.bootstrap.items()})
    old, new, other = (
        plan(circuit, clear_params(64), cost=t, programs=("generate",), mlp="A") for t in (unit, priced, dear)
    )
    program = new.program("generate")
    assert program.steps == old.program("generate").steps
    levels = program.levels()
    drops = sum(rows["drop"][levels[s.args[0]]] for s in program.steps if s.kind == "drop")
    assert drops > 0.1
    assert program.predicted_seconds == pytest.approx(old.program("generate").predicted_seconds + drops)
    found, before = (sum(t.seconds for t in tally(new, "generate", table).values()) for table in (priced, unit))
    assert found == pytest.approx(before + drops)
    pairs = [sum(len(s.results) == 2 for s in p.program("generate").bootstraps()) for p in (new, other)]
    assert pairs[0] > pairs[1] == 0  # at three times the price of a refresh nobody pairs
    thrice = sum(t.seconds for t in tally(new, "generate", dear).values())
    assert thrice == pytest.approx(found + 2 * pairs[0])


def test_steps_that_depend_on_the_position_are_priced_as_started_by_themselves(circuit: Circuit) -> None:
    unit = cost_table("unit")
    plain = replace(unit, pairs=unit.bootstrap, seconds={**unit.seconds, "drop": (0.0,)})
    priced = replace(plain, started={"multiply_plain": (0.5,), "rotate": (0.25,)})
    old, new = (plan(circuit, clear_params(64), cost=t, programs=("generate",), mlp="A") for t in (plain, priced))
    program = new.program("generate")
    assert program.steps == old.program("generate").steps
    moving = [s for s in program.steps if s.moves]
    masks = sum(len(s.args) for s in moving if s.kind.startswith("multiply_plain"))
    turns = sum(s.kind == "rotate" for s in moving)
    assert masks > 10
    assert turns > 0
    more = 0.5 * masks + 0.25 * turns
    assert program.predicted_seconds == pytest.approx(old.program("generate").predicted_seconds + more)
    found, before = (sum(t.seconds for t in tally(new, "generate", table).values()) for table in (priced, plain))
    assert found == pytest.approx(before + more)


def test_the_cache_keeps_one_level_over_all_programs(circuit: Circuit) -> None:
    made = plan(circuit, clear_params(64), programs=("generate", "prompt", "logits", "sample"))
    for program in made.programs.values():
        for name, (count, level) in made.cache.items():
            for port in (program.inputs[name], program.outputs[name]):
                assert (len(port.values), port.level) == (count, level)
    assert made.program("generate").outputs["next"].level == made.params.levels


def test_the_prompt_does_no_more_than_fill_the_cache(made: Plan) -> None:
    prompt, generate = made.program("prompt"), made.program("generate")
    assert not {"head", "argmax"} & set(prompt.counts())
    assert not any(s.name.startswith("h.1.mlp") for s in prompt.steps)  # of the last block only keys and values
    assert len(prompt.bootstraps()) < len(generate.bootstraps()) / 2


@pytest.mark.parametrize("slots", [32, 64, 256])
def test_exact_is_never_dearer_than_the_others(circuit: Circuit, slots: int) -> None:
    for table in ("unit", "paper-a100"):
        seconds = {}
        for name in ALGORITHMS:
            made = plan(circuit, clear_params(slots), placement=name, cost=table, programs=("generate",))
            seconds[name] = made.program("generate").predicted_seconds
        assert seconds["exact"] <= min(seconds.values()) * (1 + 1e-9)


def test_refusals_name_the_place_and_the_smallest_change(circuit: Circuit) -> None:
    with pytest.raises(PlanError, match=r"spends 4 levels|cut inside"):
        plan(circuit, clear_params(64, levels=3))
    with pytest.raises(PlanError, match="context is 16"):
        plan(circuit, clear_params(64), context=17)
    with pytest.raises(ConfigError, match="unknown placement"):
        plan(circuit, clear_params(64), placement="magic")
    with pytest.raises(ConfigError, match="unknown program"):
        plan(circuit, clear_params(64), programs=("dance",))
    whole = cost_table("unit")
    partial = CostTable.from_json({**whole.as_json(), "seconds": {"add": [0.0]}})
    with pytest.raises(PlanError, match="has no price for"):
        plan(circuit, clear_params(64), cost=partial)
    bare = replace(circuit, calibration=replace(circuit.calibration, magnitudes={}))
    with pytest.raises(PlanError, match="holds no magnitude"):
        plan(bare, clear_params(64))


def test_a_missing_program_is_named(made: Plan) -> None:
    with pytest.raises(ConfigError, match=r"no program 'logits'; it holds generate, prompt"):
        made.program("logits")


def test_steps_and_programs_check_themselves() -> None:
    with pytest.raises(ConfigError, match="unknown step"):
        Step(kind="jump", results=(0,), args=(), level=1)
    with pytest.raises(ConfigError, match="below zero"):
        Step(kind="multiply", results=(0,), args=(1, 2), level=-1)
    step = Step(kind="rotate", results=(1,), args=(0,), level=3, by=(5,), name="x")
    program = Program(name="generate", steps=(step,), inputs={}, outputs={})
    assert Program.from_json(json.loads(json.dumps(program.as_json()))) == program


def test_sizes_and_paths_are_reported(made: Plan) -> None:
    assert key_bytes(made) > 0
    assert weight_bytes(made, "generate") > weight_bytes(made, "prompt") > 0
    along = path(made.program("generate"))
    assert {level for _, level in along} <= set(range(made.params.levels + 1))
    assert along[-1][1] == made.params.levels
    assert len(bars(tally(made, "generate", cost_table(made.cost)))) == 9


@pytest.mark.parametrize("name", ["tiny-64", "tiny-1024"])
def test_golden_text(circuit: Circuit, name: str) -> None:
    """To accept a change: write show(plan) of the failing case over the file and read the difference."""
    made = plan(circuit, clear_params(int(name.split("-")[1])), cost="paper-a100")
    assert show(made) == (GOLDEN / f"plan_{name}.txt").read_text()


def test_a_tight_plan_has_the_same_refreshes_and_keeps_more_bits_of_rows_that_do_not_converge() -> None:
    circuit = tiny_circuit(layers=1, width=16, vocabulary=32, context=16)
    softmaxes = {  # sums of a wide domain, and iterations that reach a part of it: what training leaves behind
        n: replace(c, fit=replace(c.fit, refine=replace(c.fit.refine, lo=c.fit.refine.lo / 1e4)))
        for n, c in circuit.calibration.softmaxes.items()
        if c.fit.refine is not None
    }
    assert softmaxes
    wide = replace(circuit, calibration=replace(circuit.calibration, softmaxes=softmaxes))
    params = clear_params(64)
    plain, tight = (plan(wide, params, programs=("logits",), precision=p) for p in (None, 0.0))
    assert plan(wide, params, programs=("logits",)).digest == plain.digest != tight.digest
    assert tight.tight
    assert not plain.tight
    assert Plan.from_json(tight.as_json()).tight  # plaintexts are made for it wherever the plan is read
    assert len(tight.program("logits").bootstraps()) <= len(plain.program("logits").bootstraps())
    exact = wide.run(np.array([[3, 7, 5]]))[0]
    errors = []
    for made in (plain, tight):
        rows = logit_rows(made, wide, noisy_engine(made, (0.0, 1e-9)), [3, 7, 5])
        assert max(np.abs(r[0] - e).max() for r, e in zip(rows, exact)) < 1e-7  # the same function
        errors.append(np.abs(rows[0][1] - rows[0][0]).max())
    assert errors[1] < errors[0] / 10


class Rounding(ClearEngine):
    """A clear engine whose products err as those of a ciphertext do: by as much whatever their size."""

    ERROR = 1e-8

    def _rounded(self, a: ClearValue) -> ClearValue:
        assert self.rng is not None
        return ClearValue(a.slots + self.ERROR * self.rng.standard_normal(a.slots.shape), a.level)

    def _refreshed(self, a: ClearValue, period: int, bound: float) -> Any:
        """Copies keep the errors of their own, of which a refresh would take the mean."""
        return a.slots.real.astype(np.float64)

    def multiply(self, a: ClearValue, b: ClearValue) -> ClearValue:
        return self._rounded(super().multiply(a, b))

    def multiply_plain(self, a: ClearValue, p: Plain) -> ClearValue:
        return self._rounded(super().multiply_plain(a, p))


def test_many_iterations_survive_the_rounding_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first reciprocal whose domain reaches far beyond its text: its numerator may double at every iteration.

    Copies of a reciprocal are not added up here, which would take the mean of their errors.
    """
    monkeypatch.setattr("heatfhe.planning.programs.attention.loudness", quiet_sums)
    wide, params = wide_circuit(), clear_params(64, levels=13)
    exact, bits = wide.run(np.array([[3, 7, 5]]))[0], {}
    for ahead in (True, False):
        if not ahead:
            monkeypatch.setattr("heatfhe.planning.programs.attention.carried_ahead", lambda *_: 0)
        made = plan(wide, params, programs=("logits",), precision=8.0)
        engine = Rounding(params, strict=False, rng=np.random.default_rng(0))
        rows = [[engine.value(made.packing.pack_residual(wide.folded.token[t]))] for t in (3, 7, 5)]
        found = run(made, wide, engine, rows, program=ProgramName.LOGITS)
        logits = [made.packing.unpack_vocabulary([engine.read(p) for p in parts]) for parts in found]
        bits[ahead] = min(logit_bits(e, g) for e, g in zip(exact, logits, strict=True))
    assert bits[True] > 13.0
    assert bits[False] < 9.0


def test_loud_sums_survive_what_operations_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide first reciprocals in rows far from either end of their domain, at the rounding of N = 2^16 and 40 bits.

    Beside plans whose exponentials are carried so that the largest sum is one, with a first reciprocal's copies apart.
    """
    wide, params = wide_circuit(), clear_params(1024, levels=13)
    rounding = OperationNoise(params=preset("native-16-r40")).rounding / OperationNoise(params=params).rounding
    exact, bits = wide.run(np.array([[3, 7, 5]]))[0], {}
    for loud in (True, False):
        if not loud:
            monkeypatch.setattr("heatfhe.planning.programs.attention.loudness", quiet_sums)
        made = plan(wide, params, programs=("logits",), precision=8.0)
        engine = noisy_engine(made, (0.0,) + (1e-7,) * 4, rounding=(0.0,) + (rounding,) * 4)
        rows = logit_rows(made, wide, engine, [3, 7, 5])
        for e, row in zip(exact, rows, strict=True):
            assert np.abs(row[0] - e).max() < 1e-12  # the same function
        bits[loud] = np.mean([[logit_bits(e, r) for r in row[1:]] for e, row in zip(exact, rows)], axis=1)
    assert (bits[True] > 20.5).all(), bits  # 22.2, 21.6, 21.5
    assert (bits[False][1:] < 18.5).all(), bits  # 17.6, 16.9 where a row has several entries


def test_a_tight_stream_is_carried_louder_than_a_refresh_takes_its_squares() -> None:
    """What projections round then counts less; a plan says by how much, for its plaintexts are made when it runs."""
    circuit, params = tiny_circuit(layers=2, width=16, vocabulary=32, context=16), clear_params(64, levels=13)
    plain, tight = (scales(circuit, params.reach, tight=t) for t in (False, True))
    assert tight.residual == pytest.approx(LOUD * (FULL * params.reach / plain.aim) ** 0.5 * plain.residual)
    made = plan(circuit, params, programs=("logits",), precision=0.0)
    assert made.source(circuit).scales.residual == tight.residual
    older = replace(made, notes={k: v for k, v in made.notes.items() if k != "loud"})  # as it was saved before
    assert older.source(circuit).scales.residual == pytest.approx(tight.residual / LOUD)
    widest = max(s.bound for s in made.program("logits").bootstraps())
    assert widest <= params.reach  # sums above it are divided first
    exact = circuit.run(np.array([[3, 7]]))[0]
    for e, row in zip(exact, logit_rows(made, circuit, noisy_engine(made, (0.0,)), [3, 7]), strict=True):
        assert np.abs(row[0] - e).max() < 1e-12
