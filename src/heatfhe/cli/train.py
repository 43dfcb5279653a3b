# SPDX-License-Identifier: Apache-2.0
"""heat train: learn counts and weights together, then export the circuit."""

from __future__ import annotations

import argparse
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatfhe.cli.console import Console
from heatfhe.cli.model_source import (
    NOISE_SET,
    PLAN_SETS,
    add_model,
    add_prefix,
    carried_in,
    load_text,
    prices_in,
    text_folder,
)
from heatfhe.cli.provenance import RUN_FILE, RUN_KIND, RUN_VERSION, run_facts
from heatfhe.errors import ConfigError
from heatfhe.files import write_json
from heatfhe.models import encoder
from heatfhe.odd import beside, some_of
from heatfhe.planning import Packing

if TYPE_CHECKING:
    from heatfhe.stages import Shape
    from heatfhe.training import Recipe

HELP = """Fine-tune a model with HEAT (or an ablation of it) and export the circuit.

The run folder holds log.jsonl, checkpoint/ (start the same command again to go on), model/ (a plain checkpoint with its
tokenizer, plus heat.json), and circuit/ at the end. Windows are as long as the recipe says or the model allows, and the
circuit takes texts of that length."""
EXAMPLES = """  heat train default -o out/heat
  heat train my-gpt2 --text corpus.txt -o out/mine
  heat train my-gpt2 --text corpus.txt --context 64 --updates 2000 --lr 1e-4 --batch 32 -o out/mine
  heat train my-gpt2 --text corpus.txt --also code.txt --also letters.txt -o out/heat
  heat train default --preset depth-only -o out/depth-only
  heat train openai-community/gpt2-large --text corpus.txt --recompute -o out/large
  heat train default --preset plan-aware --plan-set insecure-native-12 -o out/plan-aware
  torchrun --nproc-per-node 2 -m heatfhe.cli train default -o out/heat
"""
STRESSED = 8  # odd windows of each kind that a finished circuit is shown
CARD = ("windows", "positions", "diverged", "outside", "faint")  # what its card keeps of them
INTERRUPTED = "start the same command again to go on from its last checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_model(parser)
    add_prefix(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, help="run folder")
    parser.add_argument(
        "--text", help="text file, .jsonl, .npy of token ids, or hf:NAME; default: the embedded stories"
    )
    parser.add_argument(
        "--recipe",
        help="default-model (default up to 20 M parameters), gpt2-small (default above) or tiny",
    )
    parser.add_argument("--context", type=int, metavar="T", help="tokens of a window (default: the recipe's, or fewer)")
    parser.add_argument("--updates", type=int, help="of all phases together (default: the recipe's)")
    parser.add_argument("--lr", type=float, help="the highest learning rate of any phase (default: the recipe's)")
    parser.add_argument("--batch", type=int, help="windows per update (default: the recipe's)")
    parser.add_argument(
        "--preset",
        default="heat",
        help="heat (default), squeezed, depth-only, fixed-counts, control, control-distilled, plan-aware, "
        "stairs or noisy",
    )
    parser.add_argument("--solver", choices=("plain", "relaxed"), default="plain", help="default plain")
    parser.add_argument("--noise", type=float, help="train under refresh noise of this standard deviation")
    parser.add_argument(
        "--noise-set", default=NOISE_SET, metavar="NAME",
        help=f"parameter set at whose sizes values meet that noise (default {NOISE_SET}, the paper's window)",
    )  # fmt: skip
    parser.add_argument(
        "--plan-set", metavar="NAME",
        help="parameter set whose plans say what iterations cost, for --preset plan-aware or stairs (default: "
        f"{PLAN_SETS[0]}, or {PLAN_SETS[1]} for a model that does not fit it)",
    )  # fmt: skip
    parser.add_argument("--margin", type=float, help="widen each domain by this factor (default: the recipe's)")
    parser.add_argument(
        "--activation-tolerance", type=float,
        help="largest error of an activation's polynomial; relu needs about 1e-2 (default: the recipe's, 1e-3)",
    )  # fmt: skip
    parser.add_argument(
        "--also", action="append", default=[], metavar="TEXT",
        help="other text the circuit must hold on, as --text; taught by the model's own predictions (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--also-share", type=float, default=0.04, help="of the windows for each --also, at most (default 0.04)"
    )
    parser.add_argument("--odd", type=float, metavar="SHARE", help="of odd windows, 0 to 0.5 (default: the recipe's)")
    parser.add_argument("--micro-tokens", type=int, help="tokens of one forward pass; lower it if memory runs out")
    parser.add_argument(
        "--recompute", action="store_true",
        help="compute a block's activations again on the way back instead of keeping them: a fraction of the memory, "
        "about a third more time, the same gradients",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--share", type=float, default=1.0, help="shorten every phase, for trials (default 1)")
    parser.add_argument("--shard", action="store_true", help="under torchrun: split the weights over processes (FSDP)")
    parser.add_argument("--held-out", type=int, default=64, help="windows kept for validation (default 64)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Train, save, export."""
    import torch

    from heatfhe.evaluation import STRESS_HEADERS, stress_prepared, stress_rows
    from heatfhe.lowering import export
    from heatfhe.sites import PrepareConfig, described, prepare, save_prepared
    from heatfhe.training import Stopped, check_memory, train, training_memory

    if args.out.exists() and not args.out.is_dir():
        raise ConfigError(f"{args.out}: is a file; give a folder for the run")
    folder = text_folder(args.model)
    encode, end = encoder(folder)
    prefix = tuple(encode(args.prefix))
    architecture, parameters = described(folder)
    shape = architecture.shape
    chosen = _recipe(args, shape, len(prefix))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    where: dict[str, Any] = {"gpu": torch.cuda.is_available(), "processes": processes, "shard": args.shard}
    need = training_memory(architecture, parameters, chosen, **where)
    check_memory(need, chosen, str(args.model))
    prepared = prepare(folder, PrepareConfig(prefix=prefix))
    windows = load_text(args.text, args.model, encode, chosen.context, end)
    training, held_out = windows.split(min(args.held_out, max(1, len(windows.rows) // 10)))
    for text in args.also:
        other = load_text(text, args.model, encode, chosen.context, end)
        training = training.mixed(some_of(other.rows, beside(args.also_share, len(windows.rows), "--also-share")))
    console.print(
        f"{chosen.name}: {chosen.updates} updates on {len(training.rows)} windows of {chosen.context} tokens "
        f"(the model's own context: {shape.context})"
    )
    made_from = run_facts(args, chosen, training, held_out, parent=prepared.fingerprint())
    try:
        with _finish_the_update(console) as stop:
            options: dict[str, Any] = {"held_out": held_out, "folder": args.out, "reporter": console.reporter}
            carried = carried_in(args.noise_set, prepared.architecture)
            told = (args.plan_set, prepared.architecture, len(prefix) + chosen.context)
            prices = prices_in(*told) if chosen.priced else None
            options |= {"carried": carried, "prices": prices}
            trained = train(prepared, training, chosen, **options, stop=stop, shard=args.shard)
    except Stopped:
        console.print(f"stopped; the same command goes on from {args.out / 'checkpoint'}")
        return 130
    if _followed(torch):
        return 0
    write_json(args.out / RUN_FILE, RUN_KIND, RUN_VERSION, made_from)
    save_prepared(prepared, args.out / "model", tokenizer=folder)
    place, name = args.out / "circuit", f"{Path(args.model).name}-{args.preset}"
    kinds = stress_rows(held_out.rows[:, :-1], prepared.architecture.shape.vocabulary, chosen.context, STRESSED)
    stress = stress_prepared(prepared, kinds, batch=4, reporter=console.reporter)
    notes = {"stress": {s.kind: {k: getattr(s, k) for k in CARD} for s in stress}}
    circuit = export(prepared, trained.calibration, place, tokenizer=folder, name=name, notes=notes)
    before, after = trained.seed_iterations, trained.iterations
    rows = [(family, before.get(family, "-"), count) for family, count in after.items()]
    console.table(("family", "calibrated", "learned"), [*rows, ("all", sum(before.values()), sum(after.values()))])
    done = f"{trained.updates} updates in {trained.seconds:.0f} s, {trained.skipped} skipped"
    console.print(f"held-out loss {trained.validation:.4f}, deployed {trained.deployed:.4f}, {done}")
    if before and sum(after.values()) > sum(before.values()):
        console.warn(
            f"{sum(after.values())} iterations were learned, more than the {sum(before.values())} it began with, as "
            "calibrated: the run was too short for the counts to come down. Train longer (--share, --updates), into "
            "another folder, or keep the calibrated counts (--preset squeezed)"
        )
    if trained.diverged:
        console.warn(
            f"{trained.diverged} held-out windows diverge once the guards are gone. In the first, {trained.left}. "
            f"Train again with --margin {chosen.margin + 0.1:.2g}, into another folder"
        )
    console.table(STRESS_HEADERS, [s.row() for s in stress])
    if lost := sum(s.diverged for s in stress):
        console.warn(
            f"{lost} of {sum(s.windows for s in stress)} odd windows diverge: on such input the circuit gives nothing "
            f"of use. Train again with --odd {min(0.5, 2 * max(chosen.odd_share, 0.02)):.2g}, into another folder; "
            f"heat stress {place} shows more"
        )
    console.print(f"circuit: {place}, for texts of up to {circuit.room} tokens")
    console.print(f"next: heat plan {place} --params insecure-native-12-r40   (a toy; native-16-r40 is secure)")
    facts = {
        "stress": [s.as_json() for s in stress],
        "iterations": after,
        "calibrated": before,
        "circuit": str(place),
        "digest": circuit.digest,
    }
    shown = ("validation", "deployed", "diverged", "updates", "skipped", "seconds")
    console.json(facts | {k: getattr(trained, k) for k in shown})
    return 0


def _recipe(args: argparse.Namespace, shape: Shape, public: int) -> Recipe:
    """The recipe that was asked for, fitted to the model."""
    from heatfhe.training import ablation, fitting

    chosen = fitting(replace(shape, context=shape.context - public), args.recipe, args.solver, context=args.context)
    Packing(shape, 1 << 20, public + chosen.context)  # no ring holds more than it says
    if any(value is not None for value in (args.updates, args.lr, args.batch)):
        chosen = chosen.adjusted(updates=args.updates, lr=args.lr, batch=args.batch)
    chosen = replace(ablation(args.preset, chosen), seed=args.seed, recompute=args.recompute)
    given = {"noise": args.noise, "margin": args.margin, "odd_share": args.odd, "micro_tokens": args.micro_tokens}
    given["activation_tolerance"] = args.activation_tolerance
    chosen = replace(chosen, **{name: value for name, value in given.items() if value is not None})
    return chosen if args.share == 1.0 else chosen.scaled(args.share)


def _followed(torch: Any) -> bool:
    """Whether this was one of several processes, and not the one that writes; leaves their group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    rank = torch.distributed.get_rank()
    torch.distributed.destroy_process_group()
    return bool(rank != 0)


class _finish_the_update:
    """Ctrl-C ends the run after the update in flight, with a checkpoint; a second Ctrl-C ends it at once."""

    def __init__(self, console: Console) -> None:
        self._console, self._asked = console, False
        self._previous: Any = None

    def __enter__(self) -> Any:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return lambda: self._asked

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, *_: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._console.warn("finishing this update, then saving; press again to stop at once")
