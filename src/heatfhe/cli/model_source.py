# SPDX-License-Identifier: Apache-2.0
"""Where commands find a model and its text: the embedded default, a folder, the hub; files of text or tokens."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heatfhe.assets import default_circuit, sampled_stories
from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, DataError, HeatError
from heatfhe.models import model_folder as model_folder

if TYPE_CHECKING:
    from heatfhe.models import Architecture
    from heatfhe.planning import Carried, IterationPrices

PLAN_SETS = ("insecure-native-12", "native-16-r40-lean")  # that price iterations, the first that holds a model
NOISE_SET = "insecure-paper-12"  # the paper's window: the sizes at which training under noise meets it by default


def add_model(parser: argparse.ArgumentParser) -> None:
    """The positional model argument."""
    parser.add_argument(
        "model",
        help="folder of a Hugging Face GPT-2, Llama or ViT checkpoint, its name on the hub (openai-community/gpt2), or "
        "'default' for the embedded model",
    )


def carried_in(params: str, architecture: Architecture) -> Carried:
    """The sizes at which a model's values are refreshed in plans for a parameter set."""
    from heatfhe.planning import Carried, preset

    return Carried(architecture.stages, architecture.shape, preset(params))


def prices_in(
    params: str | None, architecture: Architecture, context: int, processes: int | None = None
) -> IterationPrices:
    """What iterations cost in plans for a parameter set; without a name, in those of the first that holds the model.

    ``context`` counts the positions of a public prefix, too.
    """
    from heatfhe.planning import IterationPrices, Packing, preset

    chosen = params or PLAN_SETS[0]
    if params is None:
        for chosen in PLAN_SETS:
            try:
                Packing(architecture.shape, preset(chosen).slots, context)
                break
            except HeatError:
                continue
    return IterationPrices(
        stages=architecture.stages, shape=architecture.shape, params=preset(chosen), context=context,
        processes=min(16, os.cpu_count() or 1) if processes is None else processes,
    )  # fmt: skip


def circuit_folder(name: str) -> Path:
    """The circuit folder behind a name: 'default' (HEAT), 'default-calibrated', or a folder."""
    if name == "default":
        return default_circuit("heat")
    if name == "default-calibrated":
        return default_circuit("calibrated")
    return Path(name)


def text_circuit(name: str) -> Circuit:
    """The circuit behind a name, for a command that runs text through it."""
    circuit = Circuit.load(circuit_folder(name))
    if circuit.grid is not None:
        raise ConfigError(f"{circuit.name}: classifies images, and this command runs text; use heat classify")
    return circuit


def text_folder(name: str) -> Path:
    """The checkpoint folder behind a name, for a command that reads text."""
    folder = model_folder(name)
    try:
        named = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or ()
    except (OSError, ValueError, AttributeError):
        return folder  # whoever loads it says what is wrong
    if any(str(kind).endswith("ForImageClassification") for kind in named):
        raise ConfigError(
            f"{name}: classifies images, and this command reads text; calibrate and train it in Python "
            "(training.Images, docs/models.md)"
        )
    return folder


def circuit_tokens(path: Path, circuit: Circuit) -> Any:
    """Token ids of a text file, by the circuit's own tokenizer, or of a .npy of token ids."""
    return file_tokens(path, circuit.encode, circuit.shape.vocabulary, circuit.name)


def file_tokens(path: Path, encode: Callable[[str], Sequence[int]], vocabulary: int, name: str) -> Any:
    """Token ids of a text file, or of a .npy of token ids, which must lie within the vocabulary."""
    if path.suffix == ".npy":
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as err:
            raise DataError(f"{path}: not an array of token ids ({err})") from err
        if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
            raise DataError(f"{path}: expected one row of integer token ids, found {found.dtype} of {found.shape}")
        for end in (found.min(initial=0), found.max(initial=0)):
            if not 0 <= end < vocabulary:
                raise DataError(
                    f"{path}: token {end} is none of the {vocabulary} of {name}; encode the text with its own tokenizer"
                )
        return found
    try:
        return np.asarray(encode(path.read_text(encoding="utf-8")), dtype=np.int64)
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path}: cannot be read as text ({err}); give a text file, or .npy of token ids") from err


def add_prefix(parser: argparse.ArgumentParser) -> None:
    """--prefix: public first tokens."""
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="public text in front of every sequence, in the clear for all"
    )


def load_text(text: str | None, model: str, encode: Any, context: int, end: int) -> Any:
    """Windows of the text given, or of the stories sampled from the embedded model when that is the model."""
    from heatfhe.training import load_windows, pack

    if text is not None:
        return load_windows(text, encode, context, end)
    if model != "default":
        raise DataError("no text: give --text FILE (.txt, .txt.xz, .jsonl, .npy) or --text hf:NAME")
    return pack(sampled_stories(), encode, context, end, name="the embedded stories")


def add_spread_arguments(parser: argparse.ArgumentParser, things: str) -> None:
    """How many at a time, and where."""
    parser.add_argument(
        "--processes", type=int, default=1, help=f"{things} made at a time, one thread each (default 1)"
    )
    parser.add_argument(
        "--ray", default="", metavar="ADDRESS",
        help=f"make {things} on this Ray cluster (HOST:PORT, auto, or local), a core each; all its machines see "
        "the model, the text and the run folder",
    )  # fmt: skip


def check_spread(args: argparse.Namespace) -> None:
    """Refuse what add_spread_arguments cannot mean."""
    if args.processes < 1:
        raise ConfigError(f"--processes takes a number of at least 1, got {args.processes}")
    if args.ray and args.processes > 1:
        raise ConfigError("--processes counts those of this machine; with --ray the cluster's cores say how many")


def add_precision_argument(parser: argparse.ArgumentParser, more: str = "", *, asked: bool = True) -> None:
    """--precision, where a circuit is planned; ``asked`` says whether a plan has one if nothing is said."""
    from heatfhe.planning import PRECISION

    default = PRECISION if asked else None
    parser.add_argument(
        "--precision", type=bits_or_none, metavar="BITS", default=default,
        help="bits a refresh should keep of a value at its smallest, as far as domains tell: such values are carried "
        "larger, or refreshed elsewhere for a bootstrap or two more. 5 keeps tokens, 10 to 12 logits too; with none "
        f"small values may drown in noise (default {'none' if default is None else f'{default:g}'}){more}",
    )  # fmt: skip


def bits_or_none(text: str) -> float | None:
    """The value of --precision."""
    try:
        return None if text == "none" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes a number of bits, or none, got {text!r}") from None
