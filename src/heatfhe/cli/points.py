# SPDX-License-Identifier: Apache-2.0
"""The points of heat sweep: recipes that differ in the fields varied or in the seed, and what they ended with."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from heatfhe.errors import ConfigError
from heatfhe.evaluation import ComparisonRow
from heatfhe.files import existing, typed

if TYPE_CHECKING:
    from heatfhe.training import Recipe

OWN = ("name", "seed")  # fields that are not varied: one names the recipe, the other is --seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep: the fields that differ from the recipe, the seed, and the whole recipe."""

    name: str
    values: Mapping[str, Any]
    seed: int
    recipe: Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a point ended with: its row, its counts by site, and the course of its training.

    ``course`` has an entry at every validation: update, iterations, loss.
    """

    point: Point
    row: ComparisonRow
    counts: dict[str, int]
    course: tuple[tuple[int, int, float], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        body = {"name": self.point.name, "values": dict(self.point.values), "seed": self.point.seed}
        return existing({**body, "row": self.row.as_json(), "counts": self.counts, "course": self.course})


def field_names(recipe: Recipe) -> list[str]:
    """Every field of a recipe that can be varied; those of a phase behind its name and a point."""
    found = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if is_dataclass(value):
            found += [f"{field.name}.{inner.name}" for inner in fields(value)]
        elif field.name not in OWN:
            found.append(field.name)
    return found


def varied(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values of these fields."""
    body, known = recipe.as_json(), field_names(recipe)
    for name, value in values.items():
        if name not in known:
            near = [other for other in known if other.rpartition(".")[2] == name]
            hint = f"did you mean {' or '.join(near)}?" if near else f"have: {', '.join(known)}"
            raise ConfigError(f"--vary: a recipe has no field {name!r}; {hint}")
        outer, _, inner = name.rpartition(".")
        (body[outer] if outer else body)[inner] = value
    made = type(recipe).from_json(body)
    if not typed(made, type(made)):
        raise ConfigError(f"--vary: one of {dict(values)} is of the wrong kind; the recipe has {_own(recipe, values)}")
    return made


def _own(recipe: Recipe, names: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        value: Any = recipe
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = value
    return found


def parse_axes(options: Sequence[str]) -> dict[str, list[Any]]:
    """FIELD=VALUE,VALUE,... of every --vary: numbers, true, false, null or words."""
    axes: dict[str, list[Any]] = {}
    for option in options:
        name, sign, text = option.partition("=")
        if not sign or not name or not all(text.split(",")):
            raise ConfigError(f"--vary takes FIELD=VALUE,VALUE, such as heat.lambda_iter=0.3,0.6,1.2; got {option!r}")
        if name in axes:
            raise ConfigError(f"--vary {name} is given twice; list all its values at once")
        axes[name] = [_value(part) for part in text.split(",")]
    return axes


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"--vary: {text} is not a finite number")
    return value


def make_points(base: Recipe, axes: Mapping[str, Sequence[Any]], seeds: Sequence[int], *, cross: bool) -> list[Point]:
    """Every point once: all combinations of the values at the first seed, or with ``cross`` at every seed; and the
    recipe as it is at every seed. A field or value that cannot be is refused here, before anything is trained."""
    for axis, given in axes.items():
        for value in given:
            varied(base, {axis: value})
    wanted: list[tuple[dict[str, Any], int]] = [({}, seed) for seed in seeds]
    for combination in product(*axes.values()):
        values = dict(zip(axes, combination))
        wanted += [(values, seed) for seed in (seeds if cross else seeds[:1]) if values]
    points: dict[str, Point] = {}
    for values, seed in wanted:
        recipe = varied(base, values)
        recipe = type(recipe).from_json({**recipe.as_json(), "seed": seed})
        changed = {name: value for name, value in values.items() if _own(base, [name])[name] != value}
        words = [f"{name}={_shown(value)}" for name, value in changed.items()] or ["recipe"]
        name = f"{' '.join(words)} seed {seed}"
        points.setdefault(recipe.digest, Point(name=name, values=values or _own(base, axes), seed=seed, recipe=recipe))
    return list(points.values())


def _shown(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("/", "_").replace(" ", "")


def disagreements(results: Sequence[Result]) -> dict[str, list[int]]:
    """Sites whose counts differ between runs, with the count of each run."""
    if not results:
        return {}
    by_site = {site: [result.counts[site] for result in results] for site in results[0].counts}
    return {site: counts for site, counts in by_site.items() if len(set(counts)) > 1}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval by Student's distribution (0 for a single value)."""
    n, mean = len(values), sum(values) / len(values)
    if n < 2:
        return mean, 0.0
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    quantile = STUDENT[min(n - 2, len(STUDENT) - 1)]
    return mean, quantile * deviation / math.sqrt(n)


# Two-sided 95 % quantiles of Student's distribution for 1, 2, ... degrees of freedom; beyond, the last one.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
