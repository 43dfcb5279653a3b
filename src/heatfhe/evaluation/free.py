# SPDX-License-Identifier: Apache-2.0
"""Free running under encryption, judged step by step as the paper shows it.

Every token is chosen under encryption and fed back without decryption; rows are decrypted only to be compared. A step
is judged by the circuit in the clear on the encrypted prefix, so that one early miss does not make misses of all that
follow: on the tokens before it, and on the near one-hot rows before it, which are what was really fed back. Where two
words nearly tie, such a row is a mixture of both, and only the second judgement is about encryption. A miss whose token
is nearly as likely as the circuit's own is a near tie.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.circuit import Circuit, leader_of
from heatfhe.engine import Conversation, Runner
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.evaluation.encrypted import Endpoint, Real, Stopwatch, named
from heatfhe.evaluation.fidelity import kl_divergence
from heatfhe.files import existing, json_digest, plain, read_json, rebuilt, remade, write_json
from heatfhe.planning import CostTable, Plan, ProgramName, tally
from heatfhe.progress import SILENT, Reporter

NEAR_TIE = 0.05  # logits apart at most; the paper's were 0.005
KIND, VERSION = "heatfhe-free-run", 1
_SUMMED = ("agreed", "near_ties", "branch", "kl", "follows")  # of a run, in its JSON beside what it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeStep:
    """One encrypted choice: the circuit's own on the same tokens, how far its logit lies above the chosen token's,
    and KL of the encrypted logits from the circuit's where they were decrypted.

    ``followed`` and ``row_gap`` are the circuit's choice and that distance on the rows that were fed back, ``leader``
    the largest entry of the row of this step; None in runs that did not keep rows.
    """

    token: int
    wanted: int
    gap: float
    kl: float | None = None
    followed: int | None = None
    row_gap: float | None = None
    leader: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether both chose the same token."""
        return self.token == self.wanted

    @property
    def follows(self) -> bool:
        """Whether the circuit chooses the same token on the rows that were fed back, or nearly so."""
        return self.row_gap is not None and self.row_gap <= NEAR_TIE


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeRun:
    """Free-running decoding of one prompt: ``tokens`` here, ``wanted`` by the circuit's own free run, and each step.

    Seconds and bootstraps are of the whole run, prompt steps included, without those for logits; ``predicted`` prices
    the same steps.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    wanted: tuple[int, ...]
    steps: tuple[FreeStep, ...]
    bootstraps: int
    seconds: float
    by_operator: Mapping[str, float]
    predicted: Mapping[str, float]

    @property
    def agreed(self) -> int:
        """Steps at which the encrypted choice was the circuit's on the same prefix."""
        return sum(step.agrees for step in self.steps)

    @property
    def misses(self) -> tuple[FreeStep, ...]:
        """The others."""
        return tuple(step for step in self.steps if not step.agrees)

    @property
    def near_ties(self) -> int:
        """Misses within NEAR_TIE logits."""
        return sum(step.gap <= NEAR_TIE for step in self.misses)

    @property
    def follows(self) -> int:
        """Steps that are the circuit's choice, or a near tie, on the rows that were fed back."""
        return sum(step.follows for step in self.steps)

    @property
    def branch(self) -> int | None:
        """The first token that differs from the circuit's own free run; None if none does."""
        return next((i for i, (a, b) in enumerate(zip(self.tokens, self.wanted)) if a != b), None)

    @property
    def kl(self) -> float:
        """Median over the steps whose logits were decrypted; nan if none were."""
        known = [step.kl for step in self.steps if step.kl is not None]
        return float(np.median(known)) if known else float("nan")

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return existing(plain(self) | {name: getattr(self, name) for name in _SUMMED})

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> FreeRun:
        """Inverse of as_json."""
        return remade(cls, {k: v for k, v in body.items() if k not in _SUMMED})


