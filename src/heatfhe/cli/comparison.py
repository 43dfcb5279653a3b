# SPDX-License-Identifier: Apache-2.0
"""The rows of heat compare, made and measured: each has a circuit, and a folder of its own where both are kept."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatfhe.circuit import Circuit
from heatfhe.cli.comparison_jobs import TRANSPLANT, Job, folder_of
from heatfhe.cli.lanes import Lane, in_order, spread_over
from heatfhe.cli.model_source import NOISE_SET, carried_in, load_text, model_folder, prices_in
from heatfhe.errors import ConfigError
from heatfhe.evaluation import ComparisonRow, compare_circuit, plaintext_row, spread
from heatfhe.files import json_digest, read_json, write_json
from heatfhe.models import encoder
from heatfhe.planning import preset as parameter_set
from heatfhe.progress import SILENT, Reporter

if TYPE_CHECKING:
    from heatfhe.planning import IterationPrices
    from heatfhe.training import Recipe

KIND = "heatfhe-compared"
STRESSED = 8  # odd windows of each kind
GENERATIONS = (50, 225)  # of a search's two stages
SEARCHES = 3  # at a time on one GPU
SEARCH_TOKENS = (4 * 512, 8 * 1024)  # that its candidates run on, and that its ends are judged on
Done = Callable[[Job, list[ComparisonRow]], None]


def _do(work: Comparison, job: Job) -> list[ComparisonRow]:
    """One job's rows, in a process of a pool."""
    return _kept(work).do(job)


def _make_row(work: Comparison, jobs: Sequence[Job], number: int) -> int:
    """One row, in a process of a cluster: it stays in the run folder."""
    _kept(work).do(jobs[number])
    return number


@lru_cache(maxsize=1)
def _kept(work: Comparison) -> Comparison:
    """The first of its equals in this process: what it has loaded and observed serves the process's next row too."""
    return work


