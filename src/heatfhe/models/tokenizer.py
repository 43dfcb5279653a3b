# SPDX-License-Identifier: Apache-2.0
"""A tokenizer as files: always a tokenizer.json, which needs no transformers to load."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heatfhe.errors import ConfigError, MissingExtraError
from heatfhe.models.source import model_folder

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


def own_tokenizer(model: Any) -> dict[str, bytes]:
    """The tokenizer files beside the checkpoint that a model was loaded from; nothing where there is none."""
    name = str(getattr(model, "name_or_path", "") or "")
    try:
        return tokenizer_files(model_folder(name, fetch=False)) if name else {}
    except (ConfigError, MissingExtraError):
        return {}


def encoder(tokenizer: Any) -> tuple[Callable[[str], Sequence[int]], int]:
    """(encode, end token) of a tokenizer: a folder, its files, or a Hugging Face tokenizer object."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(tokenizer_files(tokenizer)["tokenizer.json"].decode())
    end = made.token_to_id("<|endoftext|>")
    return (lambda text: made.encode(text, add_special_tokens=False).ids), 0 if end is None else end


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
            f"{folder}: holds no tokenizer (neither tokenizer.json nor vocab.json and merges.txt); save it there, as "
            "tokenizer.save_pretrained does"
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if made.token_to_id("<|endoftext|>") is not None:
        made.add_special_tokens(["<|endoftext|>"])
    text: str = made.to_str()
    return text.encode()
