# SPDX-License-Identifier: Apache-2.0
"""Packing: layouts of vectors on slots, and the products between them."""

from heatfhe.planning.pack.layout import Packing, periodic, power_of_two
from heatfhe.planning.pack.mlp import PeriodicMlp
from heatfhe.planning.pack.product import (
    Product,
    diagonal,
    encoded,
    from_heads,
    from_hidden,
    from_vocabulary,
    product,
    to_heads,
    to_hidden,
    to_vocabulary,
)

__all__ = [
    "Packing",
    "PeriodicMlp",
    "Product",
    "diagonal",
    "encoded",
    "from_heads",
    "from_hidden",
    "from_vocabulary",
    "periodic",
    "power_of_two",
    "product",
    "to_heads",
    "to_hidden",
    "to_vocabulary",
]
