# SPDX-License-Identifier: Apache-2.0
"""One plan on two engines in lockstep: after which step do they differ, and did that step add the error or carry it?

The clear engine runs two rows at once: what a value should be, and what follows from the values the other engine really
holds. After a step the other engine's result is decrypted. Its distance from the first row is the whole error so far;
from the second, what the step itself has added. For the owner of the key alone, as everything that decrypts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, run
from heatfhe.evaluation.encrypted import Endpoint
from heatfhe.files import plain
from heatfhe.planning import Plan, ProgramName, Step
from heatfhe.progress import Reporter

Real = NDArray[np.float64]
Look = Callable[[Step], bool]
MOST_BITS = 60.0
TELLING = ("bootstrap", "bootstrap_pair", "linear", "multiply", "multiply_sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError:
    """What was seen after one step: magnitudes are the largest over all slots.

    ``size`` is that of the true value, ``error`` the distance from it, ``own`` what was added since the values it
    is made of were looked at, ``imaginary`` the imaginary part of the error, ``bound`` what a bootstrap was told (0 for
    other steps).
    """

    position: int
    program: str
    step: int
    kind: str
    operator: str
    name: str
    level: int
    period: int
    bound: float
    size: float
    error: float
    own: float
    imaginary: float

    @property
    def bits(self) -> float:
        """-log2 of the error relative to the value."""
        return _bits(self.error, self.size)

    @property
    def own_bits(self) -> float:
        """-log2 of what the step added, relative to the value."""
        return _bits(self.own, self.size)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return plain(self)


@dataclass(slots=True)
class Pair:
    """A value on both engines: two rows in the clear (true, and as the other engine holds it), and the other's.

    The second row is complex: what an engine holds may have an imaginary part where the true value has none.
    """

    clear: Any
    other: Any


class Lockstep(Reporter):
    """An engine of pairs, and the reporter that hears which step made them. ``seen`` grows as the plan runs."""

    def __init__(
        self, plan: Plan, endpoint: Endpoint, look: Look | None = None, clear: ClearEngine | None = None
    ) -> None:
        """``look`` says after which steps to decrypt; each costs a decryption. The default is every step.

        ``clear`` is a clear engine without noise that has its plaintexts already; making them takes most of the time.
        """
        self.plan, self.endpoint = plan, endpoint
        self.look = look if look is not None else lambda step: True
        self.clear = clear if clear is not None else ClearEngine(plan.params, strict=False)
        self.seen: list[StepError] = []
        self.position = 0
        self._program, self._step = "", 0
        self._bound = 0.0
        self._made: list[Pair] = []

    # -- as an engine -------------------------------------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """The plan's."""
        return self.plan.params

    @property
    def records(self) -> bool:
        """Every step is looked at."""
        return False

    def level(self, a: Pair) -> int:
        """The other engine's level: the runner compares it with the plan's."""
        return int(self.endpoint.engine.level(a.other))

    def put(self, slots: NDArray[Any], level: int) -> Pair:
        """Slots as a value of both engines. The noise of encryption counts as error of the first step."""
        return Pair(self.clear.value(np.stack([slots, slots]), level), self.endpoint.put(slots, level))

    def __getattr__(self, word: str) -> Callable[..., Any]:
        """An instruction of both engines."""
        if word.startswith("_"):
            raise AttributeError(word)
        clear, other = getattr(self.clear, word), getattr(self.endpoint.engine, word)

        def both(*args: Any, **options: Any) -> Any:
            self._bound = options.get("bound", 0.0)
            one = clear(*_side(args, "clear"), **options)
            two = other(*_side(args, "other"), **options)
            if isinstance(one, (list, tuple)):
                pairs = [Pair(a, b) for a, b in zip(one, two)]
                self._made += pairs
                return pairs
            self._made.append(Pair(one, two))
            return self._made[-1]

        return both

    # -- as a reporter ------------------------------------------------------------------------------------------------

    def start(self, task: str, total: int | None = None) -> None:
        self._program, self._step = task, 0
        self._made.clear()

    def advance(self, task: str, **facts: float | int | str) -> None:
        """A step is done; one on an empty cache made nothing."""
        step = self.plan.program(self._program).steps[self._step]
        if self._made and self.look(step):
            for pair in self._made:
                self._compare(step, pair)
        self._made.clear()
        self._step += 1

    def _compare(self, step: Step, pair: Pair) -> None:
        true, follows = self.clear.read(pair.clear)
        got = self.endpoint.get(pair.other)
        size, error, own = _largest(true), _largest(got - true), _largest(got - follows)
        imaginary = _largest(got.imag - true.imag)
        pair.clear = self.clear.value(np.stack([true.astype(np.complex128), got]), pair.clear.level)
        self.seen.append(
            StepError(
                position=self.position, program=self._program, step=self._step, kind=step.kind, operator=step.operator,
                name=step.name, level=step.level, period=step.period, bound=self._bound if step.bound else 0.0,
                size=size, error=error, own=own, imaginary=imaginary,
            )
        )  # fmt: skip


