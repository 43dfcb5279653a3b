# SPDX-License-Identifier: Apache-2.0
"""EvalMod: I + e becomes e, by sin(2 pi y) / (2 pi) from a cosine polynomial and three double angles.

The polynomial approximates (1/2pi)^(1/8) cos(2 pi (y - 1/4) / 8) on x = (y - 1/4) / 16, only near the integers:
weighted least squares in the even Chebyshev basis, seven Chebyshev nodes within 1/32 of each |I| <= 15, weight
max(exp(-I^2 / 11), 1e-5), because I has standard deviation 1.66 for the sparse secret of weight 32 (after Han and Ki,
ePrint 2019/688). Weight, interval, degree and double angles belong together: change one, fit again.
"""

from __future__ import annotations

import math

import numpy as np

from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.polynomial import ChebyshevEvaluator, double_angle
from heatfhe.ckks.ring import Ciphertext

INTERVAL = 16  # K: x = y / K
DOUBLE_ANGLES = 3
EVAL_MOD_LEVELS = 8
REACH = 1 / 32  # |e| for which the bound holds
COSINE = np.array(
    [
        0.12517788347028239671, 0.28944821247705031119, 0.36273462154971323, 0.30111489624724951636,
        -0.1055010037258480036, -0.4358827910587696563, 0.37483078877370578841, -0.14820782051322478026,
        0.03665613751094320979, -0.0063872833090791821426, 0.0008373173502387661757, -8.6243807376081464276e-5,
        7.1658570383945355551e-6, -5.0437045731458210812e-7, 2.6048814146873451077e-8, -2.070838251829465136e-9,
    ]
)  # fmt: skip  # coefficients of T_0, T_2, ..., T_30


def angle_constant(i: int) -> float:
    """What the i-th double angle subtracts: (1/2pi)^(2^i / 2^r)."""
    return float((1 / (2 * math.pi)) ** (2.0**i / 2**DOUBLE_ANGLES))


def eval_mod(evaluator: Evaluator, a: Ciphertext) -> Ciphertext:
    """sin(2 pi y) / (2 pi) for slots y / K.

    Domain  |y - round(y)| <= 1/32, |round(y)| <= 15.
    Bound   against the sine 4e-14 at I = 0, 3e-13 to |I| = 6, 3e-11 to 9, 8e-9 to 15; the sine itself is
            e - (2 pi)^2 e^3 / 6.
    Depth   8: one for T_2(x), four for degree 15 in it, three double angles.
    Source  Cheon, Han, Kim, Kim, Song, EUROCRYPT 2018; Han, Ki, CT-RSA 2020.
    """
    scales = evaluator.ring.chain.eval_scales()
    shifted = evaluator.add_constant(a, -1 / (4 * INTERVAL))
    u = double_angle(evaluator, shifted, 1.0)  # T_2(x); T_2k(x) = T_k(u)
    level = a.level - EVAL_MOD_LEVELS + DOUBLE_ANGLES
    out = ChebyshevEvaluator(evaluator, u, scales).evaluate(COSINE, level, scales[level])
    for i in range(1, DOUBLE_ANGLES + 1):
        out = double_angle(evaluator, out, angle_constant(i))
    return out
