# SPDX-License-Identifier: Apache-2.0
"""heat lm-eval: tasks of lm-evaluation-harness, or a text's perplexity, on circuits, plans and prepared models."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from heatfhe.cli.console import Console
from heatfhe.cli.model_source import file_tokens
from heatfhe.cli.scorers import add_scorer_arguments, open_scorer, scorer_options
from heatfhe.errors import ConfigError, HeatError, MissingExtraError
from heatfhe.evaluation import text_rows, text_score

HELP = """Score a model on tasks of lm-evaluation-harness (extra lm-eval), or on a text.

Options that are not listed here go to lm_eval's own command line: --tasks, --include_path (a folder with your tasks),
--limit, --num_fewshot, --batch_size, --output_path, --log_samples and more (lm_eval run --help). Task data is yours:
nothing is downloaded unless a task does it. A context that does not fit loses its first tokens; a log-likelihood whose
logits were lost is minus infinity; both are counted. With --text no task is run and the extra is not needed."""
EXAMPLES = """  heat lm-eval default --tasks my_task --include_path tasks/
  heat lm-eval out/heat/circuit --tasks my_task --include_path tasks/ --limit 100 --output_path results/
  heat lm-eval default --sigma 1e-4 --tasks my_task --include_path tasks/
  heat lm-eval default --engine native --positions 32 --tasks my_task --include_path tasks/ --limit 2
  heat lm-eval my-gpt2 --tasks my_task --include_path tasks/
  heat lm-eval default --text story.txt --window 64 --json
"""
INTERRUPTED = "start the same command again; with --use_cache FILE, answered requests are kept"
HANDS_OVER = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options; the rest is lm_eval's."""
    add_scorer_arguments(parser)
    parser.add_argument("--text", type=Path, metavar="FILE", help="perplexity of this text, or .npy of token ids")
    parser.add_argument(
        "--window", type=int, metavar="T", help="with --text: tokens of a window (default: all that fit)"
    )
    parser.add_argument("--windows", type=int, default=64, help="with --text: windows at most, evenly spaced")
    parser.add_argument("--batch", type=int, default=8, help="with --text: windows at a time")


def run(args: argparse.Namespace, console: Console) -> int:
    """Score a text, or register our model and hand over."""
    if args.text is not None:
        if args.rest:
            raise ConfigError(f"--text runs no task; {args.rest[0]} is an option of lm_eval: leave one of them out")
        return _text(args, console)
    if not any(part == "--tasks" or part.startswith("--tasks=") for part in args.rest):
        raise ConfigError("nothing to do: give --tasks NAME (and --include_path FOLDER for your own), or --text FILE")
    for part in args.rest:
        if part.split("=")[0] in ("--model", "--model_args"):
            raise ConfigError(f"{part}: the model is the first argument of heat lm-eval, with its options beside it")
    try:
        import heatfhe.cli.lm_eval_model  # noqa: F401, registers it
    except ModuleNotFoundError as err:
        if (err.name or "").split(".")[0] != "lm_eval":
            raise
        raise MissingExtraError("lm-eval", needed_by="heat lm-eval --tasks") from err
    options = {**scorer_options(args), **({"quiet": True} if console.quiet or console.as_json else {})}
    handed = ["run", "--model", "heat", "--model_args", json.dumps(options), *args.rest]
    if not (console.quiet or console.as_json):
        _lm_eval(handed)
        return 0
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        known = any(part.split("=")[0] in ("--output_path", "-o") for part in args.rest)
        kept = Path(_after(args.rest, ("--output_path", "-o"))) if known else Path(scratch)
        before = set(kept.rglob("results_*.json"))
        _lm_eval([*handed, *([] if known else ["--output_path", scratch])])
        new = sorted({*kept.rglob("results_*.json")} - before)
        results = json.loads(new[-1].read_text()) if new else {}
    console.json(results)
    return 0


def _after(arguments: list[str], names: tuple[str, ...]) -> str:
    for i, part in enumerate(arguments):
        name, given, value = part.partition("=")
        if name in names:
            return value if given else arguments[i + 1]
    raise ConfigError(f"{names[0]} needs a value")


def _lm_eval(arguments: list[str]) -> None:
    """lm_eval's own command line, which reads sys.argv; its exit is its own, an error of ours stays one line."""
    from lm_eval.__main__ import cli_evaluate

    saved, sys.argv = sys.argv, ["lm_eval", *arguments]
    try:
        cli_evaluate()
    except SystemExit as err:
        if err.code not in (None, 0):
            raise HeatError(f"lm_eval ended with {err.code!r}; see what it said above, and lm_eval run --help") from err
    finally:
        sys.argv = saved


def _text(args: argparse.Namespace, console: Console) -> int:
    options: dict[str, Any] = scorer_options(args)
    scorer = open_scorer(**options)
    window = args.window or scorer.room
    if window < 1 or args.windows < 1 or args.batch < 1:
        raise ConfigError(f"--window, --windows and --batch are at least 1, got {window}, {args.windows}, {args.batch}")
    tokens = file_tokens(args.text, lambda text: scorer.words.encode(text), scorer.vocabulary, scorer.name)
    rows = text_rows(str(args.text), tokens, window + 1, args.windows)
    found = text_score(scorer, rows, batch=args.batch, reporter=console.reporter)
    console.table(
        ("model", "window", "windows", "diverge", "perplexity"),
        [(found.name, found.window, found.windows, found.diverged, found.perplexity)],
    )
    if found.diverged:
        console.warn(
            f"{found.diverged} of {found.windows} windows diverge and are not in the perplexity; heat stress says where"
        )
    console.json(found.as_json())
    return 0
