# SPDX-License-Identifier: Apache-2.0
"""Programs: which operations one step of a model is, one file per architecture."""

from heatfhe.planning.programs.gpt2 import PROGRAMS, record

__all__ = ["PROGRAMS", "record"]
