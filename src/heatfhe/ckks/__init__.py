# SPDX-License-Identifier: Apache-2.0
"""Our own CKKS: parameters, scheme and kernels. Nothing here knows a secret but the ``secret`` package."""

from typing import TYPE_CHECKING

from heatfhe.ckks.encoding import SlotMatrix, diagonal
from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.keys import KeyTable, sparse_modulus_bits
from heatfhe.ckks.keyset import key_ids, upload_bytes
from heatfhe.ckks.linear import EncodedMap, apply_map, encode_map, encode_matrices
from heatfhe.ckks.params import (
    MAX_LOG_QP,
    MAX_LOG_QP_BY_WEIGHT,
    MAX_LOG_SPARSE_MODULUS,
    Params,
)
from heatfhe.ckks.presets import native_presets, native_set
from heatfhe.ckks.ring import Ciphertext, Ring

if TYPE_CHECKING:
    from heatfhe.ckks.kernels.cuda.found import found_cupy
else:
    from heatfhe.doors import lazy_names

    __getattr__ = lazy_names(__name__, {"found_cupy": "kernels.cuda.found.found_cupy"})

__all__ = [
    "MAX_LOG_QP",
    "MAX_LOG_QP_BY_WEIGHT",
    "MAX_LOG_SPARSE_MODULUS",
    "Ciphertext",
    "EncodedMap",
    "Evaluator",
    "KeyTable",
    "Params",
    "Ring",
    "SlotMatrix",
    "apply_map",
    "diagonal",
    "encode_map",
    "encode_matrices",
    "found_cupy",
    "key_ids",
    "native_presets",
    "native_set",
    "sparse_modulus_bits",
    "upload_bytes",
]
