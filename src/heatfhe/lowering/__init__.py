# SPDX-License-Identifier: Apache-2.0
"""Lowering: a prepared model and its calibration become a Circuit. torch."""

from heatfhe.lowering.export import export, weights
from heatfhe.models import tokenizer_files

__all__ = ["export", "tokenizer_files", "weights"]
