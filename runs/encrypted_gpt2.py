# SPDX-License-Identifier: Apache-2.0
"""GPT-2 small under encryption at 128 bits on one GPU, in stages: train a HEAT circuit, then plan, make keys, run it.

    python runs/encrypted_gpt2.py train --checkpoint DIR --train TOKENS.npy --heldout TOKENS.npy --out OUT [--share 1.0]
    python runs/encrypted_gpt2.py run --circuit OUT/circuit --prompts TOKENS.npy --out OUT [--tokens 16] [--prompt 8]
    python runs/encrypted_gpt2.py run --fixture heat --out OUT            # HEAT's published counts, weights all equal

``run`` prints one JSON line for each thing it finishes and writes them to OUT/run.jsonl: the plan, the keys, the first
tokens (which encode every diagonal and make the recordings), the tokens after them, the logits beside the clear
engine's, and seconds by operator beside the plan's prediction. Keys are this process's own; keyring and engine exchange
wire forms alone. Needs CuPy; neither numba nor a web framework.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT.parent / "src"))
sys.path.insert(0, str(ROOT))

CACHE = 60 << 30  # diagonals stay on the GPU
CONTEXT = 128


class Journal:
    """One JSON line for each thing that is finished."""

    def __init__(self, path: Path) -> None:
        self.path, self.began = path, time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at": round(time.perf_counter() - self.began, 2), **facts})
        print(line, flush=True)
        with self.path.open("a") as f:
            f.write(line + "\n")


def train_stage(args: argparse.Namespace) -> None:
    """The recipe of runs/heat_gpt2_wiki.py, its argmax fitted, exported as a circuit."""
    import torch
    from heat_gpt2_wiki import wiki
    from transformers import AutoModelForCausalLM

    from heatfhe.lowering import export
    from heatfhe.sites import prepare
    from heatfhe.training import cut, preset, recipe, train

    torch.set_float32_matmul_precision("high")
    journal = Journal(args.out / "train.jsonl")
    options = argparse.Namespace(
        lr=5e-5, lowest_lr=None, push=None, margin=None, slack=None, loose_first=None, share=args.share
    )
    chosen = preset("heat", wiki(recipe("gpt2-small", "plain"), options))
    parent = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32)
    prepared = prepare(parent.to("cuda" if torch.cuda.is_available() else "cpu").eval())
    windows, held = (cut(np.load(p).astype(np.int64), chosen.context) for p in (args.train, args.heldout))
    held = replace(held, rows=held.rows[:8])
    trained = train(prepared, windows, chosen, held_out=held, tensorboard=False)
    journal.write("trained", iterations=trained.iterations, seconds=trained.seconds, validation=trained.validation)
    circuit = export(prepared, trained.calibration, args.out / "circuit", name="gpt2-small-wiki-heat", context=CONTEXT)
    journal.write("exported", digest=circuit.digest)


class Watch:
    """Seconds by operator, the engine waited for after every step."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.seconds, self._last = engine, Counter[str](), 0.0

    def start(self, task: str, total: int | None = None) -> None:
        self.engine.synchronize()
        self._last = time.perf_counter()

    def advance(self, task: str, **facts: Any) -> None:
        self.engine.synchronize()
        now = time.perf_counter()
        kind = "refresh" if str(facts["kind"]).startswith("bootstrap") else "rest"
        self.seconds[f"{facts['operator']}, {kind}"] += now - self._last
        self._last = now

    def done(self, task: str) -> None:
        pass


