# SPDX-License-Identifier: Apache-2.0
"""What a client needs of a model besides keys: its tokenizer and its token embeddings, fetched once and checked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError, DataError, WireError
from heatfhe.stages import Grid
from heatfhe.wire import Fields, Limits, ModelConfig, parse

LIMITS = Limits(blocks=64, block_bytes=1 << 32, total_bytes=1 << 32)
_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True)
class Bundle:
    """Tokenizer files by name, the token embedding table as the checkpoint has it, and whether its rows are centred.

    Of a model of images, ``grid`` says how they are cut, and the table is the matrix of patches (width, pixels of one).
    """

    tokenizer: dict[str, bytes]
    table: NDArray[Any]
    centred: bool = True
    grid: Grid | None = None

    @classmethod
    def read(cls, data: bytes, config: ModelConfig) -> Bundle:
        """Parse a bundle message and check it against the configuration's digest and sizes."""
        if hashlib.sha256(data).hexdigest() != config.bundle:
            raise WireError("the model's files do not match its configuration; fetch them again")
        message = parse(data, LIMITS, kinds=("bundle",))
        fields = Fields(message.body, of="bundle")
        dtype = fields.choice("dtype", tuple(_DTYPES))
        shape = fields.integers("shape", lo=1, hi=1 << 24, longest=2)
        centred = fields.flag("centred") if "centred" in message.body else True
        grid = _grid(fields, config) if "image" in message.body else None
        fields.done()
        raw = message.blocks.get("embedding", b"")
        wanted = config.vocabulary if grid is None else grid.image[0] * math.prod(grid.patch)
        if len(shape) != 2 or shape[0 if grid is None else 1] != wanted:
            raise WireError("the model's embedding table has another size than its configuration says")
        if len(raw) != shape[0] * shape[1] * np.dtype(_DTYPES[dtype]).itemsize:
            raise WireError("the model's embedding table is cut short")
        files = {n.split("/", 1)[1]: b for n, b in message.blocks.items() if n.startswith("tokenizer/")}
        return cls(files, np.frombuffer(raw, _DTYPES[dtype]).reshape(shape), centred, grid)

    def image_rows(self, images: Any) -> NDArray[np.float64]:
        """Rows (N, rows, width) of images (N, channels, height, width): the start of the stream, without positions."""
        if self.grid is None:
            raise ConfigError("this model reads text, no images; use generate, or heat generate")
        matrix = self.table.astype(np.float64).T
        matrix = matrix - matrix.mean(axis=-1, keepdims=True) if self.centred else matrix
        return self.grid.project(images, matrix)

    def rows(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Embedding rows of tokens, in float64: what the residual stream starts from, without positions."""
        self.check(tokens)
        rows = self.table[np.asarray(tokens, dtype=np.int64)].astype(np.float64)
        return np.asarray(rows - rows.mean(axis=-1, keepdims=True)) if self.centred else rows

    def check(self, tokens: Sequence[int]) -> None:
        """Refuse token ids that the model does not have."""
        if any(not 0 <= int(t) < self.table.shape[0] for t in tokens):
            raise ConfigError(
                f"a token id lies outside the vocabulary of {self.table.shape[0]}; use the model's tokenizer"
            )

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        if "tokenizer.json" not in self.tokenizer:
            raise DataError("this model ships no tokenizer; give token ids instead of text")
        return Tokenizer.from_str(self.tokenizer["tokenizer.json"].decode())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        if not ids:
            raise DataError("the prompt holds no token; write something")
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, up to the first end of text."""
        shown = list(tokens)
        if self.end is not None and self.end in shown:
            shown = shown[: shown.index(self.end)]
        return str(self._tokenizer.decode(shown))

    @cached_property
    def end(self) -> int | None:
        """The token that ends a text, if the tokenizer has one."""
        if "tokenizer.json" not in self.tokenizer:
            return None
        for name in ("<|endoftext|>", "</s>", "<|end|>"):
            found = self._tokenizer.token_to_id(name)
            if found is not None:
                return int(found)
        return None


def _grid(fields: Fields, config: ModelConfig) -> Grid:
    image = fields.integers("image", lo=1, hi=1 << 16, longest=3)
    patch = fields.integers("patch", lo=1, hi=1 << 16, longest=2)
    try:
        (channels, height, width), (tall, wide) = image, patch
        grid = Grid((channels, height, width), (tall, wide))
    except ValueError as err:
        raise WireError("the model's images have no channels, height and width, or its patches no sides") from err
    except ConfigError as err:
        raise WireError(f"the model's images cannot be cut: {err}") from err
    if grid.rows != config.context:
        raise WireError("the model's images make another number of rows than its configuration says")
    return grid
