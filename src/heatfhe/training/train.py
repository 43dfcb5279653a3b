# SPDX-License-Identifier: Apache-2.0
"""train: the three phases of HEAT, from a prepared model to counts, weights and constants ready to export."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heatfhe.circuit import facts_table
from heatfhe.errors import ConfigError
from heatfhe.halting import BackOff
from heatfhe.models import own_tokenizer
from heatfhe.odd import Hard, beside, odd_rows
from heatfhe.progress import SILENT, Reporter
from heatfhe.records import Calibration
from heatfhe.sites import Prepared
from heatfhe.training import checkpoint, sharding
from heatfhe.training.calibrations import borne_badly, calibrated, centred, refitted, typical_variances
from heatfhe.training.checkpoint import PHASES, Position
from heatfhe.training.constants import fixed_counts
from heatfhe.training.data import Windows, windows_of
from heatfhe.training.diagnose import Prices, Sizes, first_to_leave
from heatfhe.training.images import check_images
from heatfhe.training.journal import Journal
from heatfhe.training.loop import Run, run_phase
from heatfhe.training.losses import task_loss, window_losses
from heatfhe.training.recipe import Recipe
from heatfhe.training.recipes import fitting


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run ends with. The prepared model carries the weights; ``calibration`` the final constants and counts.

    ``validation`` is the last held-out loss of training, its guards on; ``deployed`` that of what will be exported,
    without guards. Where a held-out window leaves a domain and diverges it is infinite: ``diverged`` counts such
    windows, ``left`` names the site that left its domain first.
    """

    calibration: Calibration
    seed_iterations: Mapping[str, int]
    validation: float
    deployed: float
    skipped: int
    updates: int
    seconds: float
    diverged: int = 0
    left: str = ""

    @property
    def iterations(self) -> dict[str, int]:
        """Solver iterations per forward, by family."""
        return self.calibration.iterations()

    def _repr_html_(self) -> str:
        rows = {
            name: f"{self.seed_iterations.get(name, '-')} calibrated, {n} learned"
            for name, n in self.iterations.items()
        }
        own = {"held-out loss": f"{self.validation:.4f}", "deployed": f"{self.deployed:.4f}", "updates": self.updates}
        return facts_table("Trained", rows | own | {"seconds": round(self.seconds), "diverged": self.diverged})


