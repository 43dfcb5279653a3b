# SPDX-License-Identifier: Apache-2.0
"""One conversation on an engine: the encrypted cache, the public position, and the next input, step by step.

It is the engine's half of what a client calls its conversation. Between steps it can be written as bytes, and taken up
again by another process that has the same plan and keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from heatfhe.circuit import Circuit
from heatfhe.engine.protocol import Engine
from heatfhe.engine.runner import Runner
from heatfhe.errors import ConfigError, WireError
from heatfhe.planning import Plan, ProgramName
from heatfhe.progress import SILENT, Reporter

C = TypeVar("C")
_ANSWER = {ProgramName.GENERATE: "token", ProgramName.SAMPLE: "token", ProgramName.LOGITS: "logits"}


class Conversation:
    """Runs a plan's programs in order. Inputs are engine values in the plan's layouts; nothing here is decrypted."""

    def __init__(self, runner: Runner, *, reporter: Reporter = SILENT) -> None:
        self.runner, self._reporter = runner, reporter
        self.cache: dict[str, list[Any]] = {}
        self.position = 0
        self.next: list[Any] | None = None

    @classmethod
    def restore(
        cls, runner: Runner, values: Mapping[str, bytes], position: int, *, reporter: Reporter = SILENT
    ) -> Conversation:
        """Take up what ``values`` wrote at a position; no values and position 0 are a new conversation."""
        found = cls(runner, reporter=reporter)
        found.position = position
        for name, data in values.items():
            port, _, _ = name.rpartition("#")
            if port == "next" and found.next is None:
                found.next = []
            row = found.next if port == "next" else found.cache.setdefault(port, [])
            assert row is not None
            row.append(runner.engine.parse(data))
        return found

    def copy(self) -> Conversation:
        """The conversation as it is now, whatever comes next: values are never changed, only replaced."""
        made = Conversation(self.runner, reporter=self._reporter)
        made.cache, made.position, made.next = self.cache, self.position, self.next
        return made

    def values(self) -> dict[str, bytes]:
        """The state in wire form: every ciphertext of the cache, and of the next input."""
        ports = {**self.cache, **({"next": self.next} if self.next is not None else {})}
        return {f"{name}#{i}": self.runner.engine.dump(v) for name, row in ports.items() for i, v in enumerate(row)}

    def prompt(self, x: Sequence[Any]) -> None:
        """One prompt token into the cache."""
        self.step(ProgramName.PROMPT, x)

    def prefill(self, x: Sequence[Any], tokens: int) -> None:
        """All of a prompt's first ``tokens`` tokens into the cache at once; ``x`` are whole blocks of them."""
        if self.position or self.cache:
            raise ConfigError(f"a prompt at once starts a conversation; this one holds {self.position} positions")
        most = self.runner.plan.prefill
        if not 1 <= tokens <= most:
            raise ConfigError(f"{tokens} tokens do not fit the plan's prefill of {most}; give the rest one by one")
        self.cache = self.runner.run(ProgramName.PREFILL, {"x": x}, tokens - 1, self._reporter)
        self.position = tokens

    def classify(self, x: Sequence[Any]) -> list[Any]:
        """The encrypted logits of an image; ``x`` are whole blocks of its rows. It leaves nothing in the cache."""
        last = self.runner.plan.context - 1
        return self.runner.run(ProgramName.CLASSIFY, {"x": x}, last, self._reporter)["logits"]

    def embed(self, token: Sequence[Any]) -> list[Any]:
        """An encrypted one-hot row as the input of a step."""
        return self.runner.run(ProgramName.EMBED, {"token": token}, self.position, self._reporter)["x"]

    def generate(self, x: Sequence[Any] | None = None) -> list[Any]:
        """The next token, as an encrypted one-hot row; without ``x`` the token generated before is the input."""
        return self.step(ProgramName.GENERATE, x)

    def sample(self, noise: Sequence[Any], x: Sequence[Any] | None = None) -> list[Any]:
        """As generate, with an encrypted row of noise added to the logits before the argmax."""
        return self.step(ProgramName.SAMPLE, x, noise)

    def logits(self, x: Sequence[Any]) -> list[Any]:
        """The encrypted logits after this token; the client chooses what comes next."""
        return self.step(ProgramName.LOGITS, x)

    def step(self, program: ProgramName, x: Sequence[Any] | None = None, noise: Sequence[Any] = ()) -> list[Any]:
        """One token into the cache, and what the program answers; without ``x`` the token generated before."""
        given = self.next if x is None else x
        if given is None:
            raise ConfigError("nothing was generated yet: give the last token of the prompt")
        inputs = {**self.cache, "x": given, **({"noise": noise} if noise else {})}
        out = self.runner.run(program, inputs, self.position, self._reporter)
        self.cache = {name: out.pop(name) for name in list(out) if "/" in name}
        self.next = out.pop("next", None)
        self.position += 1
        return out[_ANSWER[program]] if program in _ANSWER else []

    def answer(self, program: ProgramName, token: bytes | None, noise: Sequence[bytes] = ()) -> tuple[bytes, ...]:
        """A step with inputs from the wire, and its answer for the wire."""
        if token is None and self.next is None:
            raise WireError("the session holds no generated token to go on from; send an input")
        x = None if token is None else [self._parse(program, "x", token)]
        made = self.step(program, x, [self._parse(program, "noise", part) for part in noise])
        return tuple(self.runner.engine.dump(v) for v in made)

    def label(self, blocks: Sequence[bytes]) -> tuple[bytes, ...]:
        """An image with inputs from the wire, and its logits for the wire."""
        made = self.classify([self._parse(ProgramName.CLASSIFY, "x", data) for data in blocks])
        return tuple(self.runner.engine.dump(v) for v in made)

    def fill(self, blocks: Sequence[bytes], tokens: int) -> None:
        """A prefill with inputs from the wire."""
        self.prefill([self._parse(ProgramName.PREFILL, "x", data) for data in blocks], tokens)

    def _parse(self, program: ProgramName, port: str, data: bytes) -> Any:
        value, needed = self.runner.engine.parse(data), self.runner.plan.program(program).inputs[port].level
        level = self.runner.engine.level(value)
        if level < needed:
            raise WireError(f"an input comes at level {level}, the plan needs {needed}")
        return value


