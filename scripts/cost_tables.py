# SPDX-License-Identifier: Apache-2.0
"""Writes the cost tables shipped in src/heatfhe/planning/costs: run it after changing a figure below.

PYTHONPATH=src python scripts/cost_tables.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from heatfhe.planning.cost import INSTRUCTIONS, CostTable

FOLDER = Path(__file__).parents[1] / "src" / "heatfhe" / "planning" / "costs"

# Price of a refresh by distinct slots, relative to all 2^15 slots. Model: 28 limbs, budgets (4, 3), a modular reduction
# of 16 products that runs twice only at full slots; the floor is one reduction and the trace.
BY_PERIOD = {1: 0.44, 16: 0.54, 1024: 0.63, 2048: 0.66, 4096: 0.69, 16384: 0.77, 32768: 1.0}
BY_PERIOD_SAYS = "sparse refreshes by a model of the modular reduction (0.44 of the full price at one slot)"


def free(name: str, says: str, bootstrap: Mapping[int, float], unit: str) -> CostTable:
    """Bootstraps alone, everything else at no price."""
    seconds = dict.fromkeys(INSTRUCTIONS, (0.0,))
    return CostTable(
        name=name, provenance=says, hardware="none", slots=32768, bootstrap=bootstrap, seconds=seconds, unit=unit
    )


def quoted(name: str, says: str, hardware: str, full: float, ms: Mapping[str, float]) -> CostTable:
    """Figures known at one level only are used at every level."""
    return CostTable(
        name=name,
        provenance=f"{says}; {BY_PERIOD_SAYS}",
        hardware=hardware,
        slots=32768,
        bootstrap={p: round(full * r, 6) for p, r in BY_PERIOD.items()},
        seconds={word: (ms[word] / 1e3,) for word in INSTRUCTIONS},
    )


def openfhe(
    log_n: int, levels: int, towers: int, digits: int, ms: Mapping[str, float], boot: Mapping[int, float]
) -> CostTable:
    """OpenFHE 1.6.1 on one CPU thread, measured at the top of the chain; other levels by a count of transforms.

    With t towers left of ``towers``, elementwise work goes with t, a key switch with (d + 1)(t + k): d = ceil(t / k)
    digits of k = ceil(towers / digits) towers, each raised to t + k towers, and one division back. Level l leaves
    l + 2 towers.
    """
    k = math.ceil(towers / digits)
    switches = {"conjugate", "hoist", "multiply", "relinearise", "rotate", "rotate_hoisted"}

    def at(word: str, level: int) -> float:
        t = level + 2
        switch = (math.ceil(t / k) + 1) * (t + k) / ((digits + 1) * (towers + k))
        return float(f"{ms[word] / 1e3 * (switch if word in switches else t / towers):.4g}")

    return CostTable.measured(
        name=f"openfhe-cpu-{log_n}",
        provenance=(
            f"measured: OpenFHE 1.6.1 (pip wheel), ring 2^{log_n}, 59-bit scale, dnum {digits}, {towers} towers, one "
            "thread; levels below the top by a count of transforms; measure your own with heat bench-engine openfhe"
        ),
        hardware="x86-64 server core, AVX-512 present but not used by the wheel, one thread",
        slots=1 << (log_n - 1),
        bootstrap=boot,
        seconds={word: tuple(at(word, level) for level in range(levels + 1)) for word in INSTRUCTIONS},
    )


def tables() -> list[CostTable]:
    """All of them."""
    a100 = {
        "add": 0.047, "conjugate": 0.575, "hoist": 0.275, "multiply": 0.580, "multiply_plain": 0.066,
        "relinearise": 0.448, "rescale": 0.0, "rotate": 0.575, "rotate_hoisted": 0.300, "tensor": 0.132,
    }  # fmt: skip
    cheddar = {
        "add": 0.010, "conjugate": 0.184, "hoist": 0.088, "multiply": 0.185, "multiply_plain": 0.015,
        "relinearise": 0.145, "rescale": 0.010, "rotate": 0.184, "rotate_hoisted": 0.096, "tensor": 0.030,
    }  # fmt: skip
    small = {
        "add": 0.18, "conjugate": 14.6, "hoist": 7.3, "multiply": 18.0, "multiply_plain": 0.39,
        "relinearise": 14.7, "rescale": 2.5, "rotate": 15.0, "rotate_hoisted": 7.5, "tensor": 0.77,
    }  # fmt: skip
    tiny = {
        "add": 0.09, "conjugate": 7.3, "hoist": 3.6, "multiply": 8.7, "multiply_plain": 0.21,
        "relinearise": 7.5, "rescale": 1.1, "rotate": 7.3, "rotate_hoisted": 3.6, "tensor": 0.40,
    }  # fmt: skip
    large = {
        "add": 3.2, "conjugate": 236, "hoist": 123, "multiply": 285, "multiply_plain": 6.3,
        "relinearise": 231, "rescale": 43, "rotate": 240, "rotate_hoisted": 118, "tensor": 12,
    }  # fmt: skip
    sparse = {8: 0.399, 32: 0.443, 64: 0.495, 128: 0.527, 512: 0.624, 2048: 0.93}
    return [
        free("unit", "by definition: the number of bootstraps", {32768: 1.0}, "bootstraps"),
        free("equivalents", f"by definition, in full-slot bootstraps; {BY_PERIOD_SAYS}", BY_PERIOD, "full bootstraps"),
        quoted(
            "paper-a100",
            "quoted from the HEAT paper (primitive costs; timed at 11 levels left, FIDESlib, 100 repetitions); not in "
            "the paper: hoist and rotate_hoisted as 0.275 + 0.3 of a rotation's 0.575 ms, tensor as two plain products",
            "one NVIDIA A100-64GB (custom), N = 2^16",
            0.0821,
            a100,
        ),
        quoted(
            "fideslib-h200",
            "bootstrap measured (52.6 ms, 10 levels left, standard error 3.3e-4); every other figure is the HEAT "
            "paper's A100 one times 52.6/82.1",
            "one NVIDIA H200, N = 2^16",
            0.0526,
            {word: round(t * 52.6 / 82.1, 4) for word, t in a100.items()},
        ),
        quoted(
            "cheddar-h200",
            "measured: Cheddar 1.0 at 40-bit scale, bootstrap 21.2 ms with 13 levels left, product 185 us, rotation "
            "184 us; assumed: parts of a product and a rotation in OpenFHE's ratios, add 10, plain product 15 us",
            "one NVIDIA H200, N = 2^16",
            0.0212,
            cheddar,
        ),
        openfhe(11, 9, 23, 3, tiny, {p // 2 or 1: round(s * 0.46 / 0.93, 3) for p, s in sparse.items()}),
        openfhe(12, 9, 23, 3, small, sparse),
        openfhe(16, 4, 21, 3, large, {p: round(18.3 * r, 2) for p, r in BY_PERIOD.items()}),
    ]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for table in tables():
        table.save(FOLDER / f"{table.name}.json")
