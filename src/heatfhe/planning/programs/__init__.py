# SPDX-License-Identifier: Apache-2.0
"""Programs: which operations one step of a model is; what each stage is on slots."""

from heatfhe.planning.programs.decoder import record

__all__ = ["record"]
