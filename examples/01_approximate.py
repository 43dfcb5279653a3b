# SPDX-License-Identifier: Apache-2.0
"""Approximate nonlinearities with + - * alone, and see what each costs in levels: python examples/01_approximate.py"""

from __future__ import annotations

import numpy as np

from heatfhe.approx import (
    Depth,
    ReciprocalFit,
    activation,
    exact_activation,
    fit_activation,
    fit_inverse_sqrt,
    inverse_sqrt,
    reciprocal,
)


def main() -> None:
    """1/x, 1/sqrt(x) and GELU: errors on a grid, and levels, counted by a Depth that walks through the same code."""
    print("1/x on [0.05, 4]: every iteration squares the error and costs one level")
    fit = ReciprocalFit(lo=0.05, hi=4.0, solver="plain")
    x = np.linspace(0.05, 4.0, 1001)
    for count in range(1, 8):
        error = float(np.abs(reciprocal(x, fit, count) * x - 1).max())
        print(f"  count {count}: {reciprocal(Depth(), fit, count).spent} levels, relative error {error:.1e}")

    print("1/sqrt(x) on [0.01, 16]: a rational seed, Goldschmidt for its division, Newton to polish")
    root = fit_inverse_sqrt(0.01, 16.0)
    z = np.geomspace(0.01, 16.0, 1001)
    for goldschmidt, newton in ((4, 0), (6, 0), (8, 0), (8, 1)):
        error = float(np.abs(inverse_sqrt(z, root, goldschmidt, newton) * np.sqrt(z) - 1).max())
        levels = inverse_sqrt(Depth(), root, goldschmidt, newton).spent
        print(f"  {goldschmidt} Goldschmidt + {newton} Newton: {levels} levels, relative error {error:.1e}")

    print("GELU on [-12, 12]: a polynomial")
    gelu = fit_activation("gelu_new", 12.0, tolerance=1e-2)
    u = np.linspace(-1, 1, 1001)
    error = float(np.abs(activation(u, gelu) - exact_activation("gelu_new")(12.0 * u)).max())
    print(f"  {gelu.kind}: {activation(Depth(), gelu).spent} levels, absolute error {error:.1e}")


if __name__ == "__main__":
    main()