def _placed(name: str) -> str:
    """A path that does not depend on where it is read; names of what is shipped stay as they are."""
    return str(Path(name).resolve()) if Path(name).exists() else name


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the rows share: the parent, its text, where results are kept, and how circuits are measured.

    ``params`` are the parameter sets whose plans' bootstraps are made noisy; None stands for every site's input and
    output. Searches run on ``device`` for so many ``generations`` of their two stages.
    """

    model: str
    out: Path
    base: Recipe
    text: str | None = None
    windows: int = 32
    sigma: float = 1.7e-4
    params: tuple[str | None, ...] = (None,)
    stressed: int = STRESSED
    device: str = "cpu"
    generations: tuple[int, int] = GENERATIONS

    def run(
        self, jobs: Sequence[Job], *, processes: int = 1, ray: str = "", done: Done, reporter: Reporter = SILENT
    ) -> list[ComparisonRow]:
        """Do every job that is not done yet; rows in the jobs' order. With processes, each has one thread; with
        ``ray``, a cluster's address, so has every task there. What those leave in the folder is read here."""
        found: dict[str, list[ComparisonRow]] = {}
        if ray:
            self._spread(jobs, ray, reporter)
        for job, rows in self._together(jobs, processes) if processes > 1 else self._alone(jobs, reporter):
            found[job.name] = rows
            done(job, rows)
        return [row for job in jobs for row in found[job.name]]

    def _alone(self, jobs: Sequence[Job], reporter: Reporter) -> Iterator[tuple[Job, list[ComparisonRow]]]:
        for job in in_order(jobs):
            yield job, self.do(job, reporter)

    def _spread(self, jobs: Sequence[Job], address: str, reporter: Reporter) -> None:
        """Make and measure on a cluster every circuit that the folder lacks, the longest first. All machines see the
        folder, the model and the text."""
        made = sorted((job for job in jobs if job.kind != "plaintext"), key=lambda job: -job.cost)
        numbers = {job.name: number for number, job in enumerate(made)}
        after = {numbers[job.name]: [numbers[name] for name in job.after] for job in made}
        text = None if self.text is None else _placed(self.text)
        work = replace(self, out=self.out.resolve(), model=_placed(self.model), text=text)
        task = partial(_make_row, work, tuple(made))
        spread(task, range(len(made)), ray=address, name="rows", after=after, reporter=reporter)

    def _together(self, jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, list[ComparisonRow]]]:
        """Rows as they end. Searches on a GPU have processes of their own; no other row sees the GPU then."""
        apart = frozenset({"searched"}) if self.device != "cpu" else frozenset[str]()
        others = frozenset(job.kind for job in jobs) - apart
        lanes = [Lane(kinds=others, processes=processes, hide_gpu=bool(apart)), Lane(kinds=apart, processes=SEARCHES)]
        return spread_over(lanes, jobs, partial(_do, self))

    def do(self, job: Job, reporter: Reporter = SILENT) -> list[ComparisonRow]:
        """A job's rows, one per parameter set: read where they are kept, else made now."""
        if job.kind == "plaintext":
            return [self._plaintext(job, name) for name in self.params]
        if job.after and job.recipe is not None:
            counts = self.circuit(job.after[0]).calibration.iterations()
            job = replace(job, recipe=replace(job.recipe, fixed_total=sum(counts.values())))
        place = self.out / job.folder
        noisy = [self.noise_set] if job.recipe and job.recipe.noise else []
        recipe = job.recipe.as_json() if job.recipe else None
        more = [job.rule] if job.rule != "per-site" else []
        more += [self.circuit(name).digest for name in job.after if job.recipe is None]
        if job.kind == "searched":
            more += [*map(str, self.generations), f"noise {self.sigma if job.noisy else 0:g}"]
        if job.recipe and job.recipe.priced:
            more.append(self.prices(self.base.context).name)
        mark = json_digest([self.identity, job.tolerance, job.solver, recipe, *noisy, *more])
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
        seconds = MAKERS[job.kind](self, job, place, reporter)
        write_json(note, KIND, 2, {"mark": mark, "seconds": seconds})
        return seconds

    def _measured(self, job: Job, circuit: Circuit, place: Path, name: str | None, seconds: float) -> ComparisonRow:
        note = place / f"measured-{name or 'sites'}.json"
        held_out = hashlib.sha256(self.held_out.rows.tobytes()).hexdigest()
        mark = json_digest([circuit.digest, held_out, self.sigma, name, self.stressed])
        if note.exists() and (body := read_json(note, KIND, (2,)))["mark"] == mark:
            return ComparisonRow.from_json(body["row"])
        params = None if name is None else parameter_set(name)
        options: dict[str, Any] = {"params": params, "seconds": seconds, "stressed": self.stressed}
        row = compare_circuit(job.name, circuit, self.held_out.rows, self.sigma, **options)
        write_json(note, KIND, 2, {"mark": mark, "row": row.as_json()})
        return row

    def _plaintext(self, job: Job, name: str | None) -> ComparisonRow:
        """The parent with exact nonlinearities, on the held-out windows."""
        import torch

        from heatfhe.sites import prepare
        from heatfhe.training import window_losses

        rows = torch.from_numpy(self.held_out.rows)
        loss = window_losses(prepare(copy.deepcopy(self.parent)), rows, 8, "exact")
        return replace(plaintext_row(job.name, math.exp(float(loss.mean())), len(rows)), params=name)

    def circuit(self, row: str) -> Circuit:
        """The circuit that a row has made, by its name."""
        return Circuit.load(self.out / folder_of(row) / "circuit")

    def _transplant(self, job: Job, place: Path, reporter: Reporter) -> float:
        """Counts that were learned with other weights, in a circuit that did not."""
        learned, parent = map(self.circuit, job.after)
        moved = parent.calibration.with_counts(learned.calibration.counts())
        replace(parent, calibration=moved, name=job.name).save(place / "circuit")
        return 0.0

    def _search(self, job: Job, place: Path, reporter: Reporter) -> float:
        """A calibrated circuit at the counts that a search chooses; one that was stopped goes on."""
        from heatfhe.search import SearchSettings, search

        circuit, first = self.circuit(job.after[0]), self.base.calibration_windows
        run, judge = (max(1, tokens // self.training.context) for tokens in SEARCH_TOKENS)
        rows = self.training.rows[first : first + run + judge]
        if len(rows) < run + judge:
            raise ConfigError(
                f"{job.name}: a search needs {run + judge} windows behind the {first} of calibration, the text has "
                f"{len(rows)}; give more text, or leave {job.name.split()[0]} out of --presets"
            )
        settings = SearchSettings(
            generations=self.generations, seed=job.seed, sigma=self.sigma if job.noisy else 0.0, device=self.device
        )
        found = search(circuit, rows[:run, :-1], rows[run:], settings, folder=place / "search", reporter=reporter)
        replace(found.applied(circuit), name=job.name).save(place / "circuit")
        return found.seconds

    def _calibrate(self, job: Job, place: Path, reporter: Reporter) -> float:
        """The parent's own circuit at a tolerance."""
        from heatfhe.lowering import export
        from heatfhe.ranges import FitOptions, fit_calibration
        from heatfhe.sites import prepare

        prepared = prepare(copy.deepcopy(self.parent))
        options = FitOptions(
            tolerance=job.tolerance, solver=job.solver, margin=self.base.margin, rule=job.rule, settle=self.base.settle
        )
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
        assert job.recipe is not None
        options["prices"] = self.prices(job.recipe.context) if job.recipe.priced else None
        trained = train(prepared, self.training, job.recipe, **options, carried=carried)
        export(prepared, trained.calibration, place / "circuit", tokenizer=model_folder(self.model), name=job.name)
        return trained.seconds

    def prices(self, context: int) -> IterationPrices:
        """What iterations cost in plans for the first parameter set that is measured, made in this process."""
        from heatfhe.sites import prepare

        chosen = next((name for name in self.params if name), None)
        return prices_in(chosen, prepare(copy.deepcopy(self.parent)).architecture, context, processes=1)

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
        if self.base.odd_share:
            calibration += f", {self.base.odd_calibration} odd ones: {', '.join(self.base.odd_kinds)}"
        return [prepare(copy.deepcopy(self.parent)).fingerprint(), text, calibration]

    @cached_property
    def seen(self) -> Any:
        """Ranges of the parent on the calibration windows, and on as many odd ones as trained circuits are fitted on:
        one observation for all calibrations."""
        import torch

        from heatfhe.ranges import observe
        from heatfhe.sites import prepare
        from heatfhe.training import odd_windows

        prepared, rows = prepare(copy.deepcopy(self.parent)), self.training.rows
        text, odd = rows[: self.base.calibration_windows], odd_windows(prepared, self.base, rows)
        batches = [torch.from_numpy(part[:, :-1]).split(8) if len(part) else () for part in (text, odd)]
        return observe(prepared, batches[0], odd=batches[1])

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


Maker = Callable[[Comparison, Job, Path, Reporter], float]
# How a circuit comes about, by the kind of its job; the seconds its training or search took.
MAKERS: dict[str, Maker] = {
    "calibrated": Comparison._calibrate,
    "trained": Comparison._train,
    TRANSPLANT: Comparison._transplant,
    "searched": Comparison._search,
}
