# SPDX-License-Identifier: Apache-2.0
"""heat evaluate: encrypted decoding against the circuit's own logits, teacher-forced or free-running, on any engine."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.circuit import Circuit
from heatfhe.cli.bench_engine import (
    DEFAULT_PARAMS,
    add_clock_argument,
    add_device_argument,
    clock_of,
)
from heatfhe.cli.console import Console, warn_exceeded
from heatfhe.cli.model_source import add_precision_argument, circuit_tokens, text_circuit
from heatfhe.client import load_keyring, open_engine
from heatfhe.engine import ClearEngine, NoiseTable, key_request
from heatfhe.errors import ConfigError, DataError, MissingExtraError
from heatfhe.evaluation import (
    NEAR_TIE,
    Endpoint,
    Evaluation,
    FreeRun,
    decode_windows,
    evaluate,
    free_runs,
    judge,
    sample_windows,
    spread,
    text_rows,
    unfinished,
)
from heatfhe.files import atomic_write, file_digest, write_json
from heatfhe.planning import Plan, ProgramName, cost_table, default_cost, plan, preset

HELP = "Decode under encryption and compare with the circuit's own clear logits: KL, top-1, collapse, time by operator."
EXAMPLES = (
    "  heat evaluate default --engine openfhe --windows 1 --positions 2 --out runs/openfhe\n"
    "  heat evaluate default default-calibrated --engine clear --noise noise.json --windows 8 --positions 16\n"
    "  heat evaluate default --text story.txt --windows 4 --positions 16\n"
    "  heat evaluate default --windows 64 --positions 128 --ray auto -o /mnt/shared/run\n"
    "  heat evaluate default --engine openfhe --free 4 --prompt 'Once upon a time'\n"
    "  heat evaluate default --engine native --windows 0 --free 32 --prompt 'One day' --prompt 'Tom had' -o runs/free\n"
)
INTERRUPTED = "start the same command again; with -o, finished windows and prompts are kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("circuits", nargs="+", help="circuit folders, 'default' or 'default-calibrated'")
    parser.add_argument("--engine", choices=sorted(DEFAULT_PARAMS), default="clear", help="default clear")
    parser.add_argument("--params", help="parameter set (default: insecure-openfhe-12, or the engine's own)")
    parser.add_argument("--noise", metavar="FILE", type=Path, help="clear engine: a table of heat measure-noise")
    parser.add_argument("--windows", type=int, default=1, help="teacher-forced windows (default 1; 0 for none)")
    parser.add_argument("--positions", type=int, default=4, help="positions per window (default 4)")
    parser.add_argument("--tokens", type=Path, metavar="FILE", help=".npy of token ids (windows, positions + 1)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="text whose windows to decode, or .npy of token ids")
    parser.add_argument("--free", type=int, default=0, metavar="N", help="free-running tokens (default none)")
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT",
        help="a text, or token ids, before the free-running ones; repeatable (default 1,2)",
    )  # fmt: skip
    parser.add_argument(
        "--kl-every", type=int, default=0, metavar="K",
        help="decrypt the logits of every Kth free-running step too, for twice the time there (default 0: of none)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine (default 1)")
    add_device_argument(parser, "where the clear or native engine runs: cpu (default) or cuda")
    add_clock_argument(parser)
    add_precision_argument(parser)
    parser.add_argument("--costs", help="cost table of the prediction (default: the shipped one of the engine)")
    parser.add_argument("--seed", type=int, default=0, help="of windows and injected noise (default 0)")
    parser.add_argument("-o", "--out", type=Path, help="folder for results; finished windows in it are not run again")
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="decode windows on this Ray cluster (HOST:PORT, auto, or local); -o must be a folder all its machines see",
    )
    parser.add_argument("--figure", type=Path, metavar="PNG", help="draw KL and top-1 by position (needs matplotlib)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, open the engine, decode, compare."""
    if args.noise is not None and args.engine != "clear":
        raise ConfigError("--noise is for the clear engine; a real one has its own")
    params = preset(args.params or fallback_params(args.engine))
    priced_on = "cpu" if args.engine == "clear" else args.device  # the clear engine has no prices of its own
    costs = cost_table(args.costs or default_cost(params, priced_on))
    if args.text is not None and args.tokens is not None:
        raise ConfigError("--text and --tokens both say what to decode; give one")
    if args.ray and args.out is None:
        raise ConfigError("--ray needs -o FOLDER, seen by every machine of the cluster: windows are kept there")
    circuits = [text_circuit(name) for name in args.circuits]
    windows = _windows(args, circuits[0])
    found: list[Evaluation] = []
    free: dict[str, list[FreeRun]] = {}
    exceeded: dict[str, int] = {}
    for number, circuit in enumerate(circuits):
        programs = [ProgramName.LOGITS] if len(windows) or args.kl_every else []
        programs += [ProgramName.GENERATE, ProgramName.PROMPT] if args.free else []
        if not programs:
            raise ConfigError("nothing to do: ask for --windows or --free")
        prompts = [_prompt(text, circuit) for text in args.prompt or ["1,2"]]
        context = max(windows.shape[1] - 1 if len(windows) else 1, max(map(len, prompts)) + args.free)
        asked = {"programs": programs, "context": min(circuit.room, _power(context)), "precision": args.precision}
        made = plan(circuit, params, cost=costs, **asked)
        folder = None if args.out is None else args.out / f"{number}-{circuit.name}"
        beyond, endpoint = 0, None if args.ray and not args.free else open_endpoint(args, made)
        options: dict[str, Any] = {"engine": args.engine, "folder": folder}
        if len(windows) and args.ray and folder is not None:
            beyond = _spread(args, made, args.circuits[number], windows, folder, console)
            decoded = decode_windows(made, circuit, None, windows, **options, setting=_setting(args))
            found.append(judge(made, circuit, decoded, windows, engine=args.engine, costs=costs))
        options |= {"costs": costs, "reporter": console.reporter}
        if len(windows) and not args.ray and endpoint is not None:
            found.append(evaluate(made, circuit, endpoint, windows, **options))
        if args.free and endpoint is not None:
            options["kl_every"] = args.kl_every
            free[circuit.name] = free_runs(made, circuit, endpoint, prompts, args.free, **options)
        if beyond := beyond + _exceeded(endpoint):
            exceeded[circuit.name] = beyond
            warn_exceeded(console, circuit.name, beyond)
    _show(console, found, {c.name: (c, free[c.name]) for c in circuits if c.name in free})
    result = {
        "evaluations": [e.as_json() for e in found],
        "free_running": {name: [(list(r.tokens), list(r.wanted)) for r in runs] for name, runs in free.items()},
        "exceeded": exceeded,
        "free_runs": {name: [r.as_json() for r in runs] for name, runs in free.items()},
    }
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        write_json(args.out / "evaluation.json", "heatfhe-evaluation", 1, result)
        console.print(f"wrote {args.out / 'evaluation.json'}")
    if args.figure is not None and found:
        _draw(found, args.figure)
        console.print(f"wrote {args.figure}")
    console.json(result)
    return 0


