# SPDX-License-Identifier: Apache-2.0
"""Packing: layouts of vectors on slots, and the products between them."""

from heatfhe.planning.pack.layout import Packing, periodic, power_of_two
from heatfhe.planning.pack.linear_map import (
    LinearMap,
    Vector,
    from_heads,
    from_hidden,
    from_vocabulary,
    linear_map,
    to_heads,
    to_hidden,
    to_vocabulary,
)
from heatfhe.planning.pack.mlp import PeriodicMlp

__all__ = [
    "LinearMap",
    "Packing",
    "PeriodicMlp",
    "Vector",
    "from_heads",
    "from_hidden",
    "from_vocabulary",
    "linear_map",
    "periodic",
    "power_of_two",
    "to_heads",
    "to_hidden",
    "to_vocabulary",
]
