# SPDX-License-Identifier: Apache-2.0
"""Programs: which operations one token of a model takes; what each stage is on slots."""

from heatfhe.planning.programs.decoder import record
from heatfhe.planning.programs.packed import record_packed

__all__ = ["record", "record_packed"]
