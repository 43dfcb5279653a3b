# SPDX-License-Identifier: Apache-2.0
"""One conversation on an engine: the encrypted cache, the public position, and the next input, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heatfhe.engine.run import Runner, Trace
from heatfhe.errors import ConfigError
from heatfhe.planning import PlaintextSource, Plan
from heatfhe.progress import SILENT, Reporter


class Decode:
    """Runs a plan's programs in order. Inputs are engine values in the plan's layouts; nothing here is decrypted."""

    def __init__(
        self,
        plan: Plan,
        engine: Any,
        source: PlaintextSource,
        *,
        reporter: Reporter = SILENT,
        trace: Trace | None = None,
        recorded: bool = True,
    ) -> None:
        self.runner = Runner(plan, engine, source, reporter=reporter, trace=trace, recorded=recorded)
        self.cache: dict[str, list[Any]] = {}
        self.position = 0
        self.next: list[Any] | None = None

    def prompt(self, x: Sequence[Any]) -> None:
        """One prompt token into the cache."""
        self._step("prompt", {"x": x})

    def embed(self, token: Sequence[Any]) -> list[Any]:
        """An encrypted one-hot row as the input of a step."""
        return self.runner.run("embed", {"token": token}, self.position)["x"]

    def generate(self, x: Sequence[Any] | None = None) -> list[Any]:
        """The next token, as an encrypted one-hot row; without ``x`` the token generated before is the input."""
        return self._step("generate", {"x": self._input(x)})["token"]

    def sample(self, noise: Sequence[Any], x: Sequence[Any] | None = None) -> list[Any]:
        """As generate, with an encrypted row of noise added to the logits before the argmax."""
        return self._step("sample", {"x": self._input(x), "noise": noise})["token"]

    def logits(self, x: Sequence[Any]) -> list[Any]:
        """The encrypted logits after this token; the client chooses what comes next."""
        return self._step("logits", {"x": x})["logits"]

    def _input(self, x: Sequence[Any] | None) -> Sequence[Any]:
        if x is not None:
            return x
        if self.next is None:
            raise ConfigError("nothing was generated yet: give the last token of the prompt")
        return self.next

    def _step(self, program: str, inputs: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        out = self.runner.run(program, {**self.cache, **inputs}, self.position)
        self.cache = {name: out.pop(name) for name in list(out) if "/" in name}
        self.next = out.pop("next", None)
        self.position += 1
        return out
