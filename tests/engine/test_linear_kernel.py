# SPDX-License-Identifier: Apache-2.0
"""The kernel of linear maps beside numpy's sums: under the shim here, by CuPy where there is a GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heatfhe.engine.arrays as arrays
from heatfhe.engine.arrays import BLOCK, ROWS, Arrays, arrays_on
from heatfhe.engine.cycles import shortest
from tests.ckks.cuda_shim.device import COMPILER, HERE

SOURCE = (Path(arrays.__file__).parent / "linear.cu").read_text()
MAPS = [((0, 1, 2, 3), (0, 4, 8)), ((0,), (5,)), (tuple(range(7)), (0, 37))]


def case(seed: int, n: int, kinds: str, rows: tuple[int, ...]) -> tuple[Any, ...]:
    """Slots of a kind and diagonals of another, some of which repeat."""
    rng = np.random.default_rng(seed)

    def numbers(shape: tuple[int, ...], kind: str) -> Any:
        found = rng.standard_normal(shape)
        return found + 1j * rng.standard_normal(shape) if kind == "D" else found

    babies, giants = MAPS[seed % len(MAPS)]
    plains = [[shortest(np.resize(numbers((n,), kinds[1]), n)) for _ in babies] for _ in giants]
    plains[0][0] = numbers((n // 4,), kinds[1])
    return numbers((*rows, n), kinds[0]), babies, giants, plains


def test_constants_are_those_of_the_source() -> None:
    assert f"ROWS = {ROWS};" in SOURCE
    assert f"blockIdx.x * {BLOCK} +" in SOURCE


@pytest.mark.parametrize("kinds", ["dd", "DD"])
def test_rows_in_pieces_have_the_same_bits(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slots, *rest = case(0, 64, kinds, (2, 9))
    whole = Arrays().linear(slots, *rest)
    monkeypatch.setattr(arrays, "PIECE", 4 * 64)  # 18 rows as 4, 4, 4, 4, 2
    assert np.array_equal(Arrays().linear(slots, *rest), whole)
    monkeypatch.setattr(arrays, "PIECE", 1)
    assert np.array_equal(Arrays().linear(slots, *rest), whole)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_the_kernel_is_numpys_sum(tmp_path: Path) -> None:
    """All four kinds, rows that fill no block, rings below one block and above."""
    names = re.findall(r"^MAP\((\w+),", SOURCE, re.M)
    exports = "\n".join(
        f'extern "C" void run_{name}(const unsigned* grid, unsigned threads, void** args) '
        f"{{ shim::launch({name}, grid, threads, false, args); }}"
        for name in names
    )
    (tmp_path / "linear.cpp").write_text(f'#include "shim.h"\n{SOURCE}\n{exports}\n')
    command = ["-std=c++17", "-O2", "-shared", "-fPIC", "-w", f"-I{HERE}", "linear.cpp", "-o", "linear.so"]
    subprocess.run([str(COMPILER), *command], check=True, cwd=tmp_path)
    library = ctypes.CDLL(str(tmp_path / "linear.so"))
    for seed, (n, kinds, rows) in enumerate(
        (n, kinds, rows) for n in (64, 256) for kinds in ("dd", "dD", "Dd", "DD") for rows in ((), (3,), (2, 9))
    ):
        slots, babies, giants, plains = case(seed, n, kinds, rows)
        wanted = Arrays().linear(slots, babies, giants, plains)
        assert np.abs(run(library, kinds, slots, babies, giants, plains) - wanted).max() <= 1e-13, seed


def run(
    library: ctypes.CDLL, kinds: str, slots: Any, babies: Sequence[int], giants: Sequence[int], plains: Any
) -> Any:
    """One launch, as GpuArrays makes it."""
    n, diagonals = slots.shape[-1], [np.ascontiguousarray(d) for row in plains for d in row]
    y = np.full(slots.shape, np.nan, dtype=np.result_type(slots, diagonals[0]))
    rows = slots.size // n
    tables = [
        np.array([d.ctypes.data for d in diagonals], dtype=np.uint64),
        *(np.array(row, dtype=np.int32) for row in ([d.size - 1 for d in diagonals], giants, babies)),
    ]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (slots, y, *tables)]
    values = [*pointers, *(ctypes.c_int(v) for v in (len(giants), len(babies), rows, n))]
    args = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    grid = (ctypes.c_uint * 3)(-(-n // BLOCK), -(-rows // ROWS), 1)
    getattr(library, f"run_linear_{kinds}")(grid, BLOCK, args)
    return y


@pytest.mark.gpu
def test_the_kernel_on_a_gpu() -> None:
    """Against numpy, to rounding: the compiler there joins products and sums."""
    device = arrays_on("cuda")
    for seed in range(12):
        slots, babies, giants, plains = case(seed, 1 << (6 + seed), ("dd", "dD", "Dd", "DD")[seed % 4], (1 + seed,))
        wanted = Arrays().linear(slots, babies, giants, plains)
        there = [[device.put(d) for d in row] for row in plains]
        assert np.abs(device.get(device.linear(device.put(slots), babies, giants, there)) - wanted).max() < 1e-12, seed
