# SPDX-License-Identifier: Apache-2.0
"""Images learned from labels: the three phases on a tiny ViT, and what is refused before they begin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.errors import ConfigError, DataError
from heatfhe.lowering import export
from heatfhe.sites import Prepared, prepare
from heatfhe.training import Images, Recipe, Windows, first_to_leave, noise_tap, recipe, task_loss, train
from heatfhe.training.losses import targets
from tests.gpt2_tiny import tiny_gpt2, worst
from tests.vit_tiny import tiny_vit


def short(**changes: Any) -> Recipe:
    """A few updates of the recipe of images, at 9 rows."""
    made = recipe("images").adjusted(context=10, batch=16).scaled(0.06)
    heat = replace(made.heat, logit_lr=0.5, lambda_iter=0.6)  # in so few updates
    return replace(made, heat=heat, iter_ramp=4, patience=1, gap=1, calibration_windows=64, **changes)


def bright(prepared: Prepared, count: int = 96) -> Images:
    """Images whose label is the brightest of five places: something that can be learned."""
    assert prepared.grid is not None
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, size=count)
    pixels = 0.3 * rng.standard_normal((count, *prepared.grid.image))
    pixels.reshape(count, -1)[np.arange(count), labels] += 3.0
    return Images.of(pixels, labels, prepared)


def test_three_phases_learn_labels_and_export() -> None:
    prepared = prepare(tiny_vit(0))
    images = bright(prepared)
    learned, held_out = images.split(32)
    assert isinstance(learned, Images)
    assert (learned.context, len(learned.rows), len(held_out.rows)) == (10, 64, 32)
    rows = torch.from_numpy(learned.rows)
    with torch.no_grad():
        before = float(task_loss(prepared(rows[:, :-1]), targets(prepared, rows)))
    made = short()
    # labels in the squeeze too: a random parent has nothing to teach
    made = replace(made, squeeze=replace(made.squeeze, distil=False, lr=3e-3, final_lr=3e-3, updates=30))
    result = train(prepared, learned, made, held_out=held_out)
    assert result.deployed < 0.8 * before
    assert (result.skipped, result.diverged) == (0, 0)
    assert sum(result.iterations.values()) < sum(result.seed_iterations.values())
    circuit = export(prepared, result.calibration)
    assert circuit.calibration.argmax is None
    pixels = held_out.rows[:, :-1].reshape(-1, *prepared.grid.image)  # type: ignore[union-attr]
    assert worst(prepared.logits(torch.from_numpy(pixels), "float64"), circuit.run(pixels)) < 1e-9


def test_a_recipe_is_found_and_named_fields_are_an_images() -> None:
    prepared = prepare(tiny_vit(0))
    images = bright(prepared)
    assert images.rows.dtype == np.float32
    assert images.rows.shape == (96, 37)
    rows = torch.from_numpy(images.rows)
    assert torch.equal(targets(prepared, rows)[:, 0], rows[:, -1].long())
    assert images.mixed(np.zeros((0, 37), dtype=np.int64)) is images
    with pytest.raises(DataError, match="odd_share 0"):
        images.mixed(np.zeros((1, 37), dtype=np.int64))
    made = short()
    none = {name: replace(phase, updates=0) for name, phase in made.phases.items()}
    only = replace(made, **none, counts="calibrated")
    assert train(prepared, images, only).calibration.context == 10


def test_what_is_refused_before_anything_runs() -> None:
    prepared = prepare(tiny_vit(0))
    images = bright(prepared)
    with pytest.raises(ConfigError, match=r"odd_share 0\.05"):
        train(prepared, images, short(odd_share=0.05))
    for wrong, shown in ((7, "label 7"), (-1, "label -1"), (0.5, "label 0.5")):
        rows = images.rows.copy()
        rows[3, -1] = wrong
        with pytest.raises(DataError, match=f"{shown}: the model has 5 classes, 0 to 4"):
            train(prepared, replace(images, rows=rows), short())
    with pytest.raises(ConfigError, match="learns from images with labels"):
        train(prepared, Windows(np.zeros((4, 11), dtype=np.int64)), short())
    with pytest.raises(DataError, match="an image of 1 x 6 x 5, the model takes 1 x 6 x 6"):
        Images.of(np.zeros((2, 1, 6, 5)), np.zeros(2), prepared)
    with pytest.raises(DataError, match="2 images need as many labels"):
        Images.of(np.zeros((2, 1, 6, 6)), np.zeros(3), prepared)
    text = prepare(tiny_gpt2())
    with pytest.raises(ConfigError, match="learns from windows of tokens"):
        train(text, images, short())
    with pytest.raises(ConfigError, match="reads text, no images"):
        Images.of(np.zeros((2, 1, 6, 6)), np.zeros(2), text)


def test_rows_of_an_image_have_one_length() -> None:
    """Sums are compared, and noise is added, by the length of the whole row."""
    value = torch.zeros(2, 3, 10, 1, dtype=torch.float64)
    with_power = noise_tap({"a/sum": (2.0, -1.0)}, 1e-3, 0, 0, whole=True)("a/sum", value)
    without = noise_tap({"a/sum": (2.0, 0.0)}, 1e-3, 0, 0, whole=True)("a/sum", value)
    assert torch.allclose(with_power, 10 * without)
    prepared = prepare(tiny_vit(0))
    images = torch.from_numpy(bright(prepared).rows[:8, :-1])
    assert first_to_leave(prepared, images).startswith("no site left its domain")
