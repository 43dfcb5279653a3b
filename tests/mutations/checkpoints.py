# SPDX-License-Identifier: Apache-2.0
"""The folder of a training checkpoint, changed in its state, its weights or its moments: needs torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import torch

from heatfhe.files import file_digest
from heatfhe.training import Stopped, checkpoint
from heatfhe.training.loop import configure, make_optimizer
from tests.mutations.law import Format, hold, same, sealed, tensors_in
from tests.mutations.mutator import changed, file_of, plain, scrambled, tensors_of
from tests.training.short import fresh, go, short, windows

RECIPE = short()
PARTS = {"F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "I64": torch.int64}


def checkpoint_folder(folder: Path) -> Format:
    """A run stopped in its second phase: calibrated, with moments, halting logits and targets."""
    asked = iter([False, False, False, True])
    with contextlib.suppress(Stopped):
        go(fresh(), RECIPE, folder / "run", stop=lambda: next(asked))
    place = folder / "run" / "checkpoint"
    good = {p.name: p.read_bytes() for p in place.iterdir()}
    body = json.loads(good[checkpoint.STATE])["body"]
    identity = body["identity"]
    pool = [fresh()]

    def change(rng: random.Random) -> dict[str, bytes]:
        files, state = dict(good), dict(body)
        how = rng.randrange(10)
        if how < 5:
            return files | {checkpoint.STATE: file_of(checkpoint.KIND, checkpoint.VERSION, state, rng)}
        name = rng.choice((checkpoint.WEIGHTS, checkpoint.OPTIMIZER))
        files[name] = tensors_of(good[name], rng)
        if how < 9:
            state["files"] = {k: hashlib.sha256(files[k]).hexdigest() for k in state["files"]}
        else:  # hashes left out of the list, or the list changed
            state["files"] = changed(state["files"], rng) if rng.random() < 0.5 else {}
            files[name] = scrambled(good[name], rng)
        return files | {checkpoint.STATE: sealed(checkpoint.KIND, checkpoint.VERSION, state)}

    def read(files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (place / name).write_bytes(data)
        prepared = pool.pop()
        found = None
        try:
            found = checkpoint.load(place, prepared, identity)
        finally:  # one that was touched is used up
            pool.append(prepared if found is None and prepared.calibration is None else fresh())
        hold(found is not None, "no checkpoint where one is")
        assert found is not None
        position, moments = found
        said = plain(files[checkpoint.STATE])["body"]
        hold(same(position.as_json(), said["position"]), "another position")
        hold(set(said["files"]) == {checkpoint.WEIGHTS, checkpoint.OPTIMIZER}, "a file without a hash")
        hold(all(file_digest(place / k) == v for k, v in said["files"].items()), "a file that is not under its hash")
        hold(same(prepared.halting.dump(), said["logits"]), "other logits")
        hold(same(dict(prepared.switch.counts), said["counts"]), "other counts")
        hold(same({s.name: s.max_count for s in prepared.sites}, said["max_counts"]), "other bounds")
        calibration = prepared.calibration
        hold(same(None if calibration is None else calibration.as_json(), said["calibration"]), "another calibration")
        state, stored = prepared.model.state_dict(), tensors_in(files[checkpoint.WEIGHTS])
        for name, value in state.items():
            source = name if name in stored else {"lm_head.weight": "transformer.wte.weight"}.get(name, name)
            hold(source in stored and _bytes(value) == stored[source], f"{name} is not the file's")
            hold(bool(torch.isfinite(value).all()), f"{name} is not finite")
        configure(prepared, RECIPE.phases["heat"], RECIPE)
        optimizer = make_optimizer(prepared, RECIPE.phases["heat"], RECIPE)
        checkpoint.restore_optimizer(optimizer, moments)
        windows().batch(RECIPE.seed, position.rows, 4)

    return Format("checkpoint", 5, change, read)


def _bytes(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    kind = next(k for k, v in PARTS.items() if v == value.dtype)
    return kind, tuple(value.shape), value.contiguous().numpy().tobytes()
