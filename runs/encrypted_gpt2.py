# SPDX-License-Identifier: Apache-2.0
"""GPT-2 small under encryption at 128 bits on one GPU, in stages: train a HEAT circuit, then plan, make keys, run it.

    python runs/encrypted_gpt2.py train --checkpoint DIR --train TOKENS.npy --out OUT [--share 1.0] [--preset heat]
        [--solver plain] [--odd 0.04] [--set margin=1.2 heat.lambda_iter=0.9] [--also CODE.npy ...]
    python runs/encrypted_gpt2.py stress --model OUT/model --heldout TOKENS.npy --out OUT [--texts A.npy B.npy]
    python runs/encrypted_gpt2.py calibrate --checkpoint DIR --train TOKENS.npy --out OUT
    python runs/encrypted_gpt2.py run --circuit OUT/circuit --prompts TOKENS.npy --out OUT [--tokens 16] [--prompt 8]
    python runs/encrypted_gpt2.py run --fixture heat --out OUT            # HEAT's published counts, weights all equal
    python runs/encrypted_gpt2.py run --circuit OUT/circuit --prompts TOKENS.npy --out OUT --count 0 --trace 6
    python runs/encrypted_gpt2.py clear-noise --circuit OUT/circuit --prompts TOKENS.npy --out OUT --count 64
        [--device cpu --processes 16]

``run`` prints one JSON line for each thing it finishes and writes them to OUT/run.jsonl: the plan, the keys, the first
tokens (which encode every diagonal and make the recordings), the tokens after them, the logits beside the clear
engine's, and seconds by operator beside the plan's prediction. Keys are this process's own; keyring and engine exchange
wire forms alone. Needs CuPy; neither numba nor a web framework.

``--logits`` compares encrypted logits of the first positions with the clear engine's; ``--trace N`` does so for N
positions and looks at telling steps in between: every one to OUT/trace.json, a line per place to OUT/trace.txt, the
steps that add most to the journal. ``clear-noise`` runs the same plan on the clear engine with refresh noise: logits by
position, and free-running tokens with the argmax, against the circuit's own. On a GPU all prompts are one batch; with
``--device cpu`` each is a process's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gpt2_stages import CONTEXT, Journal, calibrate_stage, drowning, stress_stage, train_stage

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

if TYPE_CHECKING:
    from heatfhe.circuit import Circuit
    from heatfhe.planning import Plan

CACHE = 60 << 30  # diagonals stay on the GPU
CLEAR_CACHE = 8 << 30  # and the clear engine's in memory: making them takes 30 times as long as a position
SIGMAS = (1e-7, 2e-7)  # a refresh's noise as measured on a GPU, and as the parameter set states it
JOBS: dict[str, Any] = {}  # what forked processes find


class Watch:
    """Seconds by operator on the engine's own clock, read when a token is done: nothing waits in between."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.seconds = engine, Counter[str]()
        self.ends: dict[str, set[int]] = {}  # by program, where its stretches end; every step if not known
        self._marks: list[tuple[str, Any]] = []
        self._step = 0

    def start(self, task: str, total: int | None = None) -> None:
        self._step, self._marks = 0, [("", self.engine.mark())]

    def advance(self, task: str, **facts: Any) -> None:
        self._step += 1
        if self._step in self.ends.get(task, {self._step}):
            kind = "refresh" if str(facts["kind"]).startswith("bootstrap") else "rest"
            self._marks.append((f"{facts['operator']}, {kind}", self.engine.mark()))

    def done(self, task: str) -> None:
        self.engine.synchronize()
        for (_, before), (name, now) in pairwise(self._marks):
            self.seconds[name] += self.engine.elapsed(before, now)


def planned(args: argparse.Namespace, journal: Journal) -> tuple[Circuit, Plan, dict[str, float]]:
    """The circuit, its plan, and the predicted seconds of a token by operator."""
    from heatfhe.circuit import Circuit
    from heatfhe.planning import cost_table, default_cost, plan, preset, tally

    if args.fixture:
        from gpt2_small_fixture import gpt2_small

        circuit = gpt2_small(args.fixture)
    else:
        circuit = Circuit.load(args.circuit)
    params = preset(args.params)
    journal.write("circuit", iterations=circuit.calibration.iterations(), **drowning(circuit, args.params))
    context = min(CONTEXT, circuit.room)
    costs = cost_table(args.costs or default_cost(params, args.device))
    logits = args.logits or args.trace or args.stage == "clear-noise"
    programs = ("generate", "prompt", "logits") if logits else ("generate", "prompt")
    made = plan(circuit, params, programs=programs, context=context, mlp="A", cost=costs, precision=args.precision)
    steps = made.program("generate")
    refreshes = Counter(f"{s.kind}, period {s.period}" for s in steps.bootstraps())
    priced = {k: t.seconds for k, t in tally(made, "generate", costs).items()}
    journal.write(
        "plan", circuit=circuit.name, params=params.name, log2_qp=params.log_qp, security=params.security_bits,
        iterations=circuit.calibration.iterations(), steps=len(steps.steps), refreshes=dict(refreshes),
        rotations=len(made.rotations), predicted=sum(priced.values()), cost=made.cost,
    )  # fmt: skip
    return circuit, made, priced


