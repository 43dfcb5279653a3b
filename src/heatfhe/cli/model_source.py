# SPDX-License-Identifier: Apache-2.0
"""Where commands find a model and its text: the embedded default, a folder, the hub; files of text or tokens."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.assets import default_circuit, default_parent, sampled_stories
from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, DataError, MissingExtraError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.txt"]


def add_model(parser: argparse.ArgumentParser) -> None:
    """The positional model argument."""
    parser.add_argument(
        "model",
        help="folder of a Hugging Face GPT-2 checkpoint, its name on the hub (openai-community/gpt2), or 'default' "
        "for the embedded model",
    )


def model_folder(name: str) -> Path:
    """The checkpoint folder behind a name: the embedded one, a folder, or a model of the hub, fetched if need be."""
    if name == "default":
        return default_parent()
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not _HUB_NAME.fullmatch(name):
        raise ConfigError(
            f"{name}: no checkpoint there (config.json is missing); give a Hugging Face model folder, the name of a "
            "model on the hub, or 'default'"
        )
    return _hub_folder(name)


def _hub_folder(name: str) -> Path:
    """Where the hub's files of a model lie: in its cache, or downloaded into it."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as err:
        raise MissingExtraError("train", needed_by="a model named on the Hugging Face hub") from err
    failure: Exception | None = None
    for cached in (True, False):
        try:
            folder = Path(
                snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"], local_files_only=cached)
            )
        except (OSError, ValueError) as err:
            failure = err
            continue
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return folder
        failure = ConfigError("it holds no config.json, or no safetensors weights")
    reason = str(failure).strip().splitlines()[0]
    raise ConfigError(
        f"{name}: neither a folder here, nor in the Hugging Face cache, nor to be had from the hub ({reason}); "
        "check the name and the connection, or give a folder"
    )


def circuit_folder(name: str) -> Path:
    """The circuit folder behind a name: 'default' (HEAT), 'default-calibrated', or a folder."""
    if name == "default":
        return default_circuit("heat")
    if name == "default-calibrated":
        return default_circuit("calibrated")
    return Path(name)


def circuit_tokens(path: Path, circuit: Circuit) -> Any:
    """Token ids of a text file, by the circuit's own tokenizer, or of a .npy of token ids."""
    if path.suffix == ".npy":
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as err:
            raise DataError(f"{path}: not an array of token ids ({err})") from err
        if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
            raise DataError(f"{path}: expected one row of integer token ids, found {found.dtype} of {found.shape}")
        for end in (found.min(initial=0), found.max(initial=0)):
            if not 0 <= end < circuit.shape.vocabulary:
                raise DataError(
                    f"{path}: token {end} is none of the {circuit.shape.vocabulary} of {circuit.name}; encode the text "
                    "with the circuit's own tokenizer"
                )
        return found
    try:
        return np.asarray(circuit.encode(path.read_text(encoding="utf-8")), dtype=np.int64)
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path}: cannot be read as text ({err}); give a text file, or .npy of token ids") from err


def load_model(folder: Path) -> Any:
    """The model in float32, from local files alone."""
    import logging

    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    except (OSError, ValueError) as err:
        raise ConfigError(f"{folder}: cannot be loaded as a causal language model ({err})") from err


def load_encoder(folder: Path) -> tuple[Any, int]:
    """(encode, end token) of the tokenizer beside a model."""
    path = folder / "tokenizer.json"
    if path.is_file():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        end = tokenizer.token_to_id("<|endoftext|>")
        return (lambda text: tokenizer.encode(text, add_special_tokens=False).ids), 0 if end is None else end
    from transformers import AutoTokenizer

    slow = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return (lambda text: slow(text, add_special_tokens=False)["input_ids"]), slow.eos_token_id


def load_text(text: str | None, model: str, encode: Any, context: int, end: int) -> Any:
    """Windows of the text given, or of the stories sampled from the embedded model when that is the model."""
    from heatfhe.training import load_windows, pack

    if text is not None:
        return load_windows(text, encode, context, end)
    if model != "default":
        raise DataError("no text: give --text FILE (.txt, .txt.xz, .jsonl, .npy) or --text hf:NAME")
    return pack(sampled_stories(), encode, context, end, name="the embedded stories")
