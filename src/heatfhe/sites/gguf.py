# SPDX-License-Identifier: Apache-2.0
"""A GGUF file as a plain model: transformers reads the file, but refuses to save what it read."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from heatfhe.errors import ConfigError, MissingExtraError


def load_gguf(path: Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a GGUF file: a LlamaForCausalLM in float32 like any other, its weights as they unpack.

    >>> model, tokenizer = load_gguf(Path("SmolLM2-135M-Instruct.Q4_1.gguf"))     # doctest: +SKIP
    """
    kind = _architecture(path)
    if kind != "llama":
        raise ConfigError(f"{path}: a GGUF of the architecture {kind!r} is not supported; have: llama")
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    place: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    try:
        found = AutoModelForCausalLM.from_pretrained(path.parent, **place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **place)
    except (OSError, ValueError, KeyError) as err:
        raise ConfigError(f"{path}: cannot be read as a Llama ({err}); convert it from its checkpoint again") from err
    config = copy.deepcopy(found.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(found.state_dict())
    return model, tokenizer


def _architecture(path: Path) -> str:
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as err:
        raise MissingExtraError("gguf", needed_by="a GGUF file") from err
    try:
        field = GGUFReader(path).fields["general.architecture"]
    except (OSError, ValueError, KeyError, IndexError) as err:
        raise ConfigError(f"{path}: is not a GGUF file, or cut short ({err}); fetch it again") from err
    return bytes(field.parts[field.data[0]]).decode()
