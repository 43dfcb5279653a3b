# SPDX-License-Identifier: Apache-2.0
"""Two processes with the same global batch give one process's loss curve, through a stop and a resume.

Each holding the whole model, or (FSDP) a share of its weights.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heatfhe.errors import ConfigError
from heatfhe.training import ablation, read_log
from tests.training.distributed import chosen
from tests.training.short import fresh, go, short

ROOT = Path(__file__).parent.parent.parent


def curve(folder: Path) -> list[float]:
    return [v for x in read_log(folder) if x["kind"] == "update" for v in (x["task"], x["iter"], x["range"])]


SLOW = [pytest.param(more, marks=pytest.mark.slow) for more in (["shard"], ["again"], ["shard", "again"])]


@pytest.mark.parametrize("more", [[], *SLOW], ids=["whole", "sharded", "recomputed", "sharded and recomputed"])
def test_two_processes_give_the_same_loss_curve(more: list[str], tmp_path: Path) -> None:
    """Tolerance: 1e-4 relative (1e-6 absolute for terms near zero); sums are taken in another order, in float32."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed package")
    prepared = fresh()
    go(prepared, chosen(shard="shard" in more), tmp_path / "one")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.training.distributed", str(tmp_path / "two"), *more]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=500)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    one, two = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert len(one) == len(two) == 3 * 8
    assert two == pytest.approx(one, rel=1e-4, abs=1e-6)
    held = [[x["loss"] for x in read_log(tmp_path / f) if x["kind"] == "validation"] for f in ("one", "two")]
    assert held[1] == pytest.approx(held[0], rel=1e-4)
    weights = torch.load(tmp_path / "two" / "weights.pt", weights_only=True)
    largest = max(float((weights[k] - v).abs().max()) for k, v in prepared.model.state_dict().items())
    assert largest < 1e-3  # updates of rate 3e-4: a tenth of what eight updates move


def test_splitting_needs_processes_and_gradients() -> None:
    with pytest.raises(ConfigError, match="start them with torchrun"):
        go(fresh(), short(), shard=True)
    with pytest.raises(ConfigError, match="frozen weights have no gradients to split"):
        go(fresh(), ablation("depth-only", short()), shard=True)
