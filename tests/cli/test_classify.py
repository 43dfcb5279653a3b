# SPDX-License-Identifier: Apache-2.0
"""heat classify as a user types it: a folder of images on a server that only simulates, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

from heatfhe.cli import main
from heatfhe.images import read_image
from heatfhe.lowering import export
from heatfhe.ranges import calibrate
from heatfhe.sites import prepare
from tests.vit_tiny import tiny_vit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a ViT on grey images of 6 x 6, its circuit, and three pictures."""
    from PIL import Image

    place = tmp_path_factory.mktemp("vit")
    (place / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for name in "abc":
        Image.fromarray(rng.integers(0, 256, (6, 6)).astype(np.uint8)).save(place / "pictures" / f"{name}.png")
    tiny_vit(0, image_size=6, patch_size=2).save_pretrained(place / "model")
    prepared = prepare(place / "model")
    seen = 2.0 * rng.random((64, 1, 6, 6)) - 1.0
    export(prepared, calibrate(prepared, [seen.astype(np.float32)], 1e-2, margin=1.5), place / "circuit", name="vit")
    return place


def test_a_folder_of_images(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from heatfhe.circuit import Circuit

    local = ["--local", "--simulate", "--circuit", folder / "circuit", "--keys", folder / "keys"]
    command = ["classify", *local, "--params", "insecure-native-11", folder / "pictures", "--json"]
    assert main([str(word) for word in command]) == 0
    found = json.loads(capsys.readouterr().out)
    pixels = np.stack([read_image(path, (1, 6, 6)) for path in sorted((folder / "pictures").iterdir())])
    wanted = Circuit.load(folder / "circuit").run(pixels)[:, 0]
    assert found["images"] == ["a.png", "b.png", "c.png"]
    assert found["labels"] == wanted.argmax(-1).tolist()
    assert np.abs(np.array(found["logits"]) - wanted).max() < 1e-3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["classify"], "which images? give a file or a folder, or --digits N, or --resume"),
        (["classify", "--local", "--digits", "2"], "the default model continues text; give --circuit DIR"),
        (["stress", "circuit"], "vit: classifies images, and this command runs text"),
        (["calibrate", "model", "--text", "a.txt", "-o", "c.json"], "calibrate and train it in Python"),
        (["train", "model", "--text", "a.txt", "-o", "out"], "calibrate and train it in Python"),
    ],
)
def test_refusals(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(words) == 1
    assert said in " ".join(capsys.readouterr().err.split())
