# SPDX-License-Identifier: Apache-2.0
"""The Circuit: a model as arithmetic, without schedule, and what it means in float64."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.assets import default_circuit
from heatfhe.circuit import hub, store
from heatfhe.circuit.fold import Folded, fold
from heatfhe.circuit.forward import Cache, Rows, Tap, embed, embed_images, forward, no_tap, one_hot
from heatfhe.circuit.show import facts_table
from heatfhe.circuit.spec import check
from heatfhe.errors import ConfigError, DataError
from heatfhe.records import FAINT_LEADER, Calibration
from heatfhe.stages import Grid, Patches, Shape, Stage

Tokens = NDArray[np.int64]
log = logging.getLogger(__name__)
_ROWS = 256  # rows of a sequence run at once


@dataclass(frozen=True, slots=True)
class Generation:
    """A free-running generation: the tokens, and the near one-hot rows that were fed back in their place."""

    tokens: list[int]
    one_hots: list[Rows]
    logits: list[Rows]

    @property
    def leaders(self) -> list[float]:
        """The largest entry of every row: about 1 where a word was chosen, near 0 where the choice vanished."""
        return [leader_of(row) for row in self.one_hots]


def leader_of(row: Rows) -> float:
    """The largest entry of a near one-hot row; 0 of one that is not finite."""
    return float(row.max()) if np.isfinite(row).all() else 0.0


@dataclass(frozen=True, kw_only=True)
class Circuit:
    """A list of stages with weights and constants, and no loop whose length depends on data.

    ``weights`` are the checkpoint's own tensors in their own dtype; centring and folding happen in float64 on first
    use. ``tokenizer`` holds the tokenizer's files by name. It needs neither torch nor transformers.
    """

    name: str
    shape: Shape
    stages: tuple[Stage, ...]
    weights: Mapping[str, NDArray[Any]]
    calibration: Calibration
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Circuit({', '.join(f'{k} {v}' for k, v in self.facts().items())})"

    def _repr_html_(self) -> str:
        return facts_table(f"Circuit {self.name}", self.facts())

    def facts(self) -> dict[str, Any]:
        """The circuit in a few words, for people."""
        s = self.shape
        return {
            "name": self.name,
            "layers": s.layers,
            "width": s.width,
            "heads": s.heads,
            "vocabulary": s.vocabulary,
            "context": s.context,
            "iterations": sum(self.calibration.iterations().values()),
            "digest": self.digest[:12],
        }

    def __post_init__(self) -> None:
        check(self.stages, self.weights, self.shape, self.calibration)

    @cached_property
    def folded(self) -> Folded:
        """Weights in float64, folded."""
        return fold(self.stages, self.weights)

    @property
    def prefix(self) -> tuple[int, ...]:
        """Public tokens in front of every sequence: their keys and values are known to all, and are exact."""
        return self.calibration.prefix

    @property
    def room(self) -> int:
        """The longest sequence, prompt and answer together: the context without the prefix."""
        return self.shape.context - len(self.prefix)

    @cached_property
    def front(self) -> Cache:
        """Keys and values of the prefix."""
        cache = Cache()
        if self.prefix:
            forward(self, embed(self, np.asarray(self.prefix), 0), cache, exact=True)
        return cache

    @cached_property
    def digest(self) -> str:
        """Identifies the circuit: stages, weights, constants."""
        return store.circuit_digest(self)

    @property
    def grid(self) -> Grid | None:
        """How images are cut, where the circuit classifies images; None of one that reads text."""
        start = self.stages[0]
        return start.grid if isinstance(start, Patches) else None

    def run(self, tokens: Sequence[int] | Tokens | Rows, *, tap: Tap = no_tap) -> Rows:
        """Logits in float64 for one sequence (T,) or a batch (B, T): the circuit's meaning.

        A circuit of images takes pixels (B..., channels, height, width) and gives one row of logits for each image.

        >>> circuit.run([5, 17, 3]).shape          # doctest: +SKIP
        (3, 1024)
        """
        if self.grid is not None:
            return forward(self, embed_images(self, self.grid, tokens), Cache(), tap=tap)
        ids = np.asarray(tokens, dtype=np.int64)
        if ids.ndim == 0 or ids.shape[-1] == 0:
            raise ConfigError("run needs at least one token")
        x, cache = embed(self, ids, len(self.prefix)), self.front.spread(ids.shape[:-1])
        if tap is not no_tap or x.shape[-2] <= _ROWS:
            return forward(self, x, cache, tap=tap)
        # long sequences by parts: half the scores are never made, and memory stays bounded
        parts = [forward(self, x[..., k : k + _ROWS, :], cache) for k in range(0, x.shape[-2], _ROWS)]
        return np.concatenate(parts, axis=-2)

    def generate(self, prompt: Sequence[int], count: int, *, tap: Tap = no_tap) -> Generation:
        """Free running as an engine does it: each near one-hot row, not the token it names, is fed back.

        A row that vanishes is logged as a warning: the tokens after it have lost what they follow.
        """
        if count < 1:
            raise ConfigError(f"generate needs a count of at least 1, got {count}")
        if self.grid is not None:
            raise ConfigError(f"circuit {self.name} classifies images and generates no text; use run, or heat classify")
        cache = self.front.spread(())
        ids = np.asarray(prompt, dtype=np.int64)
        if ids.size == 0:
            raise ConfigError("generate needs a prompt of at least one token")
        x = embed(self, ids, len(self.prefix))
        out = Generation([], [], [])
        for _ in range(count):
            logits = forward(self, x, cache, tap=tap)[-1]
            hot = one_hot(self, logits)
            out.tokens.append(int(np.argmax(hot)))
            out.one_hots.append(hot)
            out.logits.append(logits)
            if (leader := leader_of(hot)) < FAINT_LEADER:
                log.warning(
                    "token %d: its near one-hot row has a leader of %.2g where a clean choice has 1; what is fed back "
                    "is a weak copy of the word, and tokens after it may mean nothing. Run heat stress on it",
                    len(out.tokens), leader,
                )  # fmt: skip
            if cache.length < self.shape.context:
                x = self.folded.placed((hot @ self.folded.token)[None, :], cache.length)
        return out

    def follow(self, prompt: Sequence[int], rows: Sequence[Rows] | Rows) -> Rows:
        """Logits after a prompt and after each of the near one-hot rows (N, vocabulary) fed back: (1 + N, vocabulary).

        What an engine that fed these very rows back should have seen; ``run`` has whole tokens in their place.
        """
        if self.grid is not None or len(prompt) == 0:
            raise ConfigError("follow needs a prompt of at least one token, and a circuit that reads text")
        x, start = embed(self, np.asarray(prompt, dtype=np.int64), len(self.prefix)), len(self.prefix) + len(prompt)
        if len(rows):
            x = np.concatenate([x, self.folded.placed(np.asarray(rows) @ self.folded.token, start)])
        return forward(self, x, self.front.spread(()))[len(prompt) - 1 :]

    @cached_property
    def _words(self) -> Any:
        from tokenizers import Tokenizer

        if "tokenizer.json" not in self.tokenizer:
            raise DataError(
                f"circuit {self.name} has no tokenizer; give token ids, or export it with --tokenizer FOLDER"
            )
        return Tokenizer.from_str(self.tokenizer["tokenizer.json"].decode())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, by the circuit's own tokenizer."""
        return list(self._words.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids."""
        return str(self._words.decode(list(tokens)))

    def with_counts(self, counts: Mapping[str, int]) -> Circuit:
        """The same circuit with other counts."""
        return replace(self, calibration=self.calibration.with_counts(counts))

    def save(self, folder: str | Path) -> None:
        """Write the directory, whole or not at all."""
        store.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Circuit:
        """Read a directory; refuses truncated, altered or foreign ones."""
        return cls(**store.load(folder))

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, token: str | None = None) -> Circuit:
        """A circuit by its directory, its name on the Hugging Face hub, or 'default' and 'default-calibrated'.

        >>> Circuit.from_pretrained("somebody/stories-heat")          # doctest: +SKIP
        """
        if name in ("default", "default-calibrated"):
            return cls.load(default_circuit("heat" if name == "default" else "calibrated"))
        return cls.load(name if Path(name).is_dir() else hub.fetched(str(name), revision, token))

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None) -> str:
        """Publish the circuit as a model of the Hugging Face hub, made if need be; returns its address there.

        >>> circuit.push_to_hub("somebody/stories-heat", private=True)   # doctest: +SKIP
        """
        return hub.pushed(self, name, private=private, token=token)