def lockstep(
    plan: Plan,
    circuit: Circuit,
    endpoint: Endpoint,
    tokens: Sequence[int],
    *,
    look: Look | None = None,
    clear: ClearEngine | None = None,
) -> tuple[list[StepError], list[tuple[Real, Real]]]:
    """The logits of each token on both engines: what was seen after every step, and both rows of words, clear first."""
    both = Lockstep(plan, endpoint, look, clear)
    level = plan.program(ProgramName.LOGITS).inputs["x"].level

    def inputs() -> Iterator[list[Pair]]:
        for position, token in enumerate(tokens):
            both.position = position
            yield [both.put(plan.packing.pack_residual(circuit.folded.token[token]), level)]

    rows = []
    for parts in run(plan, circuit, both, inputs(), program=ProgramName.LOGITS, reporter=both):
        true = plan.packing.unpack_vocabulary([both.clear.read(p.clear)[0] for p in parts])
        rows.append((true, plan.packing.unpack_vocabulary([endpoint.get(p.other) for p in parts])))
    return both.seen, rows


def logit_bits(true: Real, got: Real) -> float:
    """-log2 of the largest difference of two rows of logits, relative to the largest logit."""
    return _bits(_largest(got - true), _largest(true))


def telling(step: Step) -> bool:
    """Steps worth a decryption where those are dear: refreshes, maps and products of two values."""
    return step.kind in TELLING


def by_place(seen: Iterable[StepError]) -> list[dict[str, Any]]:
    """One row for each position and place of the circuit, in order, errors in bits under the largest value there.

    ``first`` and ``last`` are the whole error of the first and the last step looked at, ``own`` the most that one step
    added (``at`` is its number, ``kind`` its kind), ``filled`` the largest part of its bound that a refresh met.
    """
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for s in seen:
        row = rows.setdefault(
            (s.position, s.name),
            {"position": s.position, "place": s.name, "first": s.bits, "own": math.inf, "refreshes": 0, "filled": 0.0},
        )
        row["last"] = s.bits
        if s.own_bits < row["own"]:
            row |= {"own": s.own_bits, "at": s.step, "kind": s.kind}
        if s.bound:
            row["refreshes"] += 1
            row["filled"] = max(row["filled"], s.size / s.bound)
    return list(rows.values())


def jumps(seen: Sequence[StepError], count: int = 20) -> list[StepError]:
    """The steps that added most of their own, relative to what they made."""
    return sorted(seen, key=lambda s: s.own_bits)[:count]


def _side(args: Any, side: str) -> Any:
    """The half of every pair among the arguments."""
    if isinstance(args, Pair):
        return getattr(args, side)
    if isinstance(args, (list, tuple)):
        return type(args)(_side(a, side) for a in args)
    return args


def _largest(values: NDArray[Any]) -> float:
    return float(np.abs(values).max())


def _bits(error: float, size: float) -> float:
    """At most 60; none where the error is not a number or there is nothing to compare it with."""
    if error == 0:
        return MOST_BITS
    return -math.log2(max(error / size, 2.0**-MOST_BITS)) if math.isfinite(error) and size > 0 else -math.inf
