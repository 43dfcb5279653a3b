# SPDX-License-Identifier: Apache-2.0
"""The rows of heat compare as jobs: each makes one circuit, measures it, and keeps both in a folder of its own."""

from __future__ import annotations

import copy
import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatfhe.circuit import Circuit
from heatfhe.cli.model_source import NOISE_SET, carried_in, load_text, model_folder
from heatfhe.errors import ConfigError
from heatfhe.evaluation import ComparisonRow, compare_circuit
from heatfhe.files import json_digest, read_json, write_json
from heatfhe.models import encoder
from heatfhe.planning import preset as parameter_set
from heatfhe.progress import SILENT, Reporter

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from heatfhe.training import Recipe

KIND = "heatfhe-compared"
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)
TRANSPLANT = "transplant"
Done = Callable[["Job", list[ComparisonRow]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row: the parent calibrated at ``tolerance``, a ``recipe`` trained, or counts put ``onto`` another row.

    ``after`` names the job whose counts this one takes: their total, to cut its own to, or all of them as they are.
    """

    name: str
    solver: str
    tolerance: float = 0.0
    recipe: Recipe | None = None
    after: str | None = None
    onto: str | None = None

    @property
    def folder(self) -> str:
        """Its place in the run folder."""
        return folder_of(self.name)

    @property
    def needs(self) -> set[str]:
        """Names of the jobs that are done before it."""
        return {name for name in (self.after, self.onto) if name is not None}

    @property
    def cost(self) -> int:
        """Tokens seen in training, soft ones twice: the longest job is started first."""
        if self.recipe is None:
            return 0
        phases = self.recipe.phases.values()
        return sum(p.updates * p.tokens_per_update * (2 if p.halting == "soft" else 1) for p in phases)


def folder_of(job: str) -> str:
    """The place of a job in the run folder, by its name."""
    return job.replace(" ", "-")


def make_jobs(base: Callable[[str], Recipe], presets: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Every row in the table's order; a preset is ``NAME`` or ``NAME:SOLVER``. A wrong name fails here, not later.

    ``base`` gives the recipe for a solver. Hand-cut counts wait for the row of learned ones, unless the recipe itself
    says what they add up to. ``transplant`` stands for two rows: the learned counts on the squeezed model and on the
    calibrated one, weights and constants as they are there.
    """
    from heatfhe.training import ablation

    jobs, solvers = [], []
    for name, _, solver in (p.partition(":") for p in presets):
        solver = solver or "plain"
        solvers.append(solver)
        for seed in seeds:
            if name == TRANSPLANT:
                jobs += _transplants(solver, seed)
                continue
            made = replace(ablation(name, base(solver)), seed=seed)
            jobs.append(Job(name=f"{name} {solver} seed {seed}", solver=solver, recipe=made))
    known = {job.name for job in jobs}
    for i, job in enumerate(jobs):
        learned = job.name.replace("fixed-counts", "heat")
        if learned != job.name and learned in known and job.recipe is not None and not job.recipe.fixed_total:
            jobs[i] = replace(job, after=learned)
    kinds = [(s, t) for s in dict.fromkeys(solvers) for t in TOLERANCES]
    rows = [Job(name=_calibrated(s, t), solver=s, tolerance=t) for s, t in kinds] + jobs
    for job in rows:
        if missing := sorted(job.needs - {other.name for other in rows}):
            raise ConfigError(
                f"{job.name}: needs the row {missing[0]!r}; add its preset to --presets, such as "
                "heat,squeezed,transplant (with :relaxed at each for that solver)"
            )
    return rows


def _calibrated(solver: str, tolerance: float) -> str:
    return f"calibrated {tolerance:.0e} {solver}"


def _transplants(solver: str, seed: int) -> list[Job]:
    parents = {"squeezed": f"squeezed {solver} seed {seed}", "calibrated": _calibrated(solver, TOLERANCES[-1])}
    learned = f"heat {solver} seed {seed}"
    return [
        Job(name=f"{TRANSPLANT} {kind} {solver} seed {seed}", solver=solver, after=learned, onto=parent)
        for kind, parent in parents.items()
    ]


def _end_with(parent: int, stop: Event) -> None:
    """In a worker: end at once when told to, or when the command is gone. Rows go on from their checkpoints."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which tells us

    def watch() -> None:
        while not stop.wait(0.5) and os.getppid() == parent:
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the rows share: the parent, its text, where results are kept, and how circuits are measured.

    ``params`` are the parameter sets whose plans' bootstraps are made noisy; None stands for every site's input and
    output.
    """

    model: str
    out: Path
    base: Recipe
    text: str | None = None
    windows: int = 32
    sigma: float = 1.7e-4
    params: tuple[str | None, ...] = (None,)

    def run(
        self, jobs: Sequence[Job], *, processes: int = 1, done: Done, reporter: Reporter = SILENT
    ) -> list[ComparisonRow]:
        """Do every job that is not done yet; rows in the jobs' order. With processes, each has one thread."""
        found: dict[str, list[ComparisonRow]] = {}
        for job, rows in self._alone(jobs, reporter) if processes == 1 else self._together(jobs, processes):
            found[job.name] = rows
            done(job, rows)
        return [row for job in jobs for row in found[job.name]]

    def _alone(self, jobs: Sequence[Job], reporter: Reporter) -> Iterator[tuple[Job, list[ComparisonRow]]]:
        for job in sorted(jobs, key=lambda job: bool(job.needs)):
            yield job, self.do(job, reporter)

    def _together(self, jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, list[ComparisonRow]]]:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = "1"
        waiting = [job for job in jobs if job.needs]
        first = sorted((job for job in jobs if not job.needs), key=lambda job: -job.cost)
        ended: set[str] = set()
        context = get_context("spawn")
        stop = context.Event()
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with, initargs=(os.getpid(), stop))
        try:
            running: dict[Future[list[ComparisonRow]], Job] = {pool.submit(self.do, job): job for job in first}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    yield job, future.result()
                    ended.add(job.name)
                    ready = [other for other in waiting if other.needs <= ended]
                    waiting = [other for other in waiting if other not in ready]
                    running |= {pool.submit(self.do, other): other for other in ready}
        except BaseException:  # Ctrl-C, or a row that failed: nothing goes on behind the back of who asked for it
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown()

    def do(self, job: Job, reporter: Reporter = SILENT) -> list[ComparisonRow]:
        """A job's rows, one per parameter set: read where they are kept, else made now."""
        if job.after is not None and job.recipe is not None:
            counts = self.circuit(job.after).calibration.iterations()
            job = replace(job, recipe=replace(job.recipe, fixed_total=sum(counts.values())))
        place = self.out / job.folder
        noisy = [self.noise_set] if job.recipe and job.recipe.noise else []
        recipe = job.recipe.as_json() if job.recipe else None
        parents = [] if job.onto is None else [self.circuit(name).digest for name in sorted(job.needs)]
        mark = json_digest([self.identity, job.tolerance, job.solver, recipe, *noisy, *parents])
        seconds = self._make(job, place, mark, reporter)
        circuit = Circuit.load(place / "circuit")
        return [self._measured(job, circuit, place, name, seconds) for name in self.params]

    def _make(self, job: Job, place: Path, mark: str, reporter: Reporter) -> float:
        """Make the circuit unless it is there from the same things; the seconds its training took."""
        note = place / "made.json"
        if note.exists():
            body = read_json(note, KIND, (2,))
            if body["mark"] != mark:
                raise ConfigError(f"{place}: was made from another model, text or recipe; give another folder with -o")
            return float(body["seconds"])
        if job.onto is not None:
            seconds = self._transplant(job, place)
        else:
            seconds = self._calibrate(job, place, reporter) if job.recipe is None else self._train(job, place, reporter)
        write_json(note, KIND, 2, {"mark": mark, "seconds": seconds})
        return seconds

    def _measured(self, job: Job, circuit: Circuit, place: Path, name: str | None, seconds: float) -> ComparisonRow:
        note = place / f"measured-{name or 'sites'}.json"
        held_out = hashlib.sha256(self.held_out.rows.tobytes()).hexdigest()
        mark = json_digest([circuit.digest, held_out, self.sigma, name])
        if note.exists() and (body := read_json(note, KIND, (2,)))["mark"] == mark:
            return ComparisonRow.from_json(body["row"])
        params = None if name is None else parameter_set(name)
        row = compare_circuit(job.name, circuit, self.held_out.rows, self.sigma, params=params, seconds=seconds)
        write_json(note, KIND, 2, {"mark": mark, "row": row.as_json()})
        return row

    def circuit(self, job: str) -> Circuit:
        """The circuit that a job has made, by its name."""
        return Circuit.load(self.out / folder_of(job) / "circuit")

    def _transplant(self, job: Job, place: Path) -> float:
        """The counts of one row on the weights and constants of another."""
        assert job.after is not None
        assert job.onto is not None
        counts = self.circuit(job.after).calibration.counts()
        replace(self.circuit(job.onto), name=job.name).with_counts(counts).save(place / "circuit")
        return 0.0

    def _calibrate(self, job: Job, place: Path, reporter: Reporter) -> float:
        """The parent's own circuit at a tolerance."""
        from heatfhe.lowering import export
        from heatfhe.ranges import FitOptions, fit_calibration
        from heatfhe.sites import prepare

        prepared = prepare(copy.deepcopy(self.parent))
        options = FitOptions(tolerance=job.tolerance, solver=job.solver, margin=self.base.margin)
        fitted = fit_calibration(prepared.architecture, self.seen, options, reporter=reporter)
        export(prepared, fitted, place / "circuit", tokenizer=model_folder(self.model), name=job.name)
        return 0.0

    def _train(self, job: Job, place: Path, reporter: Reporter) -> float:
        """A preset's circuit; a run that was stopped goes on."""
        from heatfhe.lowering import export
        from heatfhe.sites import prepare
        from heatfhe.training import train

        prepared = prepare(copy.deepcopy(self.parent))
        options: dict[str, Any] = {"held_out": self.held_out, "folder": place, "reporter": reporter}
        carried = carried_in(self.noise_set, prepared.architecture)
        trained = train(prepared, self.training, job.recipe, **options, carried=carried)
        export(prepared, trained.calibration, place / "circuit", tokenizer=model_folder(self.model), name=job.name)
        return trained.seconds

    @property
    def noise_set(self) -> str:
        """The parameter set at whose sizes a recipe's noise is met: the first that is measured."""
        return next((name for name in self.params if name), NOISE_SET)

    @cached_property
    def identity(self) -> list[str]:
        """What every row depends on."""
        from heatfhe.sites import prepare

        text = hashlib.sha256(self.training.rows.tobytes()).hexdigest()
        calibration = f"{self.base.calibration_windows} windows, margin {self.base.margin:g}"
        return [prepare(copy.deepcopy(self.parent)).fingerprint(), text, calibration]

    @cached_property
    def seen(self) -> Any:
        """Ranges of the parent on the calibration windows: one observation for all calibrations."""
        import torch

        from heatfhe.ranges import observe
        from heatfhe.sites import prepare

        windows = torch.from_numpy(self.training.rows[: self.base.calibration_windows, :-1])
        return observe(prepare(copy.deepcopy(self.parent)), windows.split(8))

    @cached_property
    def parent(self) -> Any:
        """The model before any of it."""
        from heatfhe.sites import load_checkpoint

        return load_checkpoint(self.model)

    @property
    def training(self) -> Any:
        """Windows to train and calibrate on."""
        return self._split[0]

    @property
    def held_out(self) -> Any:
        """Windows to measure on."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[Any, Any]:
        encode, end = encoder(model_folder(self.model))
        first, last = load_text(self.text, self.model, encode, self.base.context, end).split(self.windows)
        return first, last