def words(args: argparse.Namespace, circuit: Circuit) -> np.ndarray:
    """The token ids that prompts are cut from."""
    rng = np.random.default_rng(0)
    return np.load(args.prompts).astype(np.int64) if args.prompts else rng.integers(0, circuit.shape.vocabulary, 4096)


def prompt_of(text: np.ndarray, number: int, length: int) -> list[int]:
    return [int(t) for t in text[1000 * number + 17 :][:length]]


def scored(circuit: Circuit, prompt: list[int], got: list[int], rows: list[np.ndarray] | None = None) -> dict[str, Any]:
    """Tokens beside the circuit's own on the same prefix, of tokens and of the rows fed back; a miss with its gap."""
    logits = circuit.run(np.array([[*prompt, *got[:-1]]]))[0, len(prompt) - 1 :]
    wanted = logits.argmax(axis=1)
    gaps = np.sort(logits, axis=1)[:, -1] - logits[np.arange(len(got)), got]
    misses = [{"at": int(i), "logit_gap": float(gaps[i])} for i in np.flatnonzero(wanted != got)]
    facts = {"tokens": got, "same": int((wanted == got).sum()), "of": len(got), "misses": misses}
    if rows:
        fed = circuit.follow(prompt, rows[:-1])
        apart = fed.max(axis=1) - fed[np.arange(len(got)), got]
        ties = np.diff(np.sort(fed, axis=1)[:, -2:], axis=1)[:, 0]
        facts |= {"row_gaps": apart.round(4).tolist(), "least_lead": float(ties.min())}
    return facts


def run_stage(args: argparse.Namespace) -> None:
    from heatfhe.client import NativeKeyring
    from heatfhe.engine import Conversation, MemoryKeys, NativeEngine, Runner, key_request

    journal = Journal(args.out / "run.jsonl")
    circuit, made, priced = planned(args, journal)
    request = key_request(made)
    began = time.perf_counter()
    ring = NativeKeyring(request, device=args.device)
    blobs = dict(ring.evaluation_keys())
    made_keys = time.perf_counter() - began
    began = time.perf_counter()
    engine: Any = NativeEngine(request, MemoryKeys(blobs), device=args.device, cache_bytes=CACHE)
    engine.synchronize()
    journal.write(
        "keys", count=len(blobs), upload_bytes=sum(map(len, blobs.values())), make_s=made_keys,
        load_s=time.perf_counter() - began,
    )  # fmt: skip
    del blobs

    text = words(args, circuit)
    source = made.source(circuit)
    level = made.program("generate").inputs["x"].level

    def put(token: int) -> Any:
        return engine.parse(ring.encrypt(made.packing.pack_residual(circuit.folded.token[token]), level=level))

    def timed(step: Any) -> tuple[Any, float]:
        engine.synchronize()
        start = time.perf_counter()
        out = step()
        engine.synchronize()
        return out, time.perf_counter() - start

    def read(parts: Any) -> np.ndarray:
        return made.packing.unpack_vocabulary([ring.decrypt(engine.dump(p)) for p in parts])

    per_token: list[float] = []
    for number in range(args.count):
        prompt = prompt_of(text, number, args.prompt)
        decode = Conversation(Runner(made, engine, source))
        spent = [timed(partial(decode.prompt, [put(t)]))[1] for t in prompt[:-1]]
        got, leaders, seconds, rows = [], [], [], []
        for i in range(args.tokens):
            parts, took = timed(partial(decode.generate, None if i else [put(prompt[-1])]))
            row = read(parts)
            rows.append(row)
            got.append(int(row.argmax()))
            leaders.append(round(float(row.max()), 4))
            seconds.append(round(took, 4))
            journal.write("token", prompt=number, position=decode.position - 1, seconds=took, word=got[-1])
        if number or args.count == 1:
            per_token += seconds[3:]
        journal.write(
            "conversation", prompt=number, **scored(circuit, prompt, got, rows), leaders=leaders,
            prompt_seconds=[round(s, 4) for s in spent], seconds=seconds,
        )  # fmt: skip
    if per_token:
        median = statistics.median(per_token)
        journal.write("seconds per token", median=median, tokens=len(per_token), predicted=sum(priced.values()))

    if args.count:
        watch, runner = Watch(engine), Runner(made, engine, source, by_operator=True)
        decode = Conversation(runner, reporter=watch)
        decode.generate([put(prompt_of(text, 0, 1)[0])])
        watch.ends = {name: {part.stop for part in parts} for name, parts in runner.parts.items()}
        for _ in range(4):  # as it is, recorded, and played twice: the last counts
            watch.seconds.clear()
            decode.generate()
        found = {k: sum(s for name, s in watch.seconds.items() if name.startswith(f"{k},")) for k in priced}
        ratios = {k: found[k] / seconds for k, seconds in priced.items() if seconds}
        journal.write(
            "by operator", seconds=dict(watch.seconds), total=sum(found.values()), predicted=priced, ratios=ratios
        )
    if args.logits or args.trace:
        compare_logits(args, journal, circuit, made, ring, engine)
    facts = {k: getattr(engine, k) for k in ("memory", "device_name", "peak") if hasattr(engine, k)}
    journal.write("memory", **facts)


