# SPDX-License-Identifier: Apache-2.0
"""A plan on any engine, judged: teacher-forced logits against the circuit's own, free-running tokens, time by operator.

Windows are finished one by one and kept in a folder, so that a run of hours goes on where it was stopped. For the owner
of the key alone: decrypted values of an approximate scheme are not to be published as they are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.engine import Engine, run
from heatfhe.errors import ConfigError, DecryptError, FileFormatError
from heatfhe.evaluation.fidelity import Fidelity, fidelity
from heatfhe.files import atomic_write, existing, json_digest, plain
from heatfhe.planning import CostTable, Plan, ProgramName, tally
from heatfhe.progress import SILENT, Reporter

Tokens = NDArray[np.int64]
Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine and the two ways to it: a keyring's encrypt and decrypt.

    ``setting`` says what else decides its results (injected noise and its seed): kept windows of another are refused.
    ``begin`` is called before each window, so that what is random in it does not depend on the windows before.
    ``clock`` tells the seconds: elapsed ones, or time.process_time for an engine of one thread on a busy machine.
    """

    engine: Engine[Any]
    encrypt: Callable[..., bytes]
    decrypt: Callable[[bytes], NDArray[np.complex128]]
    setting: str = ""
    begin: Callable[[int], None] | None = None
    clock: Callable[[], float] = time.perf_counter

    def now(self) -> float:
        """The clock, once the engine has done what it was asked."""
        self.engine.synchronize()
        return self.clock()

    def put(self, slots: Real, level: int) -> Any:
        """Slots as a value of the engine."""
        return self.engine.parse(self.encrypt(slots, level=level))

    def rows(self, plan: Plan, circuit: Circuit, program: ProgramName, tokens: Iterable[int]) -> Iterator[list[Any]]:
        """Tokens as inputs of a program, each encrypted when its turn comes."""
        level = plan.program(program).inputs["x"].level
        return ([self.put(plan.packing.pack_residual(circuit.folded.token[t]), level)] for t in tokens)

    def read(self, plan: Plan, parts: Sequence[Any]) -> Real:
        """A row over the vocabulary: logits, or one that is near one-hot."""
        return np.asarray(plan.packing.unpack_vocabulary([self.get(p) for p in parts]))

    def word(self, plan: Plan, parts: Sequence[Any]) -> int:
        """The token that a near one-hot row names."""
        return named(self.read(plan, parts))

    def get(self, value: Any) -> NDArray[np.complex128]:
        """Slots of a value; nan where it does not decrypt, which counts as a miss."""
        try:
            return self.decrypt(self.engine.dump(value))
        except DecryptError:
            return np.full(self.engine.params.slots, np.nan, dtype=np.complex128)


def named(row: Real) -> int:
    """The token that a near one-hot row names; what did not decrypt names none."""
    return int(np.argmax(np.nan_to_num(row, nan=-np.inf)))


@dataclass(slots=True)
class Stopwatch(Reporter):
    """Adds up seconds and bootstraps by operator."""

    clock: Callable[[], float] = time.perf_counter
    seconds: Counter[str] = field(default_factory=Counter)
    bootstraps: int = 0
    _last: float = 0.0

    def start(self, task: str, total: int | None = None) -> None:
        self._last = self.clock()

    def advance(self, task: str, **facts: float | int | str) -> None:
        now = self.clock()
        self.seconds[str(facts.get("operator", ""))] += now - self._last  # type: ignore[assignment]
        self.bootstraps += str(facts.get("kind", "")).startswith("bootstrap")
        self._last = now