def _exceeded(endpoint: Endpoint | None) -> int:
    return endpoint.engine.exceeded if endpoint is not None and isinstance(endpoint.engine, ClearEngine) else 0


def _setting(args: argparse.Namespace) -> str:
    """What decides results besides plan and engine."""
    return "" if args.noise is None else f"{file_digest(args.noise)} seed {args.seed}"


def _spread(args: argparse.Namespace, made: Plan, circuit: str, windows: Any, folder: Path, console: Console) -> int:
    """Decode on a cluster the windows that the folder does not keep yet; how many refreshes met more than planned."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    made.save(folder / "plan.json")
    noise = None if args.noise is None else str(args.noise.resolve())
    options = {"engine": args.engine, "noise": noise, "seed": args.seed, "threads": args.threads}
    options |= {"device": args.device, "processor_time": args.processor_time}
    named = circuit if not Path(circuit).exists() else str(Path(circuit).resolve())
    task = partial(_decode, str(folder), named, tuple(options.items()), windows)
    gpus = int(args.device.startswith("cuda"))
    sizes = {"cpus": args.threads, "gpus": gpus, "reporter": console.reporter}
    return sum(spread(task, unfinished(windows, folder), ray=args.ray, **sizes))


def _decode(folder: str, circuit: str, options: tuple[tuple[str, Any], ...], windows: Any, number: int) -> int:
    """One window, in a process of a cluster; what is open stays open for its next one."""
    made, loaded, endpoint = _opened(folder, circuit, options)
    before = _exceeded(endpoint)
    engine = str(dict(options)["engine"])
    decode_windows(made, loaded, endpoint, windows, engine=engine, folder=Path(folder), only=[number])
    return _exceeded(endpoint) - before


@lru_cache(maxsize=1)
def _opened(folder: str, circuit: str, options: tuple[tuple[str, Any], ...]) -> tuple[Plan, Circuit, Endpoint]:
    made, args = Plan.load(Path(folder) / "plan.json"), argparse.Namespace(**dict(options))
    args.noise = None if args.noise is None else Path(args.noise)
    return made, text_circuit(circuit), open_endpoint(args, made)


def fallback_params(engine: str) -> str:
    """The toy set that a circuit of the default model's size is planned for where none is named."""
    return {"openfhe": "insecure-openfhe-12", "native": "insecure-native-12-r40", "clear": "insecure-openfhe-12"}[
        engine
    ]


def open_endpoint(args: argparse.Namespace, made: Plan) -> Endpoint:
    """The engine that was asked for, with throwaway keys for a plan."""
    request = key_request(made)
    if args.engine != "clear":
        ring, engine = open_engine(args.engine, request, threads=args.threads, device=args.device)
        return Endpoint(engine, ring.encrypt, ring.decrypt, clock=clock_of(args))
    ring = load_keyring("clear")(request)
    if args.noise is None:
        clear = ClearEngine(made.params, request=request, lenient=True, device=args.device)
        return Endpoint(clear, ring.encrypt, ring.decrypt)
    rng = np.random.default_rng(args.seed)
    noise = NoiseTable.load(args.noise).noise(made.params)
    noisy = ClearEngine(made.params, request=request, noise=noise, rng=rng, strict=False, device=args.device)

    def begin(window: int) -> None:
        noisy.rng = np.random.default_rng([args.seed, window])

    return Endpoint(noisy, ring.encrypt, ring.decrypt, setting=_setting(args), begin=begin)


