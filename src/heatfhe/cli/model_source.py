# SPDX-License-Identifier: Apache-2.0
"""Where commands find a model and its text: the embedded default, a folder, and files of text or tokens."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from heatfhe.assets import default_circuit, default_parent, sampled_stories
from heatfhe.errors import ConfigError, DataError


def add_model(parser: argparse.ArgumentParser) -> None:
    """The positional model argument."""
    parser.add_argument("model", help="folder of a Hugging Face GPT-2 checkpoint, or 'default' for the embedded model")


def model_folder(name: str) -> Path:
    """The checkpoint folder behind a name."""
    if name == "default":
        return default_parent()
    folder = Path(name)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{name}: no checkpoint there (config.json is missing); give a Hugging Face model folder, or 'default'"
        )
    return folder


def circuit_folder(name: str) -> Path:
    """The circuit folder behind a name: 'default' (HEAT), 'default-calibrated', or a folder."""
    if name == "default":
        return default_circuit("heat")
    if name == "default-calibrated":
        return default_circuit("calibrated")
    return Path(name)


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