@dataclass(frozen=True, slots=True)
class Window:
    """One decoded window: logits (P, V), seconds by operator and bootstraps, both over all its positions."""

    logits: Real
    seconds: Mapping[str, float]
    bootstraps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Teacher-forced decoding of one plan on one engine; seconds and bootstraps are per token."""

    name: str
    engine: str
    params: str
    positions: int
    fidelity: Fidelity
    bootstraps: float
    seconds: float
    by_operator: Mapping[str, float]
    predicted: Mapping[str, float]
    largest_error: float

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return existing(plain(self))


def decode_windows(
    plan: Plan,
    circuit: Circuit,
    endpoint: Endpoint | None,
    windows: Tokens,
    *,
    engine: str,
    folder: Path | None = None,
    only: Sequence[int] | None = None,
    setting: str = "",
    reporter: Reporter = SILENT,
) -> list[Window]:
    """Decode windows (W, P + 1) with the true tokens as inputs, those of ``only`` or all.

    ``folder`` keeps every finished window; a second call reads those and goes on, and several processes may share it
    when each takes its own windows. Without an endpoint nothing is run: every window must be there, and ``setting``
    stands for the endpoint's.
    """
    if windows.ndim != 2 or windows.shape[1] < 2:
        raise ConfigError(f"windows are (count, positions + 1) token ids, got {windows.shape}")
    tokens = windows[:, :-1]
    if tokens.shape[1] > plan.context:
        raise ConfigError(f"windows of {tokens.shape[1]} positions do not fit the plan's cache of {plan.context}")
    if endpoint is not None:
        setting = endpoint.setting
    run_of = json_digest(
        [plan.circuit, plan.params.digest, plan.context, plan.program(ProgramName.LOGITS).as_json(), engine]
    )
    chosen = range(len(tokens)) if only is None else only
    reporter.start(circuit.name, len(chosen))
    found = []
    for i in chosen:
        kept = None if folder is None else _kept(folder, i)
        mark = json_digest([run_of, [int(t) for t in tokens[i]], *([setting] if setting else [])])
        window = _read(kept, mark) if kept is not None and kept.exists() else None
        if window is None:
            if endpoint is None:
                raise FileFormatError(f"{kept}: this window is not finished; start the run again to go on")
            if endpoint.begin is not None:
                endpoint.begin(i)
            window = decoded(plan, circuit, endpoint, tokens[i])
            if kept is not None:
                _write(kept, mark, window)
        found.append(window)
        reporter.advance(circuit.name, seconds_per_token=sum(window.seconds.values()) / tokens.shape[1])
    reporter.done(circuit.name)
    return found


def unfinished(windows: Tokens, folder: Path) -> list[int]:
    """The windows that a folder does not keep yet."""
    return [i for i in range(len(windows)) if not _kept(folder, i).exists()]


def judge(
    plan: Plan, circuit: Circuit, found: Sequence[Window], windows: Tokens, *, engine: str, costs: CostTable
) -> Evaluation:
    """Compare decoded windows with the circuit's own logits; ``costs`` prices the prediction."""
    tokens, targets = windows[:, :-1], windows[:, 1:]
    clear = circuit.run(tokens)
    decoded = np.stack([w.logits for w in found])
    count = tokens.size
    spent: Counter[str] = sum((Counter(w.seconds) for w in found), Counter())
    largest = circuit.calibration.magnitudes.get("logits", float(np.abs(clear).max()))
    return Evaluation(
        name=circuit.name,
        engine=engine,
        params=plan.params.name,
        positions=tokens.shape[1],
        fidelity=fidelity(clear, decoded, targets, largest=largest),
        bootstraps=sum(w.bootstraps for w in found) / count,
        seconds=sum(spent.values()) / count,
        by_operator={k: spent[k] / count for k in sorted(spent)},
        predicted={k: t.seconds for k, t in tally(plan, ProgramName.LOGITS, costs).items()},
        largest_error=float(np.abs(decoded - clear).max()),
    )


def evaluate(
    plan: Plan,
    circuit: Circuit,
    endpoint: Endpoint,
    windows: Tokens,
    *,
    engine: str,
    costs: CostTable,
    folder: Path | None = None,
    reporter: Reporter = SILENT,
) -> Evaluation:
    """Decode every window and judge them."""
    found = decode_windows(plan, circuit, endpoint, windows, engine=engine, folder=folder, reporter=reporter)
    return judge(plan, circuit, found, windows, engine=engine, costs=costs)


def decoded(plan: Plan, circuit: Circuit, endpoint: Endpoint, tokens: Tokens) -> Window:
    """One sequence from an empty cache with the true tokens as inputs."""
    watch = Stopwatch(clock=endpoint.now)
    inputs = endpoint.rows(plan, circuit, ProgramName.LOGITS, tokens)
    answers = run(plan, circuit, endpoint.engine, inputs, program=ProgramName.LOGITS, reporter=watch, recorded=False)
    rows = [endpoint.read(plan, parts) for parts in answers]
    return Window(np.asarray(rows, dtype=np.float64), dict(watch.seconds), watch.bootstraps)


def _kept(folder: Path, window: int) -> Path:
    return folder / f"window-{window:03d}.npz"


def _write(path: Path, mark: str, window: Window) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = sorted(window.seconds)
    with atomic_write(path) as f:
        np.savez(
            f,
            mark=np.array(mark),
            logits=window.logits,
            operators=np.array(names, dtype=str),
            seconds=np.array([window.seconds[n] for n in names]),
            bootstraps=np.array(window.bootstraps),
        )


def _read(path: Path, mark: str) -> Window:
    try:
        with np.load(path, allow_pickle=False) as held:
            if str(held["mark"]) != mark:
                raise FileFormatError(
                    f"{path}: belongs to another plan, engine, noise or window; give another folder or delete this one"
                )
            seconds = dict(zip(map(str, held["operators"]), map(float, held["seconds"])))
            return Window(held["logits"], seconds, int(held["bootstraps"]))
    except (ValueError, KeyError, OSError, EOFError) as err:
        raise FileFormatError(f"{path}: not a finished window ({err}); delete it to run that window again") from err
