# SPDX-License-Identifier: Apache-2.0
"""heat bench-engine: seconds of every instruction and bootstrap of an engine on this machine, as a cost table."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heatfhe.cli.console import Console
from heatfhe.engine import Engine, describe_machine, measure_costs, measure_request
from heatfhe.errors import ConfigError
from heatfhe.planning import preset

HELP = "Measure an engine's cost table on this machine, with throwaway keys; heat plan --costs FILE uses it."
EXAMPLES = (
    "  heat bench-engine openfhe --params insecure-openfhe-12 --out costs.json\n"
    "  heat bench-engine native --params insecure-native-11 --periods 8,64 --levels 1,4,8\n"
)
DEVICES = ("cpu", "cuda")
DEFAULT_PARAMS = {"openfhe": "insecure-openfhe-11", "native": "insecure-native-11", "clear": "insecure-openfhe-11"}


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of commands that open an engine with throwaway keys."""
    parser.add_argument("engine", choices=sorted(DEFAULT_PARAMS), help="which engine")
    parser.add_argument("--params", help="parameter set (default: the engine's smallest)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine (default 1)")
    add_device_argument(parser)
    parser.add_argument("--out", type=Path, help="write the table to this file")


def add_device_argument(
    parser: argparse.ArgumentParser, words: str = "where the native engine runs: cpu (default) or cuda"
) -> None:
    """The option of commands that open an engine, or plan for one."""
    parser.add_argument("--device", choices=DEVICES, default="cpu", help=words)


def add_clock_argument(parser: argparse.ArgumentParser) -> None:
    """The option of commands that time an engine."""
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count processor seconds, not elapsed ones: for one thread on a busy machine",
    )


def clock_of(args: argparse.Namespace) -> Callable[[], float]:
    """The clock that was asked for."""
    if args.processor_time and args.threads != 1:
        raise ConfigError("--processor-time adds up all threads; use it with --threads 1")
    return time.process_time if args.processor_time else time.perf_counter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_engine_arguments(parser)
    add_clock_argument(parser)
    parser.add_argument("--periods", default="8,64", help="bootstrap periods besides the full one (default 8,64)")
    parser.add_argument("--levels", help="levels to measure at, such as 1,4,8 (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="each figure is the median of so many runs (default 5)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Open the engine, measure, print and write."""
    from heatfhe.client import open_engine  # only here: commands that take this module's options need no client

    params = preset(args.params or DEFAULT_PARAMS[args.engine])
    periods = [p for p in _integers("--periods", args.periods) if p < params.slots]
    levels = _integers("--levels", args.levels) if args.levels else None
    clock = clock_of(args)
    request = measure_request(params, periods)
    ring, engine = open_engine(args.engine, request, threads=args.threads, device=args.device)
    if not args.processor_time and os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1):
        console.warn("this machine is busy: these times are upper bounds")
    costs = measure_costs(
        engine,
        ring.encrypt,
        name=args.out.stem if args.out else f"{args.engine}-{params.name}",
        hardware=hardware_of(engine, args),
        periods=periods,
        repeats=args.repeats,
        levels=levels,
        reporter=console.reporter,
        clock=clock,
    )
    table = costs.table
    console.heading(f"{params.name} on {table.hardware}")
    shown = sorted({0, 1, params.levels // 2, params.levels})
    rows = [(word, *(1e3 * row[level] for level in shown)) for word, row in sorted(table.seconds.items())]
    rows.append(("encode", *(1e3 * costs.encode[level] for level in shown)))
    console.table(("milliseconds", *(f"level {level}" for level in shown)), rows)
    refreshes = [(period, one, table.pairs[period]) for period, one in sorted(table.bootstrap.items())]
    console.table(("bootstrap of period", "seconds", "of a pair"), refreshes)
    if args.out:
        table.save(args.out)
        console.print(f"wrote {args.out}")
    console.json(costs.as_json())
    return 0


def hardware_of(engine: Engine[Any], args: argparse.Namespace) -> str:
    """What was measured: the GPU, or this machine's processor."""
    if args.device == "cuda":
        return f"{getattr(engine, 'device_name', 'cuda')}; host: {describe_machine(args.threads)}"
    return describe_machine(args.threads) + (", processor time" if getattr(args, "processor_time", False) else "")


def _integers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"{option} takes whole numbers separated by commas, got {text!r}") from None
