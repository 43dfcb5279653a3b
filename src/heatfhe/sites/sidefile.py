# SPDX-License-Identifier: Apache-2.0
"""A prepared model on disk: a plain Hugging Face checkpoint, and one side file with what training added."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from heatfhe.errors import ConfigError, FileFormatError, HeatError
from heatfhe.files import atomic_directory, read_json, rebuilt, write_json
from heatfhe.models import own_tokenizer, tokenizer_files, upload_folder
from heatfhe.records import Calibration
from heatfhe.sites.prepare import prepare, restore
from heatfhe.sites.prepared import PrepareConfig, Prepared
from heatfhe.sites.source import load_checkpoint

KIND, VERSION, NAME = "heatfhe-prepared", 1, "heat.json"


def side_json(prepared: Prepared) -> dict[str, Any]:
    """What the side file holds: options, calibration, counts, halting logits, and the weights' fingerprint."""
    config: dict[str, Any] = {"max_counts": dict(prepared.config.max_counts), "gamma": prepared.config.gamma}
    if prepared.config.prefix:
        config["prefix"] = list(prepared.config.prefix)
    return {
        "architecture": prepared.architecture.kind,
        "fingerprint": prepared.fingerprint(),
        "config": config,
        "max_counts": {site.name: site.max_count for site in prepared.sites},
        "calibration": None if prepared.calibration is None else prepared.calibration.as_json(),
        "counts": dict(prepared.switch.counts),
        "logits": prepared.halting.dump(),
    }


def save_prepared(prepared: Prepared, folder: str | Path, *, tokenizer: Any = None) -> None:
    """Write the checkpoint, its tokenizer and its side file as one folder, whole or not at all.

    ``tokenizer`` as in export: by default the one beside the checkpoint that the model was loaded from.
    """
    words = own_tokenizer(prepared.model) if tokenizer is None else tokenizer_files(tokenizer)
    with atomic_directory(folder) as partial:
        model: Any = prepared.model
        model.save_pretrained(partial)
        for name, data in words.items():
            (partial / name).write_bytes(data)
        write_json(partial / NAME, KIND, VERSION, side_json(prepared))


def push_prepared(
    prepared: Prepared, name: str, *, private: bool = False, token: str | None = None, tokenizer: Any = None
) -> str:
    """Publish what ``save_prepared`` writes as a model of the Hugging Face hub; returns its address there."""
    with tempfile.TemporaryDirectory() as place:
        save_prepared(prepared, Path(place) / "model", tokenizer=tokenizer)
        words = f"Checkpoint prepared by heatfhe, {prepared.fingerprint()[:12]}"
        return upload_folder(Path(place) / "model", name, words, private=private, token=token)


def load_prepared(folder: Path, model: nn.Module | None = None, *, check_weights: bool = True) -> Prepared:
    """Prepare a model loaded from ``folder`` (now, if none is given) as its side file says.

    On failure the model is left as it was.
    """
    if not (folder / NAME).is_file():
        raise ConfigError(
            f"{folder}: has no side file {NAME}: it was not saved by heat train or save_prepared; prepare it"
        )
    model = load_checkpoint(folder) if model is None else model
    body = read_json(folder / NAME, KIND, (VERSION,))
    prepared: Prepared | None = None
    try:
        prepared = prepare(
            model, PrepareConfig(**{**body["config"], "prefix": tuple(body["config"].get("prefix", ()))})
        )
        _take(prepared, body, folder / NAME, check_weights)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, HeatError) as err:
        if prepared is not None:
            restore(prepared)
        if isinstance(err, HeatError):
            raise
        raise FileFormatError(f"{folder / NAME}: a field is missing or wrong ({err}); save the model again") from err
    return prepared


def _take(prepared: Prepared, body: dict[str, Any], path: Path, check_weights: bool) -> None:
    if prepared.architecture.kind != body["architecture"]:
        raise FileFormatError(f"{path}: made for {body['architecture']}, not {prepared.architecture.kind}")
    if check_weights and prepared.fingerprint() != body["fingerprint"]:
        raise ConfigError(f"{path}: belongs to other weights; load the checkpoint beside it")
    if body["calibration"] is not None:
        calibration = rebuilt(
            Calibration.from_json, body["calibration"], where=str(path), remedy="save the model again"
        )
        prepared.adopt(calibration, max_counts=body["max_counts"])
    prepared.halting.load(body["logits"])
    prepared.set_counts(body["counts"])