def run(
    plan: Plan,
    circuit: Circuit,
    engine: Engine[C],
    inputs: Iterable[Sequence[C]],
    *,
    program: str = ProgramName.GENERATE,
    count: int = 1,
    reporter: Reporter = SILENT,
    recorded: bool = True,
) -> Iterator[list[C]]:
    """One text on an engine, from an empty cache: the answers as they come, one value per ciphertext, still encrypted.

    ``inputs`` are the text's tokens, each as engine values in the plan's layout; they are taken when their turn comes.
    logits: the logits after every input. generate: the inputs but the last fill the cache, then come ``count`` one-hot
    rows, each the input of the next. ``recorded`` is that of a Runner.

    >>> import heatfhe
    >>> circuit = heatfhe.Circuit.from_pretrained("default")
    >>> made = heatfhe.plan(circuit, "insecure-native-12", context=4, programs=["logits"], placement="greedy")
    >>> engine = heatfhe.engine.ClearEngine(made.params, lenient=True)    # a real one is opened with a client's keys
    >>> x = engine.value(made.packing.pack_residual(circuit.folded.token[5]), made.program("logits").inputs["x"].level)
    >>> parts = next(heatfhe.run(made, circuit, engine, [[x]], program="logits"))
    >>> logits = made.packing.unpack_vocabulary([part.slots for part in parts])
    >>> bool(abs(logits - circuit.run([5])[0]).max() < 1e-6)
    True
    """
    if program not in (ProgramName.GENERATE, ProgramName.LOGITS):
        raise ConfigError(f"run gives logits or generated tokens, not {program!r}; use a Conversation for other steps")
    talk = Conversation(Runner(plan, engine, plan.source(circuit), recorded=recorded), reporter=reporter)
    if program == ProgramName.LOGITS:
        return (talk.logits(x) for x in inputs)
    return _generated(talk, inputs, count)


def _generated(talk: Conversation, inputs: Iterable[Sequence[Any]], count: int) -> Iterator[list[Any]]:
    last: Sequence[Any] | None = None
    for x in inputs:
        if last is not None:
            talk.prompt(last)
        last = x
    for _ in range(count):
        yield talk.generate(last)
        last = None
