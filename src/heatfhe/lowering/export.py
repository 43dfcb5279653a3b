# SPDX-License-Identifier: Apache-2.0
"""export: a prepared model and its calibration become a Circuit. Collects weights and constants; computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError
from heatfhe.models import own_tokenizer, tokenizer_files
from heatfhe.records import Calibration
from heatfhe.sites import Prepared
from heatfhe.stages import Embed


def export(
    prepared: Prepared,
    calibration: Calibration | None = None,
    folder: str | Path | None = None,
    *,
    tokenizer: Any = None,
    name: str = "model",
    context: int | None = None,
    notes: Mapping[str, Any] | None = None,
    prefix: Sequence[int] | None = None,
) -> Circuit:
    """The Circuit of a prepared model; written to ``folder`` when given, whole or not at all.

    ``calibration`` defaults to the one adopted, at the model's counts. ``tokenizer`` is a Hugging Face tokenizer, a
    folder that holds one, or its files by name; by default the one beside the checkpoint the model was loaded from.
    ``context`` is the longest sequence the circuit takes: by default as long as the calibration's windows.
    ``prefix`` are public tokens that come first in every sequence, those of the calibration if not given; a prompt and
    its answer have the rest of the context.

    >>> circuit = export(prepared, calibration, "out/circuit")                          # doctest: +SKIP
    """
    if calibration is None:
        if prepared.calibration is None:
            raise ConfigError("export needs a calibration; run calibrate(prepared, sequences) and pass its result")
        calibration = prepared.calibration.with_counts(prepared.counts())
    if calibration.fingerprint != prepared.fingerprint():
        raise ConfigError(
            "this calibration belongs to other weights than the model holds now; calibrate again, or refit it"
        )
    architecture = prepared.architecture
    longest = architecture.shape.context
    length = min(longest, calibration.context) if context is None else context
    if not 1 <= length <= longest:
        raise ConfigError(f"context must lie in [1, {longest}], got {length}")
    if length > calibration.context:
        raise ConfigError(
            f"the calibration saw windows of {calibration.context} tokens, not of {length}; export with a context of "
            f"at most {calibration.context} (--context), or calibrate on longer windows"
        )
    public = calibration.prefix if prefix is None else tuple(int(token) for token in prefix)
    if calibration.prefix not in ((), public):
        raise ConfigError(
            f"prefix: the calibration holds behind its own {len(calibration.prefix)} tokens alone, these are "
            f"{len(public)} others; calibrate with them"
        )
    circuit = Circuit(
        name=name,
        shape=replace(architecture.shape, context=length),
        stages=architecture.stages,
        weights=weights(prepared, length),
        calibration=replace(calibration, context=length, prefix=public),
        tokenizer=own_tokenizer(prepared.model) if tokenizer is None else tokenizer_files(tokenizer),
        notes=dict(notes or {}),
    )
    if folder is not None:
        circuit.save(folder)
    return circuit


def weights(prepared: Prepared, context: int | None = None) -> dict[str, NDArray[Any]]:
    """The checkpoint's own tensors by circuit name, in their own dtype (bfloat16, which numpy lacks, as float32)."""
    state = prepared.model.state_dict()
    found: dict[str, NDArray[Any]] = {}
    positions = {stage.position for stage in prepared.architecture.of(Embed)}
    for name, key in prepared.architecture.tensors.items():
        tensor = state[key].detach().cpu()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        array = np.ascontiguousarray(tensor.numpy())
        found[name] = np.ascontiguousarray(array[:context]) if name in positions else array.copy()
    return found