def train(
    prepared: Prepared,
    text: Any,
    recipe: Recipe | str | None = None,
    *,
    held_out: Windows | None = None,
    tokenizer: Any = None,
    folder: str | Path | None = None,
    reporter: Reporter = SILENT,
    accelerator: Any = None,
    stop: Callable[[], bool] = bool,
    tensorboard: bool = True,
    argmax: bool = True,
    shard: bool = False,
    carried: Sizes | None = None,
    prices: Prices | None = None,
) -> Trained:
    """Run a recipe. With a ``folder`` it logs, checkpoints, and goes on where an earlier call of the same was killed.

    ``text`` is a file, ``hf:NAME``, a list of strings, a Hugging Face dataset (``windows_of``; a tenth, at most 64
    windows, is held out), Windows or, for a model of images, Images. The tokenizer is by default the one beside the
    checkpoint. ``recipe`` is one, the name of one, or chosen by the model's size; a named one is fitted to the model's
    context (``fitting``).

    Started by torchrun it runs in every process, on its share of each batch; with ``shard`` the weights are split over
    them too (FSDP). ``argmax=False`` leaves the argmax schedule out of the final constants: quicker, but then nothing
    can be exported. A recipe with noise needs ``carried``: the sizes at which the noise meets values
    (``planning.Carried``); one with a ``price_share`` or ``stairs`` needs ``prices``: what an iteration costs at each
    site (``planning.IterationPrices``).

    >>> trained = train(prepare("my-gpt2"), "corpus.txt", folder="out/heat")        # doctest: +SKIP
    >>> sum(trained.iterations.values())                                            # doctest: +SKIP
    """
    if not isinstance(recipe, Recipe):
        context = text.context if isinstance(text, Windows) else None
        recipe = fitting(prepared.architecture.shape, recipe or _usual(prepared), context=context)
    if isinstance(text, Windows):
        windows = text
    else:
        windows = windows_of(text, tokenizer or own_tokenizer(prepared.model), recipe.context)
        if held_out is None:
            windows, held_out = windows.split(min(64, max(1, len(windows.rows) // 10)))
    folder = None if folder is None else Path(folder)
    _check(prepared, windows, recipe)
    told = _told(recipe, carried, prices)
    accelerator = accelerator or _accelerator(recipe)
    _check_launch(accelerator, recipe, shard)
    began = time.monotonic()
    identity = {"model": prepared.fingerprint(), "recipe": recipe.digest, "text": _digest(windows), **told}
    prepared.to(accelerator.device)
    prepared.model.eval()  # no dropout: fine-tuning is short, and every update must be repeatable
    learning = [(p, p.requires_grad) for p in prepared.weights()]
    if not accelerator.is_main_process:
        reporter = SILENT
    hard = _agreed(borne_badly(prepared, recipe, reporter))
    windows = with_odd(windows, recipe, prepared.architecture.shape.vocabulary, hard)
    teacher = _teacher(prepared) if _is_taught(windows, recipe) else None
    position, resumed = _resumed(folder, prepared, identity, accelerator)
    journal = Journal(folder if accelerator.is_main_process else None, after=position.step, tensorboard=tensorboard)
    run = Run(
        prepared=prepared, teacher=teacher, windows=windows, held_out=held_out, recipe=recipe, accelerator=accelerator,
        position=position, journal=journal, folder=folder, identity=identity, reporter=reporter, stop=stop,
        sharded=shard, carried=carried, prices=prices, hard=hard,
    )  # fmt: skip
    _write_parent(run)
    run.prepared = sharding.sharded(prepared) if shard else prepared
    try:
        while position.phase != "done":
            phase = recipe.phases[position.phase]
            if not position.entered:
                _enter(run, position.phase)
                position.entered, resumed = True, None  # a phase begins with fresh moments
            if phase.updates:
                run_phase(run, position.phase, phase, resumed, _refits(run, position.phase))
            position.phase, position.update, position.entered = PHASES[PHASES.index(position.phase) + 1], 0, False
            run.save()
        if shard:
            sharding.give(run.prepared, prepared)
            run.prepared = prepared
        calibration = _finish(run, argmax)
        deployed, diverged, left = _deployed(run)
        if math.isfinite(deployed):
            # Past the last update, so that a finished run which is finished again writes it anew, once.
            journal.write("deployed", position.step + 1, {"loss": deployed, "counts": calibration.counts()})
    finally:
        journal.close()
        for parameter, learns in learning:
            parameter.requires_grad_(learns)
    return Trained(
        calibration=calibration,
        seed_iterations=dict(position.seed),
        validation=math.nan if position.validation is None else position.validation,
        deployed=deployed,
        skipped=position.skipped,
        updates=position.step,
        seconds=time.monotonic() - began,
        diverged=diverged,
        left=left,
    )


def _told(recipe: Recipe, carried: Sizes | None, prices: Prices | None) -> dict[str, str]:
    """The names of what plans tell this recipe; refuses one that asks for what it was not given."""
    told = {}
    if recipe.noise:
        if carried is None:
            raise ConfigError(
                "noise has no size by itself: pass train(carried=...), such as planning.Carried, or heat train "
                "--noise-set"
            )
        told["noise"] = carried.name
    if recipe.priced:
        if prices is None:
            raise ConfigError(
                "iterations have no price by themselves: pass train(prices=...), such as planning.IterationPrices, or "
                "heat train --plan-set"
            )
        told["plan"] = prices.name
    return told


def with_odd(windows: Windows, recipe: Recipe, vocabulary: int, hard: Hard | None = None) -> Windows:
    """The training windows with a recipe's odd ones among them."""
    count = beside(recipe.odd_share, len(windows.rows))
    odd = odd_rows(
        recipe.odd_kinds, count, windows.rows, vocabulary, recipe.seed, hard=hard, without=recipe.odd_without
    )
    return windows.mixed(odd)


def _agreed(hard: Hard | None) -> Hard | None:
    """What the first process found: a last bit decides which tokens count, and replicas must see the same windows."""
    from accelerate.utils import broadcast_object_list

    found = [hard]
    broadcast_object_list(found)
    return found[0]


def _usual(prepared: Prepared) -> str | None:
    """The recipe of a model that none was named for: that of images, or one by its size."""
    return "images" if prepared.grid is not None else None


def _is_taught(windows: Windows, recipe: Recipe) -> bool:
    """Whether anything is learned from the parent: a whole phase, or odd windows."""
    return any(p.updates and (p.distil or windows.odd is not None) for p in recipe.phases.values())


def _resumed(
    folder: Path | None, prepared: Prepared, identity: Mapping[str, str], accelerator: Any
) -> tuple[Position, dict[str, Any] | None]:
    """Where every process goes on: one tidies up, all read the same checkpoint, and nobody writes before all have."""
    if folder is None:
        return Position(), None
    if accelerator.is_main_process:
        checkpoint.recover(folder / "checkpoint")
    accelerator.wait_for_everyone()
    found = checkpoint.load(folder / "checkpoint", prepared, identity)
    accelerator.wait_for_everyone()
    return found if found is not None else (Position(), None)


def _enter(run: Run, phase: str) -> None:
    """What happens once before a phase: calibrate before phase two, freeze and re-fit before phase three."""
    recipe, prepared, position = run.recipe, run.prepared, run.position
    if phase == "squeeze" and recipe.squeeze.updates and recipe.squeeze.lambda_range > 0:
        centred(run)
        position.variances = typical_variances(run)
    if phase == "heat" and recipe.heat.updates and recipe.heat.halting != "none":
        centred(run)
        seed = calibrated(run, delta_2=recipe.delta_2)
        if recipe.counts == "fixed":
            wanted = recipe.fixed_total or round(recipe.fixed_share * sum(seed.iterations().values()))
            seed = seed.with_counts(fixed_counts(seed, wanted))
        own = {name: count + 1 for name, count in seed.counts().items()} if recipe.support == "site" else None
        prepared.adopt(seed, max_counts=own)
        position.seed = seed.iterations()
        # Under the first update it holds for, so that a run resumed before that update writes it anew, once.
        run.journal.write("calibrated", position.step + 1, {"iterations": seed.iterations(), "counts": seed.counts()})
        least = {"softmax_init": recipe.least_init, "softmax_refine": recipe.least_refine}
        enough = round(recipe.enough * sum(seed.iterations().values()))
        position.targets = BackOff.start(
            prepared.sites, patience=recipe.patience, gap=recipe.gap, least=least, enough=enough
        )
    if phase == "cooldown" and prepared.calibration is not None:
        if recipe.heat.halting == "soft":
            prepared.freeze()
        position.targets, position.weights = None, {}
        if recipe.cooldown.updates and recipe.cooldown.halting == "hard":
            _fit_again(run)
        if recipe.stairs:
            _onto_stairs(run)


def _onto_stairs(run: Run) -> None:
    """Frozen counts changed a little, to where the plan that the caller has is cheaper."""
    recipe, prepared, prices = run.recipe, run.prepared, run.prices
    assert prices is not None
    assert prepared.calibration is not None
    least = {"softmax_init": recipe.least_init, "softmax_refine": recipe.least_refine}
    own = prepared.counts()
    bounds = {s.name: (min(own[s.name], least.get(s.family, s.floor)), s.max_count) for s in prepared.sites}
    found = prices.on_stairs(prepared.calibration.with_counts(own), recipe.stairs, bounds)
    prepared.adopt(prepared.calibration.with_counts(found), keep_logits=True)
    changes = {name: found[name] - count for name, count in own.items() if found[name] != count}
    # Under the first update it holds for, so that a run resumed before that update writes it anew, once.
    run.journal.write("stairs", run.position.step + 1, {"changes": changes, "counts": dict(found)})


def _fit_again(run: Run) -> None:
    """Frozen counts go on with constants for the weights as they are."""
    run.prepared.adopt(refitted(run, argmax=False), keep_logits=True)


def _refits(run: Run, phase: str) -> dict[int, Callable[[], None]]:
    """By update, what happens within a phase: the recipe's refit in a cooldown on frozen counts."""
    recipe = run.recipe
    if phase != "cooldown" or not recipe.refit_at or recipe.cooldown.halting != "hard":
        return {}
    return {round(recipe.refit_at * recipe.cooldown.updates): lambda: _fit_again(run)}


def _finish(run: Run, argmax: bool) -> Calibration:
    """The final constants: re-fitted on the final weights where a range has left its fitted domain."""
    recipe, prepared = run.recipe, run.prepared
    if recipe.counts == "calibrated" or prepared.calibration is None:
        calibration = calibrated(run, argmax=argmax)
    else:
        calibration = refitted(run, argmax)
    calibration = replace(calibration, fingerprint=prepared.fingerprint())
    prepared.adopt(calibration, keep_logits=recipe.counts == "learned" and recipe.heat.halting == "soft")
    prepared.set_mode("deployed")
    return calibration


@torch.no_grad()
def _deployed(run: Run) -> tuple[float, int, str]:
    """Held-out loss of what will be exported, the windows that diverge, and what the first of these left first."""
    if run.held_out is None:
        return math.nan, 0, ""
    prepared = run.prepared
    rows, part = _validated_rows(run)
    loss = window_losses(prepared, rows, part)  # whole score matrices are held there
    bad = torch.nonzero(~torch.isfinite(loss)).flatten().tolist()
    left = first_to_leave(prepared, rows[bad[0], :-1][None]) if bad else ""
    return math.inf if bad else float(loss.mean()), len(bad), left


def _validated_rows(run: Run) -> tuple[Tensor, int]:
    """Held-out windows that are measured on, and how many at a time."""
    assert run.held_out is not None
    size = max(1, run.recipe.micro_tokens // run.recipe.context)
    rows = run.held_out.rows[: size * run.recipe.validate_batches]
    return torch.from_numpy(rows).to(run.accelerator.device), max(1, size // 8)


def _write_parent(run: Run) -> None:
    """Once, before the first update: held-out loss of the model as it came, exact. What follows is compared with it."""
    if run.position.step or run.held_out is None or run.folder is None or not run.is_main:
        return
    rows, part = _validated_rows(run)
    found = [
        task_loss(run.prepared.logits(some[:, :-1], mode="exact"), some[:, 1:]) * len(some) for some in rows.split(part)
    ]
    # Under the first update, so that a run resumed before that writes it anew, once.
    run.journal.write("parent", 1, {"loss": float(torch.stack(found).sum()) / len(rows)})


def _teacher(prepared: Prepared) -> torch.nn.Module:
    """A frozen copy of the parent with its own nonlinearities: sites keep every weight's name."""
    model: Any = prepared.model
    config = copy.deepcopy(model.config)
    if getattr(config, "activation_function", None) == "gelu_new":
        config.activation_function = "gelu_pytorch_tanh"  # the same function as one kernel instead of eight
    teacher: torch.nn.Module = type(model)(config)
    teacher.load_state_dict(model.state_dict())
    return teacher.to(next(model.parameters()).device).eval().requires_grad_(False)


def _accelerator(recipe: Recipe) -> Any:
    from accelerate import Accelerator

    narrow = recipe.precision == "bf16" and torch.cuda.is_available()
    return Accelerator(mixed_precision="bf16" if narrow else "no", cpu=not torch.cuda.is_available())


def _check_launch(accelerator: Any, recipe: Recipe, shard: bool) -> None:
    kind = accelerator.distributed_type.name
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise ConfigError(f"{kind}: launch with torchrun alone; train(shard=True), --shard, splits the weights")
    if shard and not recipe.train_weights:
        raise ConfigError("frozen weights have no gradients to split; run depth-only without shard")


def _check(prepared: Prepared, windows: Windows, recipe: Recipe) -> None:
    check_images(prepared, windows, recipe.odd_share)
    if windows.context != recipe.context:
        raise ConfigError(
            f"the windows hold {windows.context} tokens, the recipe's context is {recipe.context}; pack the text to it"
        )
    longest, public = prepared.architecture.shape.context, len(prepared.config.prefix)
    if recipe.context + public > longest:
        behind = f" behind a prefix of {public}" if public else ""
        raise ConfigError(f"the recipe's context {recipe.context}{behind} exceeds the model's {longest}")
    if prepared.grid is not None:
        return
    top = int(windows.rows.max())
    if top >= prepared.architecture.shape.vocabulary or int(windows.rows.min()) < 0:
        raise ConfigError(
            f"token ids up to {top} do not fit the model's vocabulary of {prepared.architecture.shape.vocabulary}; "
            "use its own tokenizer"
        )


def _digest(windows: Windows) -> str:
    marks = b"" if windows.odd is None else windows.odd.tobytes()  # none: as before there were any
    return hashlib.sha256(windows.rows.tobytes() + marks).hexdigest()
