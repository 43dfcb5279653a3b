# SPDX-License-Identifier: Apache-2.0
"""Figures of runs as PNG files, by matplotlib: distributions, counts per layer, validation, the depth map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from heatfhe.errors import MissingExtraError
from heatfhe.files import atomic_write
from heatfhe.records import FAMILIES
from heatfhe.report.charts import FAMILY_WORDS
from heatfhe.report.gather import CircuitFacts, Material, TrainingFacts, telling_sites


def draw_figures(found: Material, folder: Path) -> list[Path]:
    """Write every figure the material allows into a folder; returns their paths."""
    try:
        import matplotlib
    except ModuleNotFoundError as err:
        raise MissingExtraError("report", needed_by="figures as PNG") from err
    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []

    def save(name: str, draw: Callable[[Any], None], size: tuple[float, float] = (8.0, 4.5)) -> None:
        figure = pyplot.figure(figsize=size, layout="constrained")
        draw(figure)
        with atomic_write(folder / name) as f:
            figure.savefig(f, format="png", dpi=150)
        pyplot.close(figure)
        made.append(folder / name)

    for run in found.trainings:
        for site in telling_sites(run):
            save(f"{run.name}-distribution-{site.replace('/', '-')}.png", partial(_distribution, run=run, site=site))
        if run.distributions:
            save(f"{run.name}-counts-per-layer.png", partial(_per_layer, run=run), (8.0, 6.0))
        if run.validations:
            save(f"{run.name}-validation.png", partial(_validation, run=run))
    if found.circuits:
        save("depth-map.png", partial(_depth_map, circuits=found.circuits), (9.0, 7.0))
    return made


def _distribution(figure: Any, run: TrainingFacts, site: str) -> None:
    axes = figure.add_subplot()
    rows = [(line["step"], line["p"][site], line["modes"][site]) for line in run.distributions if site in line["p"]]
    wide = max(len(p) for _, p, _ in rows)
    grid = [[p[k] if k < len(p) else 0.0 for _, p, _ in rows] for k in range(wide)]
    image = axes.pcolormesh([s for s, _, _ in rows], range(wide), grid, cmap="Greys", vmin=0, vmax=1, shading="nearest")
    axes.plot([s for s, _, _ in rows], [m for _, _, m in rows], color="tab:red", label="most likely count")
    axes.set(xlabel="update", ylabel="count", title=f"{run.name}: {site}")
    axes.legend()
    figure.colorbar(image, label="probability")


def _per_layer(figure: Any, run: TrainingFacts) -> None:
    owners = {name.rpartition("/")[0] for name in run.distributions[-1]["modes"]}
    names = sorted({owner.rpartition(".")[0] or owner for owner in owners})
    axes = figure.subplots(2, 2, sharex=True)
    steps = [line["step"] for line in run.distributions]
    for (family, words), place in zip(FAMILY_WORDS.items(), axes.flat):
        end = f"/{FAMILIES[family].suffix}"
        for name in names:
            totals = []
            for line in run.distributions:
                own = [c for s, c in line["modes"].items() if s.startswith(name) and s.endswith(end)]
                totals.append(sum(own) if own else None)
            if any(t is not None for t in totals):
                place.step(steps, [float("nan") if t is None else t for t in totals], where="post", label=name)
        place.set(title=words, xlabel="update", ylabel="iterations in the layer")
    axes.flat[0].legend(fontsize="small")


def _validation(figure: Any, run: TrainingFacts) -> None:
    axes = figure.add_subplot()
    axes.plot([v["step"] for v in run.validations], [v["loss"] for v in run.validations], marker="o", color="tab:blue")
    axes.set(xlabel="update", ylabel="held-out loss (nats per token)", title=run.name)
    rows = [(u["step"], u["iterations"]) for u in run.updates if u.get("iterations")]
    if rows:
        other = axes.twinx()
        other.plot([s for s, _ in rows], [i for _, i in rows], color="tab:red", linestyle="--")
        other.set_ylabel("iterations per forward (dashed)")


def _depth_map(figure: Any, circuits: Sequence[CircuitFacts]) -> None:
    axes = figure.subplots(len(FAMILY_WORDS), 1)
    wide = 0.8 / len(circuits)
    for (family, words), place in zip(FAMILY_WORDS.items(), axes):
        sites = [s.site for s in circuits[0].sites if s.family == family]
        for i, circuit in enumerate(circuits):
            counts = {s.site: s.count for s in circuit.sites}
            places = [x + i * wide for x in range(len(sites))]
            place.bar(places, [counts.get(s, 0) for s in sites], wide, label=circuit.name)
        place.set(title=words, ylabel="count", xticks=range(len(sites)))
        place.set_xticklabels([s.rpartition("/")[0] for s in sites] if len(sites) <= 16 else [], fontsize="small")
    axes[0].legend()
