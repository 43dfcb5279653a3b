# SPDX-License-Identifier: Apache-2.0
"""A tokenizer as files a circuit carries: always a tokenizer.json, which needs no transformers to load."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heatfhe.errors import ConfigError

_KEPT = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    """Files by name, from a folder, a mapping of files, or a Hugging Face tokenizer object."""
    if isinstance(tokenizer, Mapping):
        return {str(name): bytes(data) for name, data in tokenizer.items()}
    if isinstance(tokenizer, (str, Path)):
        return _from_folder(Path(tokenizer))
    if not hasattr(tokenizer, "save_pretrained"):
        raise ConfigError(
            f"a tokenizer is a folder, a mapping of files or a Hugging Face tokenizer, got {type(tokenizer).__name__}"
        )
    with tempfile.TemporaryDirectory() as partial:
        tokenizer.save_pretrained(partial)
        return _from_folder(Path(partial))


def _from_folder(folder: Path) -> dict[str, bytes]:
    found = {name: (folder / name).read_bytes() for name in _KEPT if (folder / name).is_file()}
    if "tokenizer.json" not in found:
        found["tokenizer.json"] = _from_vocabulary(folder)
    return found


def _from_vocabulary(folder: Path) -> bytes:
    """GPT-2's older pair of files, vocab.json and merges.txt, as one tokenizer.json."""
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not (vocabulary.is_file() and merges.is_file()):
        raise ConfigError(
            f"{folder}: holds neither tokenizer.json nor vocab.json and merges.txt; save the tokenizer there"
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if made.token_to_id("<|endoftext|>") is not None:
        made.add_special_tokens(["<|endoftext|>"])
    text: str = made.to_str()
    return text.encode()