def free_running(
    plan: Plan,
    circuit: Circuit,
    endpoint: Endpoint,
    prompt: Sequence[int],
    count: int,
    *,
    costs: CostTable,
    kl_every: int = 0,
    reporter: Reporter = SILENT,
) -> FreeRun:
    """``count`` free-running steps after a prompt, judged. With ``kl_every`` the logits of every so many steps are run
    too, from the same encrypted cache and input, and decrypted: the plan then holds the program of logits."""
    if len(prompt) < 1 or count < 1 or kl_every < 0:
        raise ConfigError(f"free running needs a prompt and at least one step, got {len(prompt)} and {count}")
    watch = Stopwatch(clock=endpoint.now)
    runner = Runner(plan, endpoint.engine, plan.source(circuit), recorded=False)
    talk = Conversation(runner, reporter=watch)
    rows = list(endpoint.rows(plan, circuit, ProgramName.GENERATE, prompt))
    for x in rows[:-1]:
        talk.prompt(x)
    task, given = f"{circuit.name}, free running", rows[-1]
    hot: list[Real] = []
    seen: dict[int, Real] = {}
    reporter.start(task, count)
    for i in range(count):
        if kl_every and i % kl_every == 0:
            beside = Conversation(runner)
            beside.cache, beside.position = dict(talk.cache), talk.position
            seen[i] = endpoint.read(plan, beside.logits(given))
        hot.append(endpoint.read(plan, talk.generate(given)))
        given = talk.next or []
        reporter.advance(task, seconds=sum(watch.seconds.values()))
    reporter.done(task)
    tokens = [named(row) for row in hot]
    priced: Counter[str] = Counter()
    for program, times in ((ProgramName.PROMPT, len(prompt) - 1), (ProgramName.GENERATE, count)):
        for operator, t in tally(plan, program, costs).items():
            priced[operator] += times * t.seconds  # type: ignore[assignment]
    return FreeRun(
        prompt=tuple(int(t) for t in prompt),
        tokens=tuple(tokens),
        wanted=tuple(int(t) for t in circuit.generate(list(prompt), count).tokens),
        steps=judged(circuit, prompt, tokens, seen, hot),
        bootstraps=watch.bootstraps,
        seconds=sum(watch.seconds.values()),
        by_operator={k: watch.seconds[k] for k in sorted(watch.seconds)},
        predicted=dict(priced),
    )


def judged(
    circuit: Circuit,
    prompt: Sequence[int],
    tokens: Sequence[int],
    seen: Mapping[int, Real],
    hot: Sequence[Real] = (),
) -> tuple[FreeStep, ...]:
    """Each token against the circuit's choice after the prompt and the tokens before it; ``seen`` are logits.

    With ``hot``, the near one-hot rows that were fed back, against its choice after those too.
    """
    clear = circuit.run([*prompt, *tokens][:-1])[len(prompt) - 1 :]
    fed = circuit.follow(prompt, hot[:-1]) if len(hot) else None
    steps = []
    for i, (token, row) in enumerate(zip(tokens, clear, strict=True)):
        wanted = int(row.argmax())
        kl = float(kl_divergence(row, seen[i])) if i in seen else None
        step = FreeStep(token=int(token), wanted=wanted, gap=float(row[wanted] - row[token]), kl=kl)
        if fed is not None:
            best = int(fed[i].argmax())
            gap, leader = float(fed[i][best] - fed[i][token]), leader_of(hot[i])
            step = replace(step, followed=best, row_gap=gap if math.isfinite(gap) else math.inf, leader=leader)
        steps.append(step)
    return tuple(steps)


def free_runs(
    plan: Plan,
    circuit: Circuit,
    endpoint: Endpoint,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    engine: str,
    costs: CostTable,
    kl_every: int = 0,
    folder: Path | None = None,
    reporter: Reporter = SILENT,
) -> list[FreeRun]:
    """A free run for every prompt. ``folder`` keeps those that are finished; a second call reads them and goes on."""
    made = []
    programs = [plan.program(name).as_json() for name in (ProgramName.PROMPT, ProgramName.GENERATE)]
    run_of = [plan.circuit, plan.params.digest, plan.context, programs, engine, endpoint.setting, count, kl_every]
    for number, prompt in enumerate(prompts):
        kept = None if folder is None else folder / f"free-{number:02d}.json"
        mark = json_digest([*run_of, [int(t) for t in prompt]])
        if kept is not None and kept.exists():
            body = read_json(kept, KIND, (VERSION,))
            if body.get("mark") != mark:
                raise FileFormatError(
                    f"{kept}: belongs to another plan, engine, noise or prompt; give another folder or delete this one"
                )
            made.append(rebuilt(FreeRun.from_json, body["run"], where=str(kept), remedy="delete it to run it again"))
            continue
        if endpoint.begin is not None:
            endpoint.begin(number)
        options: dict[str, Any] = {"costs": costs, "kl_every": kl_every, "reporter": reporter}
        made.append(free_running(plan, circuit, endpoint, prompt, count, **options))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, KIND, VERSION, {"mark": mark, "run": made[-1].as_json()})
    return made