def _windows(args: argparse.Namespace, circuit: Circuit) -> Any:
    if args.tokens is not None:
        try:
            return np.load(args.tokens, allow_pickle=False).astype(np.int64)
        except (OSError, ValueError) as err:
            raise DataError(f"{args.tokens}: not a .npy file of token ids ({err})") from err
    if args.text is not None:
        return text_rows(str(args.text), circuit_tokens(args.text, circuit), args.positions + 1, max(1, args.windows))
    if args.windows < 1:
        return np.zeros((0, 2), dtype=np.int64)
    return sample_windows(circuit, args.windows, args.positions + 1, seed=args.seed)


def _prompt(given: str, circuit: Circuit) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        pass
    try:
        return circuit.encode(given)
    except DataError as err:
        raise ConfigError(f"--prompt {given!r} is not token ids separated by commas, and {err}") from err


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _show(console: Console, found: list[Evaluation], free: Mapping[str, tuple[Circuit, list[FreeRun]]]) -> None:
    if found:
        console.table(
            ("circuit", "KL", "top-1", "collapsed", "perplexity", "clear", "largest error", "bootstraps", "s/token"),
            [
                (e.name, e.fidelity.kl, e.fidelity.top1, f"{e.fidelity.collapsed}/{e.fidelity.windows}")
                + (e.fidelity.perplexity, e.fidelity.clear_perplexity, e.largest_error, e.bootstraps, e.seconds)
                for e in found
            ],
        )
    for e in found:
        console.heading(f"{e.name}: seconds per token by operator, measured and predicted")
        _times(console, e.by_operator, e.predicted)
    for name, (circuit, runs) in free.items():
        spent, priced = ({k: sum(getattr(r, of).get(k, 0.0) for r in runs) for k in runs[0].predicted}
                         for of in ("by_operator", "predicted"))  # fmt: skip
        console.heading(f"{name}: free running, seconds in all by operator, measured and predicted")
        _times(console, spent, priced)
        _free(console, circuit, runs)


def _free(console: Console, circuit: Circuit, runs: list[FreeRun]) -> None:
    """Encrypted tokens beside the circuit's own, and every step judged on the encrypted prefix."""
    told = "tokenizer.json" in circuit.tokenizer

    def words(tokens: Sequence[int]) -> str:
        return circuit.decode(tokens) if told else " ".join(map(str, tokens))

    for run in runs:
        same = "= encrypted" if run.branch is None else f"from token {run.branch + 1} on another"
        console.print(f"\nprompt     {words(run.prompt)!r}\nencrypted  {words(run.tokens)!r}")
        console.print(f"clear      {words(run.wanted)!r}  ({same})")
    console.table(
        ("prompt", "agree", "near ties", "other misses", "gaps of misses", "median KL", "bootstraps", "s"),
        [
            (i, f"{r.agreed}/{len(r.steps)}", r.near_ties, len(r.misses) - r.near_ties)
            + (" ".join(f"{step.gap:.3g}" for step in r.misses) or "-", r.kl, r.bootstraps, r.seconds)
            for i, r in enumerate(runs)
        ],
    )
    agreed, steps = sum(r.agreed for r in runs), sum(len(r.steps) for r in runs)
    console.print(
        f"{circuit.name}: {agreed} of {steps} steps choose as the circuit does on the encrypted prefix; of the misses "
        f"{sum(r.near_ties for r in runs)} are near ties (logits within {NEAR_TIE:g})"
    )
    if runs and all(step.row_gap is not None for r in runs for step in r.steps):
        console.print(
            f"{circuit.name}: {sum(r.follows for r in runs)} of {steps} are its choice, or a near tie, on the near "
            f"one-hot rows that were fed back (least leader {min(s.leader or 0.0 for r in runs for s in r.steps):.3g})"
        )


def _times(console: Console, measured: Mapping[str, float], predicted: Mapping[str, float]) -> None:
    names = sorted({*measured, *predicted})
    rows = [(n, measured.get(n, 0.0), predicted.get(n, 0.0)) for n in names]
    rows.append(("total", sum(measured.values()), sum(predicted.values())))
    console.table(("operator", "measured", "predicted"), rows)


def _draw(found: list[Evaluation], path: Path) -> None:
    try:
        import matplotlib
    except ModuleNotFoundError as err:
        raise MissingExtraError("report", needed_by="heat evaluate --figure") from err
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6))
    for e in found:
        upper.semilogy(np.maximum(e.fidelity.kl_by_position, 1e-18), label=f"{e.name} on {e.engine}")
        lower.plot(e.fidelity.top1_by_position, label=e.name)
    upper.set_ylabel("KL to the clear run (nats)")
    lower.set_ylabel("top-1 agreement")
    lower.set_xlabel("position")
    upper.legend()
    with atomic_write(path) as f:
        figure.savefig(f, format="png", dpi=150)
    pyplot.close(figure)