def compare_logits(
    args: argparse.Namespace, journal: Journal, circuit: Circuit, made: Plan, ring: Any, engine: Any
) -> None:
    """Encrypted logits, and those of the clear engine under noise, beside its exact ones; with --trace, why."""
    from heatfhe.evaluation.encrypted import Endpoint
    from heatfhe.evaluation.lockstep import by_place, jumps, lockstep, logit_bits, telling
    from heatfhe.evaluation.noise_rows import logit_rows, noisy_engine

    tokens = prompt_of(words(args, circuit), 0, args.trace or 3)
    names = [*(f"{s:g}" for s in SIGMAS), f"{SIGMAS[0]:g} and what operations round"]
    clear = noisy_engine(
        made, (0.0, *SIGMAS, SIGMAS[0]), rounding=(0.0, *(0.0 for _ in SIGMAS), 1.0), cache_bytes=CLEAR_CACHE,
        device="cpu" if args.trace else args.device,
    )  # fmt: skip
    for position, rows in enumerate(logit_rows(made, circuit, clear, tokens)):
        bits = {name: logit_bits(rows[0], row) for name, row in zip(names, rows[1:])}
        journal.write("logits under noise", position=position, bits=bits)
    clear.noise = clear.rounding = None  # its plaintexts are made: the same engine is the reference
    end = Endpoint(engine, ring.encrypt, ring.decrypt)
    look = telling if args.trace else lambda step: False
    seen, pairs = lockstep(made, circuit, end, tokens, look=look, clear=clear)
    for position, (true, got) in enumerate(pairs):
        bits = logit_bits(true, got)
        journal.write("logits", position=position, error=2.0**-bits, bits=bits, largest=float(np.abs(true).max()))
    if not args.trace:
        return
    (args.out / "trace.json").write_text(json.dumps([s.as_json() for s in seen]))
    (args.out / "trace.txt").write_text("\n".join(map(place_line, by_place(seen))) + "\n")
    for position in range(len(tokens)):
        for s in jumps([s for s in seen if s.position == position], 4):
            journal.write("own error", bits=round(s.own_bits, 1), **s.as_json())
    print("\n".join(place_line(p) for p in by_place(seen) if p["position"] == 0))


def place_line(p: dict[str, Any]) -> str:
    """A place of the circuit: bits when it is entered and left, the least that one step of it kept."""
    kept = f"{p['first']:5.1f} -> {p['last']:5.1f}, own {p['own']:5.1f} at {p['at']} ({p['kind']})"
    return f"{p['position']:3d} {p['place']:18s} {kept}, {p['refreshes']} refreshes fill {p['filled']:.3f}"


