# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: weights, optimizer and position, written whole or not at all, read back bit for bit."""

from __future__ import annotations

import logging
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from heatfhe.errors import ConfigError, FileFormatError, TrainingError
from heatfhe.files import atomic_directory, file_digest, plain, read_json, rebuilt, remade, same_json, write_json
from heatfhe.halting import BackOff
from heatfhe.records import Calibration
from heatfhe.sites import Prepared
from heatfhe.training.sharding import like, whole

KIND, VERSION = "heatfhe-checkpoint", 1
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
PHASES = ("squeeze", "heat", "cooldown", "done")
REMEDY = "delete the run folder to start over"
log = logging.getLogger(__name__)


@dataclass
class Position:
    """Where a run stands.

    ``update`` counts within the phase, ``step`` over the whole run, ``rows`` the windows consumed; ``entered`` says
    that the phase's own preparation (calibration, freezing) is done. ``validation`` is the last held-out loss, ``seed``
    the iterations by family of the calibration that seeded phase two, ``variances`` the squeeze's bound on every norm,
    ``weights`` those of the sites in the iteration loss (none: all alike).
    """

    phase: str = "squeeze"
    update: int = 0
    micro_steps: int = 0
    skipped: int = 0
    rows: int = 0
    step: int = 0
    entered: bool = False
    validation: float | None = None
    seed: dict[str, int] = field(default_factory=dict)
    variances: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    targets: BackOff | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ConfigError(f"unknown phase {self.phase!r}; have {', '.join(PHASES)}")
        for name in ("update", "micro_steps", "skipped", "rows", "step"):
            if not 0 <= getattr(self, name) < 1 << 48:
                raise ConfigError(f"a run's {name} is a count, got {getattr(self, name)}")

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return plain(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Position:
        """Inverse of as_json."""
        return remade(cls, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What state.json says: everything of a checkpoint but its tensors, whose hashes are in ``files``."""

    position: Position
    identity: Mapping[str, str]
    machine: Mapping[str, Any]
    calibration: Calibration | None
    max_counts: Mapping[str, int]
    counts: Mapping[str, int]
    logits: Mapping[str, tuple[float, ...]]
    optimizer: Mapping[str, float]
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if set(self.files) != {WEIGHTS, OPTIMIZER}:
            raise ConfigError(f"a checkpoint has the hashes of {WEIGHTS} and {OPTIMIZER}")

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return plain(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> State:
        """Inverse of as_json."""
        return remade(cls, body)


def machine() -> dict[str, Any]:
    """What a bit-identical resumption needs to be equal."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}


def save(
    folder: Path,
    prepared: Prepared,
    optimizer: Optimizer,
    position: Position,
    identity: Mapping[str, str],
    *,
    write: bool = True,
) -> None:
    """Write a checkpoint. A failure (a full disk, a kill) leaves the previous one in place.

    Between two phases the optimizer's moments stay out: the next one begins with fresh ones. Where weights are split
    over processes all of them call it, and one has ``write``.
    """
    weights = {k: whole(v).detach().cpu().contiguous() for k, v in _untied(prepared.model.state_dict()).items()}
    tensors, scalars = _optimizer_tensors(optimizer) if position.entered else ({}, {})
    if not write:
        return
    try:
        with atomic_directory(folder) as partial:
            save_file(weights, partial / WEIGHTS)
            save_file(tensors, partial / OPTIMIZER)
            calibration = prepared.calibration
            body = {
                "position": position.as_json(),
                "identity": dict(identity),
                "machine": machine(),
                "calibration": None if calibration is None else calibration.as_json(),
                "max_counts": {s.name: s.max_count for s in prepared.sites},
                "counts": dict(prepared.switch.counts),
                "logits": prepared.halting.dump(),
                "optimizer": scalars,
                "files": {name: file_digest(partial / name) for name in (WEIGHTS, OPTIMIZER)},
            }
            write_json(partial / STATE, KIND, VERSION, body)
    except (OSError, SafetensorError) as err:
        raise TrainingError(
            f"{folder}: the checkpoint could not be written ({err}); the previous one is intact. Free some space and "
            "start the same command again"
        ) from err


def load(folder: Path, prepared: Prepared, identity: Mapping[str, str]) -> tuple[Position, dict[str, Any]] | None:
    """Restore weights, calibration, counts and logits; return the position and the optimizer's state, None if absent.

    Refuses a checkpoint of another model, recipe or text; warns when torch, threads or machine differ. Call ``recover``
    first, from one process.
    """
    if not (folder / STATE).exists():
        return None
    where = {"where": str(folder / STATE), "remedy": REMEDY}
    state = rebuilt(State.from_json, read_json(folder / STATE, KIND, (VERSION,)), **where)
    for what, value in identity.items():
        if state.identity.get(what) != value:
            raise TrainingError(
                f"{folder}: this checkpoint belongs to another {what}; continue with the one it was made with, or give "
                "another run folder"
            )
    for name, digest in state.files.items():
        if not (folder / name).exists() or file_digest(folder / name) != digest:
            raise FileFormatError(f"{folder / name}: missing or altered; {REMEDY}")
    if state.machine != machine():
        log.warning(
            "resuming on %s what was begun on %s: results may differ in the last bits", machine(), state.machine
        )
    weights, slots = _tensors(folder / WEIGHTS), _tensors(folder / OPTIMIZER)
    _check_weights(folder / WEIGHTS, weights, prepared.model.state_dict())
    _check_sites(folder / STATE, state, prepared)
    prepared.model.load_state_dict(weights, strict=False)  # tied weights stand there once
    if state.calibration is not None:
        prepared.adopt(state.calibration, max_counts=state.max_counts)
        prepared.halting.load(state.logits)
        prepared.set_counts(state.counts)
    return state.position, {"tensors": slots, "scalars": state.optimizer}


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as err:
        raise FileFormatError(f"{path}: cannot be read ({err}); {REMEDY}") from err
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise FileFormatError(f"{path}: {name[:64]} holds values that are not finite; {REMEDY}")
    return tensors


def _check_weights(path: Path, weights: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
    """Every tensor of the model, in its shape and type, and no other; of tied ones at least the first, all alike."""
    first = {tensor.data_ptr(): name for name, tensor in reversed(list(model.items())) if tensor.numel()}
    for name, tensor in weights.items():
        own = model.get(name)
        if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
            raise FileFormatError(f"{path}: {name[:64]} is not a tensor of this model, or has another shape; {REMEDY}")
        twin = weights.get(first.get(own.data_ptr(), name))
        if twin is None or not torch.equal(twin, tensor):
            raise FileFormatError(f"{path}: {name} differs from the weight it is tied to; {REMEDY}")
    if missing := set(_untied(model)) - set(weights):
        raise FileFormatError(f"{path}: {sorted(missing)[0]} is missing; {REMEDY}")


def _check_sites(path: Path, state: State, prepared: Prepared) -> None:
    """Counts and logits of every site; before a calibration the logits are still those a model starts with."""
    names = {site.name for site in prepared.sites}
    whole = set(state.max_counts) == set(state.logits) == names
    if state.calibration is not None:
        whole = whole and set(state.counts) == names
    else:
        whole = whole and not state.counts and same_json(state.logits, prepared.halting.dump())
    kept = {"dtype": prepared.halting.logits.dtype}  # a logit is what the model can hold, no longer fraction
    whole = whole and all(torch.tensor(v, **kept).tolist() == list(v) for v in state.logits.values())
    if not whole:
        raise FileFormatError(f"{path}: holds counts or logits of other sites than the model has; {REMEDY}")


def recover(folder: Path) -> None:
    """After a kill in the midst of a save: the old checkpoint back under its name, if the new one had not taken it.

    One process of a run does it, while no other writes: it removes every half-written checkpoint.
    """
    for spare in folder.parent.glob(f".{folder.name}.*.old"):
        if not folder.exists():
            os.replace(spare, folder)
        shutil.rmtree(spare, ignore_errors=True)
    for partial in folder.parent.glob(f".{folder.name}.*.partial"):
        shutil.rmtree(partial, ignore_errors=True)


def restore_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put a checkpoint's moments back into an optimizer with the same parameter groups."""
    tensors: Mapping[str, Tensor] = state["tensors"]
    left = set(tensors) | set(state["scalars"])
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            key = f"{g}.{i}"
            names = [f"{key}.exp_avg", f"{key}.exp_avg_sq"]
            if left.isdisjoint((key, *names)):
                continue
            step, moments = state["scalars"].get(key, -1.0), [tensors[name] for name in names if name in tensors]
            fits = [(m.shape, m.dtype) == (parameter.shape, parameter.dtype) for m in moments] == [True, True]
            if not (fits and step >= 0 and bool((moments[1] >= 0).all())):
                raise FileFormatError(f"{OPTIMIZER}: the moments of parameter {key} are not its own; {REMEDY}")
            left -= {key, *names}
            where = parameter.device if group["fused"] else None  # a fused step keeps its counter on the device
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step), device=where),
                "exp_avg": like(moments[0], parameter),
                "exp_avg_sq": like(moments[1], parameter),
            }
    if left:
        raise FileFormatError(f"{OPTIMIZER}: has moments of a parameter nobody trains; {REMEDY}")


def _optimizer_tensors(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, float]]:
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, float] = {}
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            slot = optimizer.state.get(parameter)
            if slot:
                scalars[f"{g}.{i}"] = float(slot["step"])
                for name in ("exp_avg", "exp_avg_sq"):
                    tensors[f"{g}.{i}.{name}"] = whole(slot[name]).detach().cpu().contiguous()
    return tensors, scalars


def _untied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each storage once: tied weights share one, which a safetensors file refuses."""
    kept: dict[int | str, tuple[str, Tensor]] = {}
    for name, tensor in state.items():
        own: Tensor = getattr(tensor, "to_local", lambda tensor=tensor: tensor)()
        kept.setdefault(own.data_ptr() or name, (name, tensor))  # a share without elements is nowhere
    return dict(kept.values())
