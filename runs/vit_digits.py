# SPDX-License-Identifier: Apache-2.0
"""A ViT of 69 thousand parameters on scikit-learn's 8 x 8 digits: trained plain, then calibrated, squeezed and HEAT.

    python runs/vit_digits.py out/digits [--epochs 30] [--noise-images 360] [--params insecure-native-12-r40]

17 rows (a class token and 16 patches of 2 x 2 pixels) of width 64, two layers, two heads, hidden width 128. Writes the
plain model to out/digits/plain and three circuits beside it, and prints the table: iterations, bootstraps of an image,
images that fail, and top-1 on the 360 held-out digits, exact in float64 and for some of them on the clear engine with
the noise that the parameter set states. Set OMP_NUM_THREADS=1 for one core.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.circuit import Circuit
from heatfhe.engine import BootstrapNoise, ClearEngine, Conversation, Runner
from heatfhe.errors import EngineError
from heatfhe.images import digits
from heatfhe.lowering import export
from heatfhe.planning import Plan, plan, preset
from heatfhe.ranges import calibrate
from heatfhe.sites import prepare
from heatfhe.training import Images, ablation, recipe, train

SHAPE = {
    "image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 64, "num_hidden_layers": 2, "num_labels": 10,
    "num_attention_heads": 2, "intermediate_size": 128, "layer_norm_eps": 1e-5, "initializer_range": 0.1,
}  # fmt: skip


def plain_model(epochs: int, seed: int = 0) -> Any:
    """The parent: cross-entropy on images with a little noise, AdamW, one cycle of the learning rate."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    model = ViTForImageClassification(ViTConfig(**SHAPE))
    pixels, labels = (torch.from_numpy(a) for a in digits())
    steps, batch = epochs * (len(pixels) // 64), 64
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        picked = torch.randint(0, len(pixels), (batch,), generator=generator)
        noisy = pixels[picked] + 0.3 * torch.randn((batch, *pixels.shape[1:]), generator=generator)
        loss = model(pixel_values=noisy, labels=labels[picked]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def noisy_logits(made: Plan, circuit: Circuit, pixels: NDArray[Any], seed: int = 0) -> NDArray[Any]:
    """Logits of images by the plan on the clear engine, under the noise that its parameters state."""
    noise = BootstrapNoise(sigma=made.params.noise)
    engine = ClearEngine(made.params, noise=noise, rng=np.random.default_rng(seed), lenient=True)
    talk, packing = Conversation(Runner(made, engine, made.source(circuit))), made.packing.tokens
    assert circuit.grid is not None
    found = []
    for image in pixels:
        blocks = packing.pack_image(circuit.grid.project(image, circuit.folded.token))
        try:
            parts = talk.classify([engine.value(v) for v in blocks])
            found.append(packing.unpack_vocabulary([part.slots for part in parts]))
        except EngineError:  # a refresh met more than the parameters' reach: the logits would not decrypt
            found.append(np.full(circuit.shape.vocabulary, np.nan))
    return np.array(found)


def circuit_of(plain: Any, way: str, folder: Path) -> Circuit:
    """The plain model as a circuit, in one of three ways."""
    prepared, chosen = prepare(copy.deepcopy(plain)), recipe("images")
    learned, held_out = Images.of(*digits(), prepared), Images.of(*digits(held_out=True), prepared)
    if way == "calibrated":
        seen = learned.rows[: chosen.calibration_windows, :-1]
        calibration = calibrate(prepared, [seen], chosen.tolerance, margin=chosen.margin)
        prepared.adopt(calibration)
    else:
        chosen = ablation(way.lower(), chosen)
        calibration = train(prepared, learned, chosen, held_out=held_out, folder=folder / f"{way}-run").calibration
    return export(prepared, calibration, folder / way, name=f"digits-{way.lower()}")


def main() -> None:
    """Train all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--noise-images", type=int, default=360)
    parser.add_argument("--params", default="insecure-native-12-r40")
    args = parser.parse_args()
    pixels, labels = digits(held_out=True)
    began = time.monotonic()
    plain = plain_model(args.epochs)
    seconds = time.monotonic() - began
    with torch.no_grad():
        right = (plain(torch.from_numpy(pixels)).logits.argmax(-1).numpy() == labels).mean()
    size = sum(p.numel() for p in plain.parameters())
    print(f"plain: {size} parameters, top-1 {right:.2%} of {len(labels)} held-out digits, {seconds:.0f} s", flush=True)
    plain.save_pretrained(args.folder / "plain")
    heads = ("circuit", "iterations", "bootstraps", "top-1", "failed under noise", "top-1 under noise", "seconds")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    for way in ("calibrated", "squeezed", "HEAT"):
        began = time.monotonic()
        circuit = circuit_of(plain, way, args.folder)
        seconds = time.monotonic() - began
        made = plan(circuit, preset(args.params))
        made.save(args.folder / f"{way}.plan")
        clear = (circuit.run(pixels)[:, 0].argmax(-1) == labels).mean()
        noisy = noisy_logits(made, circuit, pixels[: args.noise_images])
        failed = ~np.isfinite(noisy).all(axis=-1)
        kept = (np.nan_to_num(noisy).argmax(-1) == labels[: len(noisy)]) & ~failed
        cells = (
            way, sum(circuit.calibration.iterations().values()), len(made.program("classify").bootstraps()),
            f"{clear:.2%}", f"{failed.sum()}/{len(noisy)}", f"{kept.mean():.2%}", f"{seconds:.0f}",
        )  # fmt: skip
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