def run_stage(args: argparse.Namespace) -> None:
    from heatfhe.circuit import Circuit
    from heatfhe.client import NativeKeyring
    from heatfhe.engine import ClearEngine, Decode, MemoryKeys, NativeEngine, key_request
    from heatfhe.planning import cost_table, default_cost, plan, preset, tally

    journal = Journal(args.out / "run.jsonl")
    if args.fixture:
        from gpt2_small_fixture import gpt2_small

        circuit = gpt2_small(args.fixture)
    else:
        circuit = Circuit.load(args.circuit)
    params = preset(args.params)
    context = min(CONTEXT, circuit.shape.context)
    costs = cost_table(args.costs or default_cost(params, args.device))
    programs = ("generate", "prompt", "logits") if args.logits else ("generate", "prompt")
    made = plan(circuit, params, programs=programs, context=context, mlp="A", cost=costs)
    steps = made.program("generate")
    refreshes = Counter(f"{s.kind}, period {s.period}" for s in steps.bootstraps())
    priced = {k: t.seconds for k, t in tally(made, "generate", costs).items()}
    counts = circuit.calibration.iterations()
    journal.write(
        "plan", circuit=circuit.name, params=params.name, log2_qp=params.log_qp, security=params.security_bits,
        iterations=counts, steps=len(steps.steps), refreshes=dict(refreshes), rotations=len(made.rotations),
        predicted=sum(priced.values()), cost=made.cost,
    )  # fmt: skip

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

    rng = np.random.default_rng(0)
    text = np.load(args.prompts).astype(np.int64) if args.prompts else rng.integers(0, circuit.shape.vocabulary, 4096)
    source = made.source(circuit)
    level = steps.inputs["x"].level

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
        start = 1000 * number + 17
        prompt = [int(t) for t in text[start : start + args.prompt]]
        decode = Decode(made, engine, source)
        spent = [timed(partial(decode.prompt, [put(t)]))[1] for t in prompt[:-1]]
        got, leaders, seconds = [], [], []
        for i in range(args.tokens):
            parts, took = timed(partial(decode.generate, None if i else [put(prompt[-1])]))
            row = read(parts)
            got.append(int(row.argmax()))
            leaders.append(round(float(row.max()), 4))
            seconds.append(round(took, 4))
            journal.write("token", prompt=number, position=decode.position - 1, seconds=took, word=got[-1])
        if number or args.count == 1:
            per_token += seconds[3:]
        logits = circuit.run(np.array([[*prompt, *got[:-1]]]))[0, len(prompt) - 1 :]
        wanted = logits.argmax(axis=1)
        gaps = np.sort(logits, axis=1)[:, -1] - logits[np.arange(len(got)), got]
        journal.write(
            "conversation", prompt=number, tokens=got, same=int((wanted == got).sum()), of=len(got),
            misses=[{"at": int(i), "logit_gap": float(gaps[i])} for i in np.flatnonzero(wanted != got)],
            leaders=leaders, prompt_seconds=[round(s, 4) for s in spent], seconds=seconds,
        )  # fmt: skip
    if per_token:
        median = statistics.median(per_token)
        journal.write("seconds per token", median=median, tokens=len(per_token), predicted=sum(priced.values()))

    watch = Watch(engine)
    decode = Decode(made, engine, source, reporter=watch, recorded=False)
    prompt = [int(t) for t in text[17 : 17 + 3]]
    for token in prompt[:-1]:
        decode.prompt([put(token)])
    decode.generate([put(prompt[-1])])
    watch.seconds.clear()
    decode.generate()
    journal.write("by operator", seconds=dict(watch.seconds), total=sum(watch.seconds.values()), predicted=priced)

    if args.logits:
        clear = ClearEngine(params, strict=False)  # the first positions pass planned bounds, well inside the window
        pair = Decode(made, engine, source), Decode(made, clear, source)
        for token in prompt:
            x = made.packing.pack_residual(circuit.folded.token[token])
            rows = (
                read(pair[0].logits([put(token)])),
                made.packing.unpack_vocabulary([p.slots for p in pair[1].logits([clear.value(x, level)])]),
            )
            error = float(np.abs(rows[0] - rows[1]).max() / np.abs(rows[1]).max())
            journal.write("logits", position=pair[0].position - 1, error=error, bits=float(-np.log2(error)))
    facts = {k: getattr(engine, k) for k in ("memory", "device_name", "peak") if hasattr(engine, k)}
    journal.write("memory", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("train", "run"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--heldout", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the recipe's updates")
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
    args = parser.parse_args()
    (train_stage if args.stage == "train" else run_stage)(args)


if __name__ == "__main__":
    main()