def noise_stage(args: argparse.Namespace) -> None:
    """The plan on the clear engine with refresh noise: a batch on a GPU, or a process for each job; they share its
    plaintexts. The plan is that of a GPU on either."""
    import multiprocessing

    from heatfhe.evaluation.lockstep import logit_bits
    from heatfhe.evaluation.noise_rows import free_rows, logit_rows, noisy_engine

    journal = Journal(args.out / "clear-noise.jsonl")
    circuit, made, _ = planned(argparse.Namespace(**{**vars(args), "device": "cuda"}), journal)
    text = words(args, circuit)
    room = CACHE if args.device == "cuda" else CLEAR_CACHE
    engine = noisy_engine(made, (0.0, *SIGMAS), cache_bytes=room, device=args.device)
    Lines = list[tuple[str, dict[str, Any]]]

    def logits(numbers: list[int]) -> Lines:
        found = logit_rows(made, circuit, engine, np.array([prompt_of(text, n, args.prompt) for n in numbers]))
        out: Lines = []
        for at, number in enumerate(numbers):
            rows = [r[:, at] for r in found]
            bits = {f"{s:g}": [round(logit_bits(r[0], r[1 + i]), 2) for r in rows] for i, s in enumerate(SIGMAS)}
            out.append(("logits under noise", {"prompt": number, "bits": bits}))
        return out

    def tokens(numbers: list[int]) -> Lines:
        prompts = [prompt_of(text, n, args.prompt) for n in numbers]
        found = free_rows(made, circuit, engine, np.array(prompts), args.tokens)
        out: Lines = []
        for at, (number, prompt) in enumerate(zip(numbers, prompts)):
            rows = zip((0.0, *SIGMAS), found.tokens[:, at].tolist(), found.leaders[:, at].round(4).tolist())
            by = {f"{s:g}": {**scored(circuit, prompt, got), "leaders": leaders} for s, got, leaders in rows}
            out.append(("tokens under noise", {"prompt": number, "by_sigma": by}))
        return out

    JOBS.update(logits=logits, tokens=tokens, engine=engine)
    if args.device == "cuda":
        for kind in ("tokens", "logits"):
            for what, facts in noise_job((kind, list(range(args.count)))):
                journal.write(what, **facts)
        return
    logit_rows(made, circuit, engine, prompt_of(text, 0, 1))
    free_rows(made, circuit, engine, prompt_of(text, 0, 2), 1)
    journal.write("plaintexts made")
    jobs = [(kind, [n]) for n in range(args.count) for kind in ("tokens", "logits")]
    with multiprocessing.get_context("fork").Pool(args.processes) as pool:
        for lines in pool.imap_unordered(noise_job, jobs):
            for what, facts in lines:
                journal.write(what, **facts)


def noise_job(job: tuple[str, list[int]]) -> list[tuple[str, dict[str, Any]]]:
    """One job, in a process of its own or not, with noise that does not depend on the jobs before."""
    kind, numbers = job
    JOBS["engine"].rng = np.random.default_rng([*numbers, kind == "tokens"])
    found: list[tuple[str, dict[str, Any]]] = JOBS[kind](numbers)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = {"train": train_stage, "stress": stress_stage, "calibrate": calibrate_stage, "run": run_stage}
    stages["clear-noise"] = noise_stage
    parser.add_argument("stage", choices=tuple(stages))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--heldout", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the recipe's updates")
    parser.add_argument("--preset", default="heat", help="heat, control, control-distilled ...")
    parser.add_argument("--solver", choices=("plain", "relaxed"), default="plain")
    parser.add_argument("--odd", type=float, help="share of odd windows (default: the recipe's)")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=NUMBER", help="other fields of the recipe")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="token ids of other text to mix in")
    parser.add_argument("--model", type=Path, help="folder of the trained model (default: OUT/model)")
    parser.add_argument(
        "--texts", type=Path, nargs="*", default=[], help="token ids of further texts to stress it with"
    )
    parser.add_argument("--windows", type=int, default=500, help="of each kind and text in stress")
    parser.add_argument("--batch", type=int, default=4, help="windows at a time in stress")
    parser.add_argument("--seed", type=int, default=0, help="of the odd windows in stress")
    parser.add_argument("--circuit", type=Path)
    parser.add_argument("--fixture", choices=("heat", "calibrated"))
    parser.add_argument("--prompts", type=Path, help="token ids that prompts are cut from; random ones if not given")
    parser.add_argument("--params", default="native-16-r40-lean")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--costs", help="cost table to plan with (default: the set's own)")
    parser.add_argument("--count", type=int, default=1, help="prompts")
    parser.add_argument("--prompt", type=int, default=4, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=8, help="tokens generated after each")
    parser.add_argument("--logits", action="store_true", help="compare encrypted logits with the clear engine's")
    parser.add_argument("--precision", type=float, help="bits a refresh should keep, as in heat plan")
    parser.add_argument("--trace", type=int, default=0, help="positions to compare step by step")
    parser.add_argument("--processes", type=int, default=8, help="of clear-noise on a CPU")
    args = parser.parse_args()
    stages[args.stage](args)


if __name__ == "__main__":
    main()
