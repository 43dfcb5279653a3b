# SPDX-License-Identifier: Apache-2.0
"""What a command scores, by its name: a circuit, its plan on an engine, a prepared model, a plain checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.cli.bench_engine import DEFAULT_PARAMS, DEVICES
from heatfhe.cli.evaluate import fallback_params, open_endpoint
from heatfhe.cli.model_source import circuit_folder, model_folder
from heatfhe.errors import ConfigError
from heatfhe.evaluation import CircuitScorer, PlanScorer, PreparedScorer, Scorer
from heatfhe.models import tokenizer_files
from heatfhe.planning import PRECISION, ProgramName, cost_table, default_cost, plan, preset

MODES = ("deployed", "exact")


def add_scorer_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, and how its logits are made."""
    parser.add_argument(
        "model",
        help="comes first: a circuit folder, 'default' or 'default-calibrated', or the folder of a checkpoint, "
        "prepared (with its heat.json) or plain",
    )
    parser.add_argument(
        "--engine", choices=("none", *sorted(DEFAULT_PARAMS)), default="none",
        help="run the circuit's plan on this engine, token by token; none: the circuit itself, in float64",
    )  # fmt: skip
    parser.add_argument("--params", help="parameter set of the plan (default: the engine's own toy set)")
    parser.add_argument("--positions", type=int, metavar="T", help="tokens the plan has room for (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where an engine or a checkpoint runs")
    parser.add_argument(
        "--sigma", type=float, default=0.0, help="without an engine: noise at every site's input and output"
    )
    parser.add_argument("--noise", metavar="FILE", type=Path, help="clear engine: a table of heat measure-noise")
    parser.add_argument("--noise-seed", type=int, default=0, help="of that noise; each sequence has its own")
    parser.add_argument("--mode", choices=MODES, default=None, help="of a checkpoint (default: deployed if prepared)")


FIELDS = ("model", "engine", "params", "positions", "threads", "device", "sigma", "noise", "noise_seed", "mode")


def scorer_options(args: argparse.Namespace) -> dict[str, Any]:
    """The same as plain values, so that lm_eval keeps them beside its results."""
    found = {name: getattr(args, name) for name in FIELDS}
    return {name: str(v) if isinstance(v, Path) else v for name, v in found.items() if v is not None}


def open_scorer(
    *,
    model: str,
    engine: str = "none",
    params: str | None = None,
    positions: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    sigma: float = 0.0,
    noise: str | None = None,
    noise_seed: int = 0,
    mode: str | None = None,
) -> Scorer:
    """The scorer behind a command's options; what does not go together is refused before anything is loaded."""
    folder = circuit_folder(model)
    is_circuit = (folder / "circuit.json").is_file()
    if not is_circuit and (engine != "none" or sigma or noise is not None):
        raise ConfigError(f"{model}: a checkpoint has no plan and no noise; export it to a circuit first (heat export)")
    if is_circuit and mode is not None:
        raise ConfigError(f"{model}: --mode is for a checkpoint; a circuit is what a deployed one computes")
    if engine != "none" and sigma:
        raise ConfigError("--sigma is for a circuit without an engine; use --noise FILE with --engine clear")
    if noise is not None and engine != "clear":
        raise ConfigError("--noise is for --engine clear; a real engine has its own, --sigma is for a circuit alone")
    if not is_circuit:
        return _checkpoint(model, mode, device)
    circuit = Circuit.load(folder)
    if engine == "none":
        return CircuitScorer(circuit, sigma=float(sigma), seed=int(noise_seed))
    chosen = preset(params or fallback_params(engine))
    costs = cost_table(default_cost(chosen, "cpu" if engine == "clear" else device))
    programs = [ProgramName.LOGITS]
    if circuit.calibration.argmax is not None:
        programs += [ProgramName.GENERATE, ProgramName.PROMPT]
    context = min(positions or circuit.room, circuit.room)
    made = plan(circuit, chosen, programs=programs, context=context, cost=costs, precision=PRECISION)
    given = argparse.Namespace(
        engine=engine, device=device, threads=int(threads), seed=int(noise_seed), processor_time=False,
        noise=None if noise is None else Path(noise),
    )  # fmt: skip
    return PlanScorer(made, circuit, open_endpoint(given, made))


def _checkpoint(model: str, mode: str | None, device: str) -> Scorer:
    folder = model_folder(model)
    from heatfhe.sites import load_checkpoint, load_prepared, prepare

    known = (folder / "heat.json").is_file()
    chosen: Any = mode or ("deployed" if known else "exact")
    if chosen == "deployed" and not known:
        raise ConfigError(
            f"{model}: a plain checkpoint has no constants to deploy; heat train makes them, or --mode exact"
        )
    loaded = load_checkpoint(folder)
    prepared = load_prepared(folder, loaded) if known else prepare(loaded)
    prepared.to(device)
    return PreparedScorer(prepared, tokenizer_files(folder), mode=chosen, name=Path(model).name)
